"""Dry run of an algorithm's first round on a few samples, before a run does any work.

It finds errors that would otherwise appear late, without a message, or with one that does not name the place: a `round`
that returns nothing, a step that cannot be batched. It does not affect the run: it has its own algorithm, client states
and copy of torch's generator.
"""

import logging
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm, Need
from hedgerow.algorithms.core.client_data import ClientData, UnknownStreamError
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.inference import shorter
from hedgerow.algorithms.core.kept_values import kept_values
from hedgerow.algorithms.core.keyed_random import other_generators
from hedgerow.algorithms.core.messages import (
    PREDICTIONS,
    Aggregate,
    ClientStep,
    Cohort,
    Exchange,
    Exchanges,
    StepResult,
)
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, difference, leaves, tree_map
from hedgerow.algorithms.personalized.adaptation import Adapting
from hedgerow.algorithms.slots.middleware import AS_IS, ComposedAlgorithm, Middleware
from hedgerow.algorithms.slots.slot_rounds import SlotRounds
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import is_exhausted
from hedgerow.platform.common.own_code_errors import own_error
from hedgerow.platform.config.engine_section import EngineConfig
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.measures_section import METRIC, PREFIXES, SUFFIXES
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.aggregation import Content, check_no_reuse, content_of
from hedgerow.platform.runtime.engine import Samples
from hedgerow.platform.runtime.evaluation import evaluate, output_keeper, validate
from hedgerow.platform.runtime.exchange_costs import Delivery, NoContributionsError
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.shards import EVALUATION, PlanFailed
from hedgerow.platform.runtime.state_store import StateStore
from hedgerow.platform.runtime.transport import InProcess
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.schedules.events import Group
from hedgerow.platform.schedules.stale_round import StaleRound
from hedgerow.platform.tracking.summary import STANDARD

SAMPLES, STEPS = 8, 2
"""Maximum number of samples and of mini-batches per client."""

LOOPS = ("_steps", "_rounds", "_terms")
"""Suffixes of hyperparameters that set how often something is repeated inside a step or a round."""

FEWER = 3
"""Maximum number of samples of the last of several clients."""

ROUNDING = 1 + 1e-6
"""Factor that changes numbers by about as much as rounding."""

RESERVED = ("epsilon", "attackers", "staleness_", *PREFIXES)
"""Beginnings of names of a record's other entries."""

OF_SERVER = "draw from a torch.Generator with a seed, in a round from cohort.seed_for"
"""Advice for code that runs at the server."""

HOLDS = {
    "validation": "task.partition.upper_level_fraction",
    "held_out": "task.partition.client_test_fraction",
    "public": "task.public.samples",
    "selection": "task.validation",
}
"""Key that gives clients samples of a split."""

LARGE = 10**6
"""Number of parameters from which the dry run uses one client, one mini-batch of two samples, and scores no model."""

_passed: set[Any] = set()
"""Checks that have passed in this process; they are not repeated for another seed or for the next of several runs."""


def check_contract(
    experiment: Experiment, algorithm: ComposedAlgorithm, dataset: Dataset, partition: Partition
) -> None:
    """Run round 1 and an evaluation on a few samples, one client at a time and batched, as the plan may choose.

    algorithm: changed here, so do not use it elsewhere. Raises UserError where the algorithm breaks its contract, see
    `Algorithm`, and where the user's own code fails. Other errors are left to the run, which shows where they occur.
    """
    sizes = partition.train_sizes
    if not sizes.any():
        raise UserError("task.partition: no client has samples for training; give some to at least one")
    values = experiment.model_dump_json(exclude={"name", "seed", "rounds", "checkpoints", "tracking", "output"})
    arrays = dataset.sample_shape, dataset.classes, dataset.x_train.dtype, len(partition)
    key = type(algorithm.inner), type(algorithm.task.module), values, arrays
    if key in _passed:
        return
    if unknown := sorted(algorithm.inner.needs - set(get_args(Need))):
        raise UserError(
            f"algorithm.name: {type(algorithm.inner).__name__}.needs has {unknown[0]!r}; choose from "
            f"{', '.join(get_args(Need))}"
        )
    large = sum(p.numel() for p in algorithm.task.module.parameters()) >= LARGE
    inner, hyper = algorithm.inner, algorithm.inner.hyper
    dry_run = _DryRun(experiment, algorithm, dataset, partition, large)
    # Few loops and samples may be too few for the user's own code: if it fails, it is tried with all of them.
    for is_short in (True, False):
        inner.hyper = _few_loops(hyper) if is_short else hyper
        samples = int(sizes.max()) if not is_short else 2 if large else SAMPLES
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                # The run itself shows the warnings that matter.
                warnings.simplefilter("ignore")
                dry_run.run(samples, is_compared=is_short and not large)
            break
        except UserError:
            raise
        except ContractError as error:
            if error.key is not None:
                raise UserError(f"{error.key}: {error}") from error
            who = f"{type(inner).__name__} breaks the contract of an algorithm"
            raise UserError(f"algorithm.name: {who}: {error}") from error
        except Exception as error:
            logging.getLogger(__name__).info("the dry run ended early: %s", error)
            own = own_error(error)
            if own is None:
                break
            if not is_short:
                raise own from error
    _passed.add(key)


def _few(samples: Samples, number: int, last: int | None = None) -> Samples:
    """Samples reduced to at most `number` per client. last: client with at most FEWER; None: there is none."""
    splits = {}
    for name, part in samples.splits.items():
        sizes = np.minimum(part.sizes, number)
        if last is not None and last < len(sizes):
            sizes[last] = min(sizes[last], FEWER)
        splits[name] = part._replace(sizes=sizes)
    return replace(samples, splits=splits, owners=_few(samples.owners, number) if samples.owners else None)


def _few_loops(hyper: Any) -> Any:
    """Hyperparameters with at most STEPS passes of each loop."""
    loops = {name: value for name, value in hyper if name.endswith(LOOPS) and isinstance(value, int)}
    return hyper.model_copy(update={name: min(value, STEPS) for name, value in loops.items()})


class _Contract(Middleware):
    """Checks what the methods of an algorithm return. Innermost, so that no other middleware has changed it."""

    def __init__(self, inner: Algorithm):
        self.inner = inner
        self.step = ""
        """Name of the step that ran last."""
        self.lost = ""
        """An entry of a client state that ends with the round."""
        self.has_models = False
        """Whether a step has returned clients' own models."""
        self.scores = {
            f"{of}_{name}" for of in ("test", "validation", "client") for name in inner.task.scoring.measures
        }
        """Names of the scores of an evaluation."""
        self._last_results: dict[str, tuple[Tree, Content]] = {}
        """Result of each step of an exchange for its last client, with its content."""
        for method in (inner.round, inner.evaluate):
            setattr(inner, method.__name__, partial(self.generate, method))
        for reports in (inner.round_metrics, inner.server_metrics, inner.evaluation_metrics):
            setattr(inner, reports.__name__, partial(self.metrics, reports))

    def generate(self, method: Callable[[Tree, Cohort], Exchanges], server: Tree, cohort: Cohort) -> Exchanges:
        """Run a method of the server's half, and check what it yields and returns."""
        name, reply, before = method.__name__, None, dict(server)
        content, number = content_of(before), 0
        generator = method(server, cohort)
        if not isinstance(generator, Generator):
            raise ContractError(f"`{name}` is not a generator; yield an Exchange for every broadcast")
        while True:
            try:
                request = generator.send(reply)
            except StopIteration as stop:
                if str(content_of(before)) != str(content):
                    raise ContractError(
                        f"`{name}` changes tensors of its server state in place, and a round may run again; make new "
                        "ones"
                    ) from None
                if self.lost and name == "round" and number == 1:
                    raise ContractError(
                        f"its step `{self.step}` returns {self.lost!r} in the client state, which `init_client` does "
                        "not return, so that it would be lost after the round; return its first value there"
                    ) from None
                self.check_result(name, before, stop.value)
                return stop.value
            for exchange in request if isinstance(request, list) else [request]:
                if not isinstance(exchange, Exchange):
                    raise ContractError(f"`{name}` yields {_kind(exchange)}; yield an Exchange, or a list of them")
                if getattr(exchange.step, "__self__", None) is not self.inner:
                    raise ContractError(
                        f"the step of an Exchange in `{name}` is not a method of the algorithm; write step=self.NAME"
                    )
                if reason := exchange.objection(cohort):
                    raise ContractError(f"the Exchange of `{exchange.step.__name__}` {reason}")
                sent = {"all": exchange.received, "own": exchange.received_per_client}
                if any(leaf.dtype == torch.bfloat16 for leaf in leaves(sent)):
                    raise ContractError(f"`{name}` sends bfloat16, which messages do not carry; send float32")
                number += 1
            self.trains, self.lost = name == "round", ""
            self._last_results.clear()
            reply = yield request

    def metrics(self, method: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
        """Additional metrics of a record, by a method of the algorithm."""
        name, result = method.__name__, method(*arguments)
        if not isinstance(result, dict):
            raise ContractError(f"`{name}` returns {_kind(result)}; return a dictionary of numbers")
        for metric, value in result.items():
            _check_name(metric, f"`{name}`")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ContractError(f"`{name}` returns {_kind(value)} as {metric!r}; return a number, such as float(x)")
            is_reserved = _is_own(type(self.inner)) and (metric.startswith(RESERVED) or metric.endswith(SUFFIXES))
            if metric in STANDARD or metric in self.scores or is_reserved:
                raise ContractError(
                    f"`{name}` returns {metric!r}, which is the name of another entry of records; choose another"
                )
        return result

    def check_result(self, method: str, server: Tree, result: Any) -> None:
        """Check the return value of `round` or `evaluate`. server: state before it."""
        if method == "evaluate":
            if not (isinstance(result, list | tuple) and [type(one) for one in result] == [Aggregate, Aggregate]):
                raise ContractError(
                    f"`evaluate` returns {_kind(result)}; return two Aggregates, for the test set and for the clients"
                )
            for metric in self.inner.task.scoring.names:
                # Those of a personal algorithm are of its clients.
                read = result[1:] if self.inner.is_personal else result
                if any(len(one.contributed) and metric not in one.metrics for one in read):
                    raise ContractError(
                        f"`evaluate` returns an Aggregate whose step does not report {metric!r}; report all that "
                        "`evaluate_client` of `Algorithm` reports"
                    )
            if lost := next((metric for one in result for metric in sorted(self._lost_metrics(one))), None):
                raise ContractError(
                    f"a step of `evaluate` reports {lost!r}, which is in no record; report the scores of another model "
                    "as NAME_correct and NAME_loss, or define `evaluation_metrics`, which reads the metrics of clients"
                )
        elif result is None:
            raise ContractError("`round` returns nothing; return the new server state at its end")
        elif not _is_tree(result):
            raise ContractError(
                f"`round` returns {_kind(result)}; return the new server state, a dictionary of tensors"
            )
        elif mismatch := difference(server, result):
            raise ContractError(
                f"the server state that `round` returns {mismatch} `init_server`; return the complete state"
            )

    def _lost_metrics(self, scored: Aggregate) -> Iterator[str]:
        """Metrics of an evaluation that nothing reads."""
        if type(self.inner).evaluation_metrics is not Algorithm.evaluation_metrics:
            return
        for metric in scored.metrics.keys() - {*self.inner.task.scoring.names, PREDICTIONS}:
            other = metric.removesuffix("_count").removesuffix("_correct").removesuffix("_loss")
            if not {f"{other}_correct", f"{other}_loss"} <= scored.metrics.keys():
                yield metric

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        self.step = name.removesuffix(AS_IS)
        drawn, others = torch.get_rng_state(), other_generators()
        hyper = self.inner.hyper
        try:
            if _is_own(type(self.inner)):
                self.inner.hyper = _hidden(hyper, f"its step `{self.step}` reads self.hyper.", "hp.")
            answer = step(hp, down, state, data)
        except UnknownStreamError as error:
            raise ContractError(
                f"its step `{self.step}` reads the stream {error.stream!r}, but its Exchange has "
                f"{', '.join(map(repr, data.streams)) or 'none'}; add it to `batches`"
            ) from error
        finally:
            self.inner.hyper = hyper
        if other_generators() != others:
            raise ContractError(
                f"its step `{self.step}`, or the loss, draws from NumPy or Python's random, which no seed determines; "
                "draw from torch, and yield its Exchange with keyed=True"
            )
        if data.key is None and not torch.equal(torch.get_rng_state(), drawn):
            raise ContractError(
                f"its step `{self.step}`, or the loss, draws random numbers that no seed determines, or sets a seed; "
                "yield its Exchange with keyed=True instead, and draw none in a loss"
            )
        result = self.checked(answer)
        self.has_models |= bool(result.model) and self.trains
        if not data.batched:
            trees, last = {"update": result.update, "state": result.state}, self._last_results.get(self.step)
            try:
                check_no_reuse([last] if last else [], trees)
            except ContractError as error:
                # Without the key, so that the sentence names the class.
                raise ContractError(str(error)) from None
            self._last_results[self.step] = trees, content_of(trees)
        # Divergence does not break the contract: non-finite values become zeros.
        return result._replace(update=tree_map(lambda leaf: leaf.nan_to_num(0.0, 0.0, 0.0), result.update))

    def checked(self, answer: Any) -> StepResult:
        """Result of a step for one client."""
        name = f"its step `{self.step}`"
        if not isinstance(answer, StepResult) and (not isinstance(answer, tuple) or len(answer) != 3):
            raise ContractError(f"{name} returns {_kind(answer)}; return StepResult(update, state, metrics, model)")
        result = StepResult.of(answer)
        for part, tree in result._replace(model={} if result.model is None else result.model)._asdict().items():
            if not _is_tree(tree):
                raise ContractError(
                    f"{name} returns {_kind(tree)} as `{part}` of its StepResult; return a dictionary of tensors, "
                    "empty if there are none"
                )
        for metric, value in ((name, value) for name, value in result.metrics.items() if name != PREDICTIONS):
            _check_name(metric, name)
            # It would replace the score of the server's model, see `evaluation`.
            if metric == "server_correct" and not self.trains:
                raise ContractError(f"{name} reports {metric!r}, a name of the server's own scores; choose another")
            if not isinstance(value, Tensor) or value.dim():
                shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else "in a dictionary"
                raise ContractError(f"{name} reports the metric {metric!r} {shape}; report one number, a 0-d tensor")
        if self.trains and result.state:
            initial = self.inner.init_client()
            if mismatch := difference(initial, result.state):
                raise ContractError(
                    f"the client state that `{self.step}` returns {mismatch} `init_client`; return the complete state"
                )
            self.lost = next((key for key in result.state if key not in initial), "")
        return result


def _is_own(kind: type) -> bool:
    """Whether a class is the user's own."""
    return not kind.__module__.startswith("hedgerow.")


class _HiddenSlots(Middleware):
    """Lets the client parts of the user's own objective and transforms read their floats in `hp` alone."""

    def __init__(self, rounds: SlotRounds):
        self.rounds, slots = rounds, rounds.slots
        transforms = [_of_slot(one, "hp.", f"transforms.{i}.kind") for i, one in enumerate(slots.transforms)]
        objective = _of_slot(slots.objective, "hp.objective.", "objective.kind")
        self.slots = slots.model_copy(update={"transforms": transforms, "objective": objective})

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        slots, self.rounds.slots = self.rounds.slots, self.slots
        try:
            return super().client(name, step, hp, down, state, data)
        finally:
            self.rounds.slots = slots


def _of_slot(slot: Any, instead: str, key: str) -> Any:
    """A slot, with hidden floats if it is of the user's own class. instead, key: see `_hidden`."""
    if slot is None or not _is_own(type(slot)):
        return slot
    return _hidden(slot, f"{type(slot).__name__} reads self.", instead, key)


def _hidden(section: Any, reads: str, instead: str, key: str | None = None) -> Any:
    """Copy of a section whose floats, also of sections inside it, raise ContractError when they are read: a client step
    receives those of its round and, in a search, of its trial.

    reads, instead: beginnings of what the step reads and of what it receives. key: see ContractError.
    """
    kind: Any = type(section)
    floats = {name for name, value in section if isinstance(value, float)}

    def read(self: Any, name: str) -> Any:
        if name in floats:
            raise ContractError(
                f"{reads}{name}; read {instead}{name}, which has the value of the round and, in a search, of the trial",
                key,
            )
        return kind.__getattribute__(self, name)

    copy = section.model_copy(
        update={
            name: _hidden(value, f"{reads}{name}.", f"{instead}{name}.", key)
            for name, value in section
            if isinstance(value, Settings)
        }
    )
    hiding = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__getattribute__": read})
    object.__setattr__(copy, "__class__", hiding)
    return copy


class _DryRun:
    """Rounds and evaluations of an algorithm on a worker of this process. large: whether the model is."""

    def __init__(
        self, experiment: Experiment, algorithm: ComposedAlgorithm, dataset: Dataset, partition: Partition, large: bool
    ):
        self.experiment, self.algorithm, self.data, self.is_large = experiment, algorithm, (dataset, partition), large
        self.inner, self.middleware = algorithm.inner, algorithm.middleware
        self.contract = _Contract(algorithm.inner)
        self.is_own = _is_own(type(algorithm.inner))
        sizes = partition.train_sizes
        if self.inner.trains_on == "stream":
            self.clients, self.population = np.zeros(1, np.int64), experiment.rounds
        else:
            # The first and the last client: some algorithms treat the first clients differently.
            self.clients = np.unique(np.flatnonzero(sizes)[[0] if large else [0, -1]])
            self.population = len(partition)

    def run(self, samples: int, is_compared: bool) -> None:
        """Run round 1 and an evaluation with at most `samples` of each client, in a loop and batched.

        is_compared: whether the numbers of both are compared, if the algorithm is not one of this package.
        """
        # With fewer samples, the mini-batches of the last client are padded where clients are batched.
        last = int(self.clients[-1]) if is_compared and len(self.clients) > 1 else None
        sizes = np.minimum(self.data[1].train_sizes, samples)
        if last is not None:
            sizes[last] = min(sizes[last], FEWER)
        cohort = Cohort(
            1, self.clients, sizes[self.clients], self.population, 1, self.experiment.seed, population_sizes=sizes
        )
        # First without its middleware, which rejects wrong results before they can be checked.
        for middleware in ([], self.middleware) if self.middleware else ([],):
            hidden = [_HiddenSlots(one) for one in middleware if isinstance(one, SlotRounds)]
            self.algorithm.middleware = [self.contract, *middleware, *hidden]
            worker = Worker([self.algorithm], *self.data, self.experiment.seed)
            worker.samples = {
                place: _few(some, samples, last if place == "clients" else None)
                for place, some in worker.samples.items()
            }
            may_batch, is_forced = self._may_batch(), self.experiment.engine.mode == "vmap"
            is_compared &= may_batch and self.is_own and not middleware
            one_by_one: Tree = {}
            if not (may_batch and is_forced) or is_compared:
                try:
                    one_by_one = self._run(cohort, worker, "loop", samples)
                except Exception:
                    # A step for batched clients alone may read their masks.
                    if not (may_batch and is_forced):
                        raise
            if may_batch:
                try:
                    at_once = self._run(cohort, worker, "vmap", samples)
                except (UserError, ContractError, PlanFailed):
                    raise
                except Exception as error:
                    if is_exhausted(error):
                        raise
                    if is_forced:
                        # A step that fails for one client, too, is reported as that.
                        self._run(cohort, worker, "loop", samples)
                    raise self._not_batched(worker.samples["clients"], error) from error
                # Rounding alone decides entries whose exact gradient is 0, in a sign or a first step of Adam.
                if (
                    is_compared
                    and one_by_one
                    and _differs(one_by_one, at_once)
                    and not _differs(one_by_one, self._run(cohort, worker, "loop", samples, ROUNDING))
                ):
                    raise ContractError(
                        "a step gives other numbers for several clients at once than for one client after the other; "
                        "leave out the padding of mini-batches by `batch.mask` and `batch.active`, as `minimize` does, "
                        "or set engine.mode to loop"
                    )

    def _run(self, cohort: Cohort, worker: Worker, mode: Any, samples: int, scale: float = 1.0) -> Tree:
        """Run round 1 and an evaluation. mode: how the steps of clients run. scale: of the initial server state.

        Returns the change of the server state in the round and the metrics of each exchange; {} if they follow from
        random numbers.
        """
        experiment, algorithm = self.experiment, self.algorithm
        update = {"engine": EngineConfig(mode=mode, compile=False)}
        with _seeded_draws("`init_client`", OF_SERVER):
            initial = algorithm.init_client()
        store = StateStore(initial, self.population, len(self.clients)) if initial else None
        executor = Executor([experiment.model_copy(update=update)], InProcess(lambda: worker), 1, [store])

        keyed: list[bool] = []
        metrics: list[dict[str, np.ndarray]] = []

        def drive(generator: Any, first: int = 0) -> Any:
            """Run a generator of exchanges; returns its return value, or None if every client diverged."""
            steps, answers = Delivery(cohort, 0, first).around(generator), None
            try:
                while True:
                    with _seeded_draws("the server's half of a round", OF_SERVER):
                        exchanges = steps.send(answers)
                    few = 1 if self.is_large else STEPS
                    short = [replace(one, batches=shorter(one.batches, few, samples)) for one in exchanges]
                    for one in short if self.is_own and self.contract.trains else ():
                        _check_samples(one, worker.samples[one.site])
                    sent = [str(content_of(one.received)) for one in short]
                    with _seeded_draws(
                        "a transform, an attack or an objective", "set its `is_random`, and draw none in a loss"
                    ):
                        answers = executor.run(short)
                    keyed.extend(one.keyed for one in short)
                    metrics.extend(answer.metrics for answer in answers)
                    for one, content in zip(short, sent, strict=True):
                        if str(content_of(one.received)) != content:
                            raise ContractError(
                                f"its step `{one.step.__name__.removesuffix(AS_IS)}` changes what it receives in "
                                "place, which all clients share; change a clone"
                            )
            except StopIteration as stop:
                return stop.value
            except NoContributionsError:
                return None

        kept = kept_values(self.inner)
        try:
            with _seeded_draws("`init_server`", OF_SERVER):
                before = algorithm.init_server()
            if scale != 1:
                before = tree_map(lambda leaf: leaf * scale if leaf.is_floating_point() else leaf, before)
            server = drive(algorithm.round(before, cohort)) or before
            algorithm.round_metrics(server)
            outcome: Tree = {}
            if not any(keyed):
                changes = tree_map(_change, before, server)
                outcome = {"state": changes, "metrics": dict(enumerate(metrics))}
            after = kept_values(self.inner)
            if changed := next((name for name in after if after[name] != kept.get(name)), None):
                raise ContractError(
                    f"a round changes {changed!r}, which no checkpoint and no other process has; keep what changes in "
                    "the state of the server or of a client; compute constants in `__init__`, or with cached_property"
                )
            # Unless it adapts the common model, a personal model is part of the state and no average is scored.
            keeps_models = self.inner.is_personal and not isinstance(self.inner, Adapting)
            if experiment.evaluation.follows and (keeps_models or not self.contract.has_models):
                name = experiment.algorithm.name
                raise UserError(f"evaluation.model: {name} has no client models to average; set it to server")
            if schedule := experiment.schedule:
                arrived = [Group(0, cohort.clients)]
                stale = StaleRound(schedule, 0, arrived, {}, self.inner.parts, algorithm.hyper)
                drive(stale.around(algorithm.round(before, cohort)))
            if self.is_large:
                return outcome
            nobody = cohort.subset(np.zeros(len(cohort.clients), bool))
            scored = cohort if experiment.evaluation.clients else nobody
            confuses = experiment.evaluation.confusion_matrix
            keeper = output_keeper(algorithm, confuses)
            evaluation = evaluate(algorithm, server, scored, confuses)
            drive(keeper.around(evaluation) if keeper else evaluation, EVALUATION)
            if validation := experiment.task.validation:
                clients = nobody.clients if validation.is_at_server else cohort.clients
                scores = validate(algorithm.evaluate(server, cohort), clients, algorithm.task.scoring)
                if not drive(keeper.around(scores) if keeper else scores, EVALUATION):
                    raise ContractError(
                        "`evaluate` scores no samples of the split `held_out`, which `task.validation` replaces; yield "
                        "such an Exchange, or remove `task.validation`"
                    )
            return outcome
        finally:
            executor.close()

    def _may_batch(self) -> bool:
        """Whether the plan of a step may batch it."""
        mode = self.experiment.engine.mode
        if mode == "loop" or getattr(self.algorithm.task.module, "no_vmap", None):
            return False
        actors = self.experiment.resources.actors
        clients_each = self.experiment.cohort_size(self.population) / (actors if isinstance(actors, int) else 1)
        return mode == "vmap" or (clients_each > 1 and self.inner.trains_on != "stream")

    def _not_batched(self, samples: Samples, error: Exception) -> UserError | ContractError:
        """Error for a step that works for one client, but not for several at once. samples: of the clients."""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        works = f"works for one client, but not for several at once under torch.func.vmap ({reason})"
        advice = "do not call .item() or branch on tensors in it, or set engine.mode to loop"
        task, rows = self.algorithm.task, torch.zeros((1, 1), dtype=torch.long)
        try:
            logits = torch.func.vmap(lambda rows: task.logits({}, samples.prepare(samples.x[rows])))(rows)
        except Exception:
            return UserError(f"task.model: {type(task.module).__name__} {works}; {advice}")
        for name, function in task.scoring.summed.items():
            try:
                torch.func.vmap(function.sums)(logits, samples.y[rows], torch.ones(rows.shape))
            except Exception:
                place = "task.loss: the loss" if name == "loss" else f"task.metrics: {name}"
                return UserError(f"{place} {works}; {advice}")
        return ContractError(f"its step `{self.contract.step}` {works}; {advice}")


def _check_name(metric: Any, who: str) -> None:
    """Raise ContractError for a name of a metric that MLflow refuses, with all other metrics of the round."""
    if not isinstance(metric, str) or not (METRIC.fullmatch(metric) or metric.startswith("@")):
        raise ContractError(
            f"{who} reports the metric {metric!r}; name it by letters, digits, spaces and _ - . / alone"
        )


def _check_samples(exchange: Exchange, samples: Samples) -> None:
    """Raise ContractError for a split in which no client has samples: the step would do nothing."""
    for spec in exchange.batches.values():
        if not samples.splits[spec.split].sizes.any():
            step = exchange.step.__name__.removesuffix(AS_IS)
            raise ContractError(
                f"its step `{step}` reads the split {spec.split!r}, in which no client has samples; set "
                f"{HOLDS.get(spec.split, 'task.partition')}"
            )


def _change(old: Tensor, new: Tensor) -> Tensor:
    """Change of an entry of the server state, which may be empty at first."""
    return new.double() - old.double() if old.shape == new.shape else new.double()


def _differs(one: Tree, other: Tree) -> bool:
    """Whether two outcomes of a round differ by more than rounding."""
    for mine, theirs in zip(leaves(one), leaves(other), strict=True):
        a, b = (torch.as_tensor(leaf).double().nan_to_num(0.0, 0.0, 0.0) for leaf in (mine, theirs))
        if a.shape != b.shape or (a.numel() and float((a - b).abs().max()) > 0.01 * max(float(a.abs().max()), 1e-4)):
            return True
    return False


@contextmanager
def _seeded_draws(who: str, advice: str) -> Iterator[None]:
    """Context in which user code draws from no generator of the process. Raises ContractError if it does."""
    drawn, others, end = torch.get_rng_state(), other_generators(), None
    try:
        yield
    except StopIteration as stop:
        end = stop
    if other_generators() != others or not torch.equal(torch.get_rng_state(), drawn):
        raise ContractError(f"{who} draws random numbers that no seed determines, or sets a seed; {advice}")
    if end is not None:
        raise end


def _is_tree(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(leaf, Tensor) for leaf in leaves(value))


def _kind(value: Any) -> str:
    """Description of a value, for a message."""
    if isinstance(value, tuple | list):
        return f"{len(value)} values ({', '.join(type(one).__name__ for one in value)})"
    if isinstance(value, dict):
        other = next((leaf for leaf in leaves(value) if not isinstance(leaf, Tensor)), None)
        return "a dictionary" if other is None else f"a dictionary that holds {_kind(other)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"
