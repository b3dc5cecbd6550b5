"""Dry run of an algorithm's first round on a few samples, before a run does any work.

It finds errors that would otherwise appear late, without a message, or with one that does not name the place: a `round`
that returns nothing, a step that cannot be batched. It does not affect the run: it has its own algorithm, client states
and copy of torch's generator.
"""

import logging
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm, Need
from hedgerow.algorithms.core.client_data import ClientData, UnknownStreamError
from hedgerow.algorithms.core.inference import shorter
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, StepResult
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, difference, leaves, stack, tree_map
from hedgerow.algorithms.personalized.adaptation import Adapting
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm, Middleware
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import is_exhausted
from hedgerow.platform.common.own_code_errors import own_error
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.aggregation import PartialAggregate, combine
from hedgerow.platform.runtime.engine import Answers, Samples, run_clients
from hedgerow.platform.runtime.evaluation import validate
from hedgerow.platform.runtime.shards import EVALUATION, ExecutionPlan, WorkShard
from hedgerow.platform.runtime.worker import samples_of_places
from hedgerow.platform.schedules.events import Group
from hedgerow.platform.schedules.stale_round import StaleRound

SAMPLES, STEPS = 8, 2
"""Maximum number of samples and of mini-batches per client."""

LOOPS = ("_steps", "_rounds", "_terms")
"""Suffixes of hyperparameters that set how often something is repeated inside a step or a round."""

LARGE = 10**6
"""Number of parameters from which the dry run uses one client, one mini-batch of two samples, and scores no model."""

_passed: set[Any] = set()
"""Checks that have passed in this process; they are not repeated for another seed or for the next of several runs."""


def check_contract(
    experiment: Experiment, algorithm: ComposedAlgorithm, dataset: Dataset, partition: Partition
) -> None:
    """Run round 1 and an evaluation on a few samples, one client at a time and batched, as the plan may choose.

    algorithm: not used elsewhere, because its hyperparameters are changed here. Raises UserError where the algorithm
    breaks its contract, see `Algorithm`, and where the user's own code fails. Other errors are left to the run, which
    shows where they occur.
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
    # Few loops and samples may be too few for the user's own code: if it fails, it is tried with all of them.
    for is_short in (True, False):
        inner.hyper = _few_loops(hyper) if is_short else hyper
        samples = int(sizes.max()) if not is_short else 2 if large else SAMPLES
        try:
            _dry_run(experiment, algorithm, dataset, partition, samples, large)
            break
        except UserError:
            raise
        except Exception as error:
            logging.getLogger(__name__).info("the dry run ended early: %s", error)
            own = own_error(error)
            if own is None:
                break
            if not is_short:
                raise own from error
    _passed.add(key)


def _dry_run(
    experiment: Experiment,
    algorithm: ComposedAlgorithm,
    dataset: Dataset,
    partition: Partition,
    samples: int,
    large: bool,
) -> None:
    """Run round 1 and an evaluation with at most `samples` of each client. large: whether the model is."""
    sizes = partition.train_sizes
    if algorithm.inner.trains_on == "stream":
        clients, population = np.zeros(1, np.int64), experiment.rounds
    else:
        # The first and the last client: some algorithms treat the first clients differently.
        clients, population = np.flatnonzero(sizes)[[0] if large else [0, -1]], len(partition)
    clients = np.unique(clients)
    cohort = Cohort(1, clients, np.minimum(sizes[clients], samples), population, 1, experiment.seed)
    dealt = {
        place: _few(some, samples) for place, some in samples_of_places(dataset, partition, algorithm.task).items()
    }
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # The run itself shows the warnings that matter.
        warnings.simplefilter("ignore")
        # First without its middleware, which rejects or changes wrong results of steps before they can be checked.
        for stage in (algorithm.inner, algorithm) if algorithm.middleware else (algorithm.inner,):
            dry_run = _DryRun(experiment, stage, algorithm.inner, dealt, cohort, samples, large)
            try:
                dry_run.run()
            except ContractError as error:
                raise dry_run.violation(str(error), error.key) from error


def _few(samples: Samples, number: int) -> Samples:
    """Samples reduced to at most `number` per client."""
    splits = {name: part._replace(sizes=np.minimum(part.sizes, number)) for name, part in samples.splits.items()}
    return replace(samples, splits=splits, owners=_few(samples.owners, number) if samples.owners else None)


def _few_loops(hyper: Any) -> Any:
    """Hyperparameters with at most STEPS passes of each loop."""
    loops = {name: value for name, value in hyper if name.endswith(LOOPS) and isinstance(value, int)}
    return hyper.model_copy(update={name: min(value, STEPS) for name, value in loops.items()})


@dataclass
class _DryRun:
    experiment: Experiment
    algorithm: Algorithm | ComposedAlgorithm
    inner: Algorithm
    dealt: Mapping[Any, Samples]
    cohort: Cohort
    samples: int
    is_large: bool
    states: dict[int, Tree] = field(default_factory=dict)
    wrote: dict[int, str] = field(default_factory=dict)
    """Client id -> name of the step that returned its state."""
    has_models: bool = False
    """Whether a step has returned clients' own models."""

    def run(self) -> None:
        algorithm, cohort = self.algorithm, self.cohort
        initial, state = algorithm.init_server(), algorithm.init_client()
        server = self.drive(algorithm.round(initial, cohort), "round", 0)
        if server is None:
            raise self.violation("`round` returns nothing; return the new server state at its end")
        if not _is_tree(server):
            raise self.violation(
                f"`round` returns {_kind(server)}; return the new server state, a dictionary of tensors"
            )
        if mismatch := difference(initial, server):
            raise self.violation(
                f"the server state that `round` returns {mismatch} `init_server`; return the complete state"
            )
        # Unless it adapts the common model, a personal model is part of the state and no average is scored.
        keeps_models = self.inner.is_personal and not isinstance(self.inner, Adapting)
        if self.experiment.evaluation.follows and (keeps_models or not self.has_models):
            name = self.experiment.algorithm.name
            raise UserError(f"evaluation.model: {name} has no client models to average; set it to server")
        if schedule := self.experiment.schedule:
            arrived = [Group(0, cohort.clients)]
            stale = StaleRound(schedule, 0, arrived, {}, self.inner.parts, algorithm.hyper)
            self.drive(stale.around(algorithm.round(initial, cohort)), "round", 0)
        for client, last in self.wrote.items():
            if mismatch := difference(state, self.states[client]):
                raise self.violation(
                    f"the client state that `{last}` returns {mismatch} `init_client`; return the complete state"
                )
        if self.is_large:
            return
        scored = cohort if self.experiment.evaluation.clients else cohort.subset(np.zeros(len(cohort.clients), bool))
        results = self.drive(algorithm.evaluate(server, scored), "evaluate", EVALUATION)
        if not (isinstance(results, list | tuple) and [type(result) for result in results] == [Aggregate, Aggregate]):
            raise self.violation(
                f"`evaluate` returns {_kind(results)}; return two Aggregates, for the test set and for the clients"
            )
        if validation := self.experiment.task.validation:
            clients = cohort.clients[:0] if validation.is_at_server else cohort.clients
            scores = validate(algorithm.evaluate(server, cohort), clients, algorithm.task.scoring)
            scores = self.drive(scores, "evaluate", EVALUATION)
            if not scores:
                raise self.violation(
                    "`evaluate` scores no samples of the split `held_out`, which `task.validation` replaces; yield "
                    "such an Exchange, or remove `task.validation`"
                )

    def violation(self, what: str, key: str | None = None) -> UserError:
        """Error of the algorithm or, with `key`, of the user's code that this hyperparameter names."""
        if key:
            return UserError(f"algorithm.{key}: {what}")
        name = type(self.inner).__name__
        return UserError(f"algorithm.name: {name} breaks the contract of an algorithm: {what}")

    # ---- the server's half ------------------------------------------------------------------------------------------

    def drive(self, generator: Any, method: str, number: int) -> Any:
        """Run a generator until it ends, and return its return value. number: position of its first exchange."""
        if not isinstance(generator, Generator):
            raise self.violation(f"`{method}` is not a generator; yield an Exchange for every broadcast")
        steps: Any = Middleware().around(generator)
        answers: list[Aggregate] | None = None
        while True:
            try:
                exchanges = steps.send(answers)
            except StopIteration as stop:
                return stop.value
            for exchange in exchanges:
                if not isinstance(exchange, Exchange):
                    raise self.violation(f"`{method}` yields {_kind(exchange)}; yield an Exchange, or a list of them")
                if getattr(exchange.step, "__self__", None) is not self.algorithm:
                    raise self.violation(
                        f"the step of an Exchange in `{method}` is not a method of the algorithm; write step=self.NAME"
                    )
            answers = [self.carry_out(exchange, number + i) for i, exchange in enumerate(exchanges)]
            number += len(exchanges)

    def carry_out(self, exchange: Exchange, number: int) -> Aggregate:
        n = len(exchange.clients)
        if not n:
            return Aggregate({}, np.zeros(0, bool), {})
        partial = PartialAggregate(exchange.reduce)
        weights = np.ones(n) if exchange.weights is None else np.asarray(exchange.weights, np.float64)
        for rows, (up, state, metrics, models) in self.answered(exchange, number):
            self.has_models |= bool(models) and exchange.site == "clients"
            # Divergence does not break the contract: non-finite values become zeros.
            up, metrics = (tree_map(lambda leaf: leaf[0], tree) for tree in (up, metrics))
            up = tree_map(lambda leaf: leaf.nan_to_num(0.0, 0.0, 0.0), up)
            factors = metrics[exchange.weighted_by].double() if exchange.weighted_by else 1.0
            partial.add(
                up,
                torch.from_numpy(weights[rows]) * factors,
                torch.ones(rows.stop - rows.start, dtype=torch.bool),
                metrics,
            )
            if state and exchange.site == "clients" and number < EVALUATION:
                for i, client in enumerate(exchange.clients[rows].tolist()):
                    self.states[client] = tree_map(lambda leaf, i=i: leaf[0, i].detach(), state)
                    self.wrote[client] = exchange.step.__name__
        partial = partial.to_wire()
        return Aggregate(combine([partial], np.arange(n)), np.ones(n, bool), partial.metrics)

    # ---- the clients' half ------------------------------------------------------------------------------------------

    def answered(self, exchange: Exchange, number: int) -> list[tuple[slice, Answers]]:
        """Answers of one client after the other or, if `engine.mode` is vmap, batched."""
        looped, batched = ExecutionPlan("loop"), ExecutionPlan("vmap", len(exchange.clients))
        if not self.is_batched(exchange):
            return self.ask(exchange, number, looped)
        is_forced = self.experiment.engine.mode == "vmap"
        answers = [] if is_forced else self.ask(exchange, number, looped)
        try:
            together = self.ask(exchange, number, batched)
        except (UserError, ContractError):
            raise
        except Exception as error:
            if is_forced:
                self.ask(exchange, number, looped)
            raise self.not_batched(exchange, error) from error
        return answers or together

    def is_batched(self, exchange: Exchange) -> bool:
        """Whether the plan of a step may batch it."""
        mode = self.experiment.engine.mode
        if exchange.site != "clients" or mode == "loop":
            return False
        if getattr(self.algorithm.task.module, "no_vmap", None):
            return False
        if mode == "vmap":
            return True
        actors = self.experiment.resources.actors
        clients_each = self.experiment.cohort_size(self.cohort.population) / (actors if isinstance(actors, int) else 1)
        return clients_each > 1 and self.inner.trains_on != "stream"

    def not_batched(self, exchange: Exchange, error: Exception) -> Exception:
        """Error for a step that works for one client, but not for several at once."""
        if is_exhausted(error):
            return error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        works = f"works for one client, but not for several at once under torch.func.vmap ({reason})"
        advice = "do not call .item() or branch on tensors in it, or set engine.mode to loop"
        data, task = self.dealt["clients"], self.algorithm.task
        rows = torch.zeros((1, 1), dtype=torch.long)
        try:
            logits = torch.func.vmap(lambda rows: task.logits({}, data.prepare(data.x[rows])))(rows)
        except Exception:
            return UserError(f"task.model: {type(task.module).__name__} {works}; {advice}")
        for name, function in task.scoring.measures.items():
            try:
                torch.func.vmap(function.sums)(logits, data.y[rows], torch.ones(rows.shape))
            except Exception:
                place = "task.loss: the loss" if name == "loss" else f"task.metrics: {name}"
                return UserError(f"{place} {works}; {advice}")
        return self.violation(f"its step `{exchange.step.__name__}` {works}; {advice}")

    def ask(self, exchange: Exchange, number: int, plan: ExecutionPlan) -> list[tuple[slice, Answers]]:
        def step(hp: Any, down: Tree, state: Tree, data: ClientData) -> Any:
            answer = exchange.step(hp, down, state, data)
            self.check_answer(exchange, answer)
            return answer

        shard = WorkShard(
            exchange.step.__name__,
            exchange.clients,
            position=number,
            batches=shorter(exchange.batches, 1 if self.is_large else STEPS, self.samples),
            plan=plan,
            keyed=exchange.keyed,
        )
        chunks = run_clients(
            shard,
            step=step,
            hypers=[self.algorithm.hyper.at(1)],
            broadcasts=[exchange.received],
            per_client=tree_map(lambda leaf: leaf[None], exchange.received_per_client),
            states=lambda rows: self.stacked(exchange, number, exchange.clients[rows]),
            samples=self.dealt[exchange.site],
            seed=self.experiment.seed,
        )
        try:
            return list(chunks)
        except UnknownStreamError as error:
            raise self.violation(
                f"its step `{exchange.step.__name__}` reads the stream {error.stream!r}, but its Exchange has "
                f"{', '.join(map(repr, exchange.batches)) or 'none'}; add it to `batches`"
            ) from error

    def stacked(self, exchange: Exchange, number: int, clients: np.ndarray) -> Tree:
        """Client states, stacked: leaves (1, clients, ...)."""
        if exchange.site != "clients":
            return {}
        initial = self.algorithm.init_client()
        states = [self.states.get(client, initial) for client in clients.tolist()]
        if number >= EVALUATION:
            states = [{name: state[name] for name in initial} for state in states]
        return tree_map(lambda leaf: leaf[None], stack(*states))

    def check_answer(self, exchange: Exchange, answer: Any) -> None:
        """Check the return value of a step for one client."""
        name = f"its step `{exchange.step.__name__}`"
        if not isinstance(answer, StepResult) and (not isinstance(answer, tuple) or len(answer) != 3):
            raise self.violation(f"{name} returns {_kind(answer)}; return StepResult(update, state, metrics, model)")
        result = StepResult.of(answer)
        for part, tree in result._replace(model={} if result.model is None else result.model)._asdict().items():
            if not _is_tree(tree):
                raise self.violation(
                    f"{name} returns {_kind(tree)} as `{part}` of its StepResult; return a dictionary of tensors, "
                    "empty if there are none"
                )
        for metric, value in result.metrics.items():
            if not isinstance(value, Tensor) or value.dim():
                shape = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else "in a dictionary"
                raise self.violation(f"{name} reports the metric {metric!r} {shape}; report one number, a 0-d tensor")


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
