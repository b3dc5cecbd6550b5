"""Server state of one experiment, and the coordinator that runs its rounds and saves its checkpoints."""

import errno
import math
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError

from hedgerow.algorithms.core.algorithm import Aggregate, Algorithm
from hedgerow.algorithms.core.messages import SPENT, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, count, flatten, tree_map
from hedgerow.algorithms.slots.slotted import OPTIMIZER
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.heartbeat import beat
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Partition
from hedgerow.platform.data.sampling import sample_clients
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.communication import CommunicationCost
from hedgerow.platform.runtime.evaluation import evaluate, histograms, training_metrics, validate
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.local_work import counted
from hedgerow.platform.runtime.participation import ParticipationSimulator, with_clients
from hedgerow.platform.runtime.recovery import SUSPICIOUS, attempt, find_crashing_clients, persist
from hedgerow.platform.runtime.shards import EVALUATION, ExecutionPlan
from hedgerow.platform.runtime.validation_noise import ValidationNoise
from hedgerow.platform.runtime.worker import test_shards
from hedgerow.platform.storage.atomic_file import Altered
from hedgerow.platform.storage.checkpoint import (
    DamagedCheckpoint,
    newest_first,
    passed_over,
    prune,
    read_checkpoint,
    round_of,
    write_checkpoint,
)
from hedgerow.platform.storage.history import History, RoundRecord
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import is_done, reaches

AVERAGE = "client_average"
"""Key in the server state, where evaluated: the average of all clients' latest own models."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a file system that has no room: disk full, quota or file size limit reached."""

ExchangeSteps = Generator[list[Exchange], list[Aggregate], Any]
"""Yields exchanges that may run in parallel, and is sent their aggregates."""

Run = Callable[[list[Exchange]], list[Aggregate]]
"""Runs exchanges and returns their aggregates, as `Executor.run` does."""


class NoContributionsError(Exception):
    """Every client of parallel exchanges diverged: there is nothing to aggregate."""


class FederatedServer:
    """Server state, progress and records of one experiment. A round is a function of (server state, round number).

    variant: index of this server where a coordinator drives several variants.
    """

    def __init__(self, experiment: Experiment, algorithm: Algorithm, partition: Partition, test_samples: int):
        self.experiment = experiment
        self.algorithm = algorithm
        self.variant = 0
        self.sizes = partition.train_sizes
        self.population = len(partition)
        self.cohort_size = experiment.cohort_size(self.population)
        self.sample_size = experiment.sample_size(self.population)
        self.shares = partition.shares()
        self.tracks_client_models = experiment.evaluation.follows
        self.stateless = not algorithm.init_client() and not self.tracks_client_models
        self.test_shards = test_shards(test_samples)
        self._evaluated = self._evaluation_cohort()
        pool, selection = partition.server_validation, partition.selection_sizes
        self.validation_shards = 0 if pool is None else test_shards(len(pool))
        self._validated = np.flatnonzero([] if selection is None else selection)
        # Set by searches: noise on the validation scores, and whether records count the samples that clients draw.
        self.noise: ValidationNoise | None = None
        self.counts_samples = False
        # Client id -> first round without this client. Kept when the server returns to a checkpoint.
        self.quarantined: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """Return to the state before round 1."""
        self.state = self.algorithm.init_server()
        if self.tracks_client_models:
            self.state[AVERAGE] = self.algorithm.task.init()
        self.round = self.committed = 0
        self.seconds = self.transmissions = 0.0
        self.history = History()
        # First record to reach each target.
        self._decisive: list[RoundRecord] = []
        # Clients' accuracies on their own samples in the last evaluation, in ascending order.
        self.accuracies: list[float] = []
        # Seconds of all rounds so far, by activity.
        self.clock = {"training": 0.0, "evaluation": 0.0}

    def state_dict(self) -> dict[str, Any]:
        """State and progress (JSON); `load_state_dict` takes them together with the history."""
        progress = {
            "round": self.round,
            "seconds": self.seconds,
            "transmissions": self.transmissions,
            "histograms": histograms(self.algorithm, self.state),
            "client_accuracies": self.accuracies,
            "clock": self.clock,
            "quarantined": {str(client): round for client, round in self.quarantined.items()},
        }
        return {"server": self.state, "progress": progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`. Raises UserError when the server state has missing entries."""
        progress, server = state["progress"], state["server"]
        if self.algorithm.inner is not self.algorithm and OPTIMIZER in self.state:
            # Population-based training may continue a checkpoint with other settings of the server optimiser.
            server = {**server, OPTIMIZER: {**self.state[OPTIMIZER], **server.get(OPTIMIZER, {})}}
        if missing := sorted(flatten(self.state).keys() - flatten(server).keys()):
            raise UserError(
                f"the checkpoint of round {progress['round']} has no {missing[0]!r} in the server state: another "
                "algorithm or an earlier version wrote it; start a new run"
            )
        self.state = server
        self.round = self.committed = progress["round"]
        self.seconds = progress["seconds"]
        self.transmissions = progress["transmissions"]
        records = progress["history"]
        # Checkpoints of earlier versions contain the records themselves.
        self.history = records if isinstance(records, History) else History(records)
        self._decisive = []
        if self.experiment.evaluation.stop:
            for record in self.history:
                self._note(record)
        self.accuracies = progress.get("client_accuracies", [])
        self.clock = dict(progress.get("clock", self.clock))
        self.quarantined |= {int(client): round for client, round in progress.get("quarantined", {}).items()}

    def quarantine(self, client: int) -> None:
        """Exclude a client from the next round on. Raises RuntimeError above `resources.max_quarantined`."""
        self.quarantined[client] = self.round + 1
        share = self.experiment.resources.max_quarantined
        if len(self.quarantined) > share * self.population:
            culprits = ", ".join(map(str, sorted(self.quarantined)))
            raise RuntimeError(
                f"round {self.round + 1}: these clients crash their worker process every time: {culprits}; fix the "
                f"cause, or raise resources.max_quarantined, which excludes at most {share:g} of the clients"
            )

    @property
    def done(self) -> bool:
        """Whether all rounds have run, or the targets have ended the run early."""
        return is_done(self.experiment, [*self._decisive, *self.history[-1:]])

    def run_round(self) -> ExchangeSteps:
        """Run the next round. When the generator ends, the record of the round is the last of `history`."""
        start = time.perf_counter()
        number = self.round + 1
        state, record = yield from self._next(number)
        # The round counts only now, with every aggregate received: if a worker is lost above, nothing has changed.
        self.committed = self.committed if state is None else number
        self.state, self.round, self.transmissions = state or self.state, number, record["transmissions"]
        self.seconds += time.perf_counter() - start
        record["seconds"] = self.seconds
        self.history.append(record)
        self._note(record)

    def _note(self, record: RoundRecord) -> None:
        """Keep the first record that reaches a target: with the last record, it decides whether the run is done."""
        evaluation = self.experiment.evaluation
        if any(
            reaches(record, target, evaluation.target_metric)
            and not any(reaches(known, target, evaluation.target_metric) for known in self._decisive)
            for target in evaluation.targets
        ):
            self._decisive.append(record)

    def _next(self, number: int) -> ExchangeSteps:
        """State after the round (None if every client diverged), and the record of the round."""
        sampled = sample_clients(self.experiment.seed, number, self.population, self.sample_size)
        clients = self._without_quarantined(sampled, number)
        state, record, cost = yield from self._timed("training", self._train(number, clients))
        model_size = count(self.algorithm.evaluate_params(self.state))
        record |= cost.as_dict() | self._spent(record)
        if any(since <= number for since in self.quarantined.values()):
            record["quarantined"] = len(sampled) - len(clients)
        record["transmissions"] = self.transmissions + cost.transmissions(self.cohort_size, model_size)
        if self._is_evaluated(number):
            # Client states of this round are not final yet, and evaluation must not touch them.
            record |= yield from self._timed("evaluation", self._evaluate(state or self.state, number))
        return state, record

    def _train(self, number: int, clients: np.ndarray) -> ExchangeSteps:
        """Run the algorithm's round; returns the new state or None, the first record entries, and the cost."""
        cohort = self._cohort(number, clients)
        aggregates: list[list[Aggregate]] = []
        drawn: list[int] = []
        simulated = None
        if self.experiment.simulation:
            simulated = ParticipationSimulator(self.experiment.simulation, cohort, self.shares)
            first = next(self.algorithm.round(self.state, cohort), [])
            cohort = simulated.begin(with_clients(first), self.cohort_size)
        state = None
        if len(cohort.clients):
            exchanges = self.algorithm.round(self.state, cohort)
            exchanges = counted(exchanges, self.shares, drawn) if self.counts_samples else exchanges
            exchanges = simulated.timed(exchanges, cohort) if simulated else exchanges
            with suppress(NoContributionsError):
                state = yield from self._drive(exchanges, cohort, aggregates)
                if self.tracks_client_models:
                    state = {**state, AVERAGE: self._average(aggregates)}
        record: RoundRecord = {"round": number, "participants": len(cohort.clients), **training_metrics(aggregates)}
        if self.counts_samples:
            record["sample_gradients"] = sum(drawn)
        cost = CommunicationCost()
        for parallel in aggregates:
            cost.add(aggregate.cost for aggregate in parallel)
        if simulated:
            cost.add([simulated.cost])
            record |= self._simulated(simulated)
        return state, record, cost

    def _simulated(self, round: ParticipationSimulator) -> RoundRecord:
        """Record entries of a simulated round, with the simulated seconds of all rounds so far."""
        record = round.record()
        before = self.history[-1]["simulated_seconds"] if self.history else 0.0
        return record | {"simulated_seconds": before + record["simulated_round_seconds"]}

    def _spent(self, record: RoundRecord) -> RoundRecord:
        """Compute-cost metrics of the run so far, by name: the sum over all rounds, including this one."""
        before = self.history[-1] if self.history else {}
        names = {name: None for known in (before, record) for name in known if name.startswith(SPENT)}
        return {name: before.get(name, 0.0) + record.get(name, 0.0) for name in names}

    def _average(self, aggregates: list[list[Aggregate]]) -> Tree:
        """Average of all clients' latest own models after these exchanges."""
        average = self.state[AVERAGE]
        for aggregate in chain.from_iterable(aggregates):
            if aggregate.client_model_delta:
                average = add(average, aggregate.client_model_delta, 1 / self.population)
        return average

    def _evaluate(self, state: Tree, number: int) -> ExchangeSteps:
        """Scores of a server state, by name."""
        clients = self._without_quarantined(self._evaluated, number)
        scored = {**state, "w": state[AVERAGE]} if self.tracks_client_models else state
        record = yield from self._score(scored, number, clients)
        if self.tracks_client_models:
            own = yield from self._score(state, number, clients[:0])
            record |= {f"server_{name}": value for name, value in own.items()}
        if self.experiment.task.validation:
            record |= yield from self._validate(scored, number, clients)
        return record

    def _validate(self, state: Tree, number: int, evaluated: np.ndarray) -> ExchangeSteps:
        """Scores of a server state on the validation samples. evaluated: clients of the evaluation."""
        clients = self._without_quarantined(self._validated, number)
        clients = self.noise.subset(clients, number) if self.noise else clients
        # Statistics of a model's normalisation come from the same clients as in the evaluation on the test set.
        cohort = self._cohort(number, clients if len(clients) and not self.algorithm.task.is_static else evaluated)
        cohort = replace(cohort, test_shards=self.validation_shards)
        everyone = self._cohort(number, np.union1d(cohort.clients, clients))
        try:
            # In the same positions as the evaluation on the test set: models that a client derives are the same.
            generator = validate(self.algorithm, state, cohort, clients)
            scores = yield from self._drive(generator, everyone, [], first=EVALUATION)
            return self.noise.apply(scores, number) if self.noise else scores
        except NoContributionsError:
            return {"validation_accuracy": math.nan, "validation_loss": math.nan}

    def _score(self, state: Tree, number: int, clients: np.ndarray) -> ExchangeSteps:
        cohort = self._cohort(number, clients)
        try:
            record, accuracies = yield from self._drive(
                evaluate(self.algorithm, state, cohort), cohort, [], first=EVALUATION
            )
        except NoContributionsError:
            # The model has diverged so far that even the statistics of its normalisation are not finite.
            return {"test_accuracy": math.nan, "test_loss": math.nan}
        self.accuracies = self.accuracies if accuracies is None else accuracies
        return record

    def _drive(
        self, generator: Exchanges, cohort: Cohort, aggregates: list[list[Aggregate]], first: int = 0
    ) -> ExchangeSteps:
        """Run an algorithm's generator until it ends, and return its return value.

        first: position of its first exchange. aggregates: receives one list per exchange, or per group of parallel
        exchanges. Raises NoContributionsError when all clients of one of them diverged.
        """
        reply: Any = None
        position = first
        while True:
            try:
                request = generator.send(reply)
            except StopIteration as stop:
                return stop.value
            exchanges = request if isinstance(request, list) else [request]
            answers = yield [
                replace(
                    exchange,
                    cohort=cohort,
                    position=position + i,
                    committed_round=self.committed,
                    variant=self.variant,
                )
                for i, exchange in enumerate(exchanges)
            ]
            aggregates.append(answers)
            contributed = np.concatenate([aggregate.contributed for aggregate in answers])
            if len(contributed) and not contributed.any():
                generator.close()
                raise NoContributionsError
            reply = answers if isinstance(request, list) else answers[0]
            position += len(exchanges)

    def _timed(self, what: str, steps: ExchangeSteps) -> ExchangeSteps:
        """Run `steps`, and add the elapsed seconds to the clock."""
        start = time.perf_counter()
        result = yield from steps
        self.clock[what] += time.perf_counter() - start
        return result

    def _is_evaluated(self, number: int) -> bool:
        return number % self.experiment.evaluation.every == 0 or number == self.experiment.rounds

    def _evaluation_cohort(self) -> np.ndarray:
        """Clients that every evaluation scores: a uniform sample of the population."""
        size = min(self.experiment.evaluation.clients, self.population)
        return sample_clients(self.experiment.seed, 0, self.population, size)

    def _without_quarantined(self, clients: np.ndarray, number: int) -> np.ndarray:
        out = [client for client, since in self.quarantined.items() if since <= number]
        return clients[~np.isin(clients, out)] if out else clients

    def _cohort(self, number: int, clients: np.ndarray) -> Cohort:
        return Cohort(
            number,
            clients,
            self.sizes[clients],
            self.population,
            self.test_shards,
            self.experiment.seed,
            population_sizes=self.sizes,
            is_stateless=self.stateless,
        )


class Driver(Protocol):
    """Methods of a Coordinator that a run calls, in whichever process the coordinator is."""

    def advance(self, seconds: float) -> tuple[list[RoundRecord], bool]: ...
    def save(self) -> Any: ...
    def plans(self) -> dict[str, Any]: ...
    def warnings(self) -> list[str]: ...
    def parameters(self) -> Tree: ...

    @property
    def num_shards(self) -> int:
        """Number of shares of the clients' work; runs with the same number have the same bits."""

    @property
    def actor_counts(self) -> list[int]:
        """Number of client actors after each placement on the nodes of the cluster."""


class Coordinator:
    """Runs the rounds of one experiment, or of several variants of it in lockstep, and saves their checkpoints.

    Variants differ only in floats of their algorithm, and share the work of each round, chunk by chunk.

    checkpoints: one folder per server, which continues from the last checkpoint there. None: no checkpoints, so a lost
    worker means starting again from round 1. Steps run under the plans that run.json records, one level up; new plans
    are recorded there before the round that used them is reported. claim: gives this process the right to write there;
    None: no other process can write there.
    """

    def __init__(
        self,
        servers: list[FederatedServer],
        executor: Executor,
        checkpoints: list[Path | None],
        claim: Claim | None = None,
    ):
        self.servers, self.executor, self.folders, self.claim = servers, executor, checkpoints, claim
        self._run_folders = [RunFolder(folder.parent) if folder else None for folder in checkpoints]
        self._recorded: list[dict[str, ExecutionPlan]] = []
        self._constants: list[str | None] = []
        for variant, (server, folder) in enumerate(zip(servers, self._run_folders, strict=True)):
            server.variant = variant
            is_run = folder is not None and folder.exists
            known = folder.record().get("plans", {}) if folder and is_run else {}
            self._recorded.append({step: ExecutionPlan(**plan) for step, plan in known.items()})
            executor.plans[variant] |= self._recorded[-1]
            self._constants.append(folder.constants if folder and is_run else None)
        self._saved: dict[int, Path] = {}
        self._passed_over: dict[Path, str] = {}
        self.reload()
        self._last_reported = servers[0].round

    def advance(self, seconds: float, last_reported: int | None = None) -> tuple[list[RoundRecord], bool]:
        """Run rounds for about `seconds`, at least one.

        Returns the first experiment's records after round `last_reported` (None: after the last record that was
        returned before), and whether the run is done.
        """
        until = time.perf_counter() + seconds
        while not self.done:
            self.run_round()
            if time.perf_counter() >= until:
                break
        after = self._last_reported if last_reported is None else last_reported
        # The record of round r is at index r - 1.
        records = self.servers[0].history[after:]
        self._last_reported = after + len(records)
        return records, self.done

    def run_round(self) -> dict[int, RoundRecord]:
        """Run one round, and save it if a checkpoint is due; returns the record of each variant, by index."""
        # Not in the constructor: Ray wraps the errors of an actor's constructor before the user sees them.
        for server, expected in zip(self.servers, self._constants, strict=True):
            compare_constants(server.algorithm.task.module, expected)
        records = self.next_round()
        self._record_plans()
        every = self.servers[0].experiment.checkpoints.every
        if self.done or (every and self.round % every == 0):
            self.save()
        return records

    def next_round(self) -> dict[int, RoundRecord]:
        """Run the next round of the variants that are furthest behind; returns the record of each, by index."""
        variants = self._variants_to_advance()
        target = self.servers[variants[0]].round + 1

        def remaining(run: Run = self.executor.run) -> None:
            self._run_in_lockstep([v for v in variants if self.servers[v].round < target], run)

        if not attempt(remaining, self._recover, SUSPICIOUS):
            self._quarantine(partial(remaining, self.executor.run_one_by_one))
            persist(f"round {target}", remaining, self._recover)
        return {variant: self.servers[variant].history[-1] for variant in variants}

    @property
    def round(self) -> int:
        """Last round that all variants have run, except those that ended early."""
        going = self._variants_to_advance()
        return self.servers[going[0]].round if going else max(server.round for server in self.servers)

    @property
    def done(self) -> bool:
        """Whether all rounds of all variants have run."""
        return not self._variants_to_advance()

    @property
    def num_shards(self) -> int:
        """Number of shares of the clients' work."""
        return self.executor.num_shards

    @property
    def actor_counts(self) -> list[int]:
        """Empty: this coordinator places no client actors."""
        return []

    def plans(self) -> dict[str, Any]:
        """Plan of each step of the first variant (loop or vmap, chunk size), once it is known."""
        return self._plans_as_values(0)

    def warnings(self) -> list[str]:
        """One sentence for each damaged checkpoint that was skipped."""
        return list(self._passed_over.values())

    def parameters(self) -> Tree:
        """Parameters of the first variant that are reported, as NumPy arrays."""
        server = self.servers[0]
        return tree_map(lambda leaf: leaf.numpy(), server.algorithm.evaluate_params(server.state))

    # ---- one round --------------------------------------------------------------------------------------------------

    def _variants_to_advance(self) -> list[int]:
        """Variants whose next round comes first; empty when all are done."""
        rounds = {variant: server.round for variant, server in enumerate(self.servers) if not server.done}
        return [variant for variant, round in rounds.items() if round == min(rounds.values())]

    def _run_in_lockstep(self, variants: list[int], run: Run) -> None:
        """Run the rounds of some variants side by side: exchanges that are due together run in parallel."""
        rounds = {variant: self.servers[variant].run_round() for variant in variants}
        replies: dict[int, list[Aggregate] | None] = dict.fromkeys(variants)
        while True:
            requests: dict[int, list[Exchange]] = {}
            for variant, generator in list(rounds.items()):
                try:
                    requests[variant] = generator.send(replies[variant])  # type: ignore[arg-type]
                except StopIteration:
                    del rounds[variant]
                beat()
            if not requests:
                return
            aggregates = iter(run([exchange for exchanges in requests.values() for exchange in exchanges]))
            replies = {variant: [next(aggregates) for _ in exchanges] for variant, exchanges in requests.items()}

    # ---- checkpoints and recovery ------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Continue all variants from their last intact checkpoints, which another process may have written."""
        self._replay([0] * len(self.servers))

    def save(self) -> list[Path]:
        """Write a checkpoint of every variant at its current round, unless there is one; returns the folders.

        Raises UserError when another process has taken over the run.
        """
        for variant, (server, folder) in enumerate(zip(self.servers, self.folders, strict=True)):
            assert folder is not None
            saved = self._saved.get(variant)
            if saved is None or saved.parent != folder or round_of(saved) != server.round:
                write = partial(self._write, variant, folder)
                self._check_claim()
                persist(f"checkpoint {server.round}", write, self._replay_to_here)
                # Check again: this process may have been suspended while it wrote, and would delete the other one's
                # rounds.
                self._check_claim()
                prune(folder, server.experiment.checkpoints.keep, self._saved[variant])
        return [self._saved[variant] for variant in range(len(self.servers))]

    def load(self, variant: int, checkpoint: Path) -> None:
        """Continue a variant from a checkpoint folder, its own or another one. Raises DamagedCheckpoint."""
        state, progress = read_checkpoint(checkpoint)
        self.servers[variant].load_state_dict({"server": state, "progress": progress})
        self.executor.plans[variant] |= {
            step: ExecutionPlan(**plan) for step, plan in progress.get("plans", {}).items()
        }
        self.executor.load_states(variant, checkpoint)
        self._saved[variant] = checkpoint

    def load_newest(self, variant: int, folder: Path) -> bool:
        """Continue a variant from the newest intact checkpoint in a folder; returns whether there is one."""
        for checkpoint in newest_first(folder):
            try:
                self.load(variant, checkpoint)
            except DamagedCheckpoint as error:
                # A missing checkpoint was deleted in favour of a newer one.
                if checkpoint.exists():
                    self._passed_over[checkpoint] = passed_over(checkpoint, error.reason)
            else:
                return True
        return False

    def _recover(self) -> None:
        """Recover from a lost worker. Stateless clients repeat only this round; others, all since the checkpoint."""
        if not all(server.stateless for server in self.servers):
            self._replay_to_here()

    def _replay_to_here(self) -> None:
        self._replay([server.round for server in self.servers])

    def _replay(self, targets: list[int]) -> None:
        """Return to the last checkpoints and run forward again: rounds are functions of state and number."""

        def replay() -> None:
            for variant, folder in enumerate(self.folders):
                if folder is None or not self.load_newest(variant, folder):
                    self.servers[variant].restart()
                    self.executor.load_states(variant, None)
            while any(server.round < target for server, target in zip(self.servers, targets, strict=True)):
                self._run_in_lockstep(self._variants_to_advance(), self.executor.run)

        persist(f"round {max(targets)}", replay, lambda: None)

    def _quarantine(self, run_one_by_one: Callable[[], None]) -> None:
        """Find and exclude the clients that crash their process, then return to the state before the round."""
        before = [server.round for server in self.servers]

        def leave_out(variant: int, client: int) -> None:
            self.servers[variant].quarantine(client)
            self._save_again()

        # Without this, rounds that were already reported would run again with a client that has started to crash.
        self._save_again()
        find_crashing_clients(run_one_by_one, self._replay_to_here, partial(self._replay, before), leave_out)

    def _save_again(self) -> None:
        """Save checkpoints, even where this round already has one."""
        self._saved.clear()
        if None not in self.folders:
            self.save()

    def _write(self, variant: int, folder: Path) -> None:
        server = self.servers[variant]
        state, target = server.state_dict(), folder / f"round-{server.round:08d}"
        try:
            self._saved[variant] = write_checkpoint(
                target,
                state["server"],
                state["progress"] | {"plans": self._plans_as_values(variant)},
                lambda aside: self.executor.save_states(variant, aside, server.committed),
                server.history,
            )
        except (OSError, SafetensorError, Altered) as error:
            # An actor's error message begins with its traceback.
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"checkpoints: {target} cannot be written ({reason}); {_remedy(error)}, then `hedgerow resume` "
                "continues from the previous one"
            ) from error

    def _record_plans(self) -> None:
        for variant, folder in enumerate(self._run_folders):
            plans = self.executor.plans[variant]
            if folder and plans != self._recorded[variant] and folder.exists:
                self._recorded[variant] = dict(plans)
                folder.update(plans=self._plans_as_values(variant))

    def _plans_as_values(self, variant: int) -> dict[str, Any]:
        return {step: asdict(plan) for step, plan in self.executor.plans[variant].items()}

    def _check_claim(self) -> None:
        if self.claim:
            self.claim.check()


def _remedy(error: Exception) -> str:
    """Fix for a checkpoint that cannot be written, for the error message."""
    # Ray wraps the error of an actor.
    cause = getattr(error, "cause", error)
    if isinstance(cause, Altered):
        return "stop other programs from writing to this file"
    if getattr(cause, "errno", None) in FULL:
        return "free disk space there"
    return "make sure that its folder can be read and written"
