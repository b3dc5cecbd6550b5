"""The coordinator of a run: advances its servers round by round, and saves checkpoints."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hedgerow.algorithms.core.messages import Aggregate, Exchange
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.common.errors import Unsaved, UserError, is_disk_full
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.autotune import require_compiler
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.online_server import OnlineServer
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.shards import ClientCrashed, ObjectsLost, PlanFailed
from hedgerow.platform.runtime.state_store import StateStore
from hedgerow.platform.runtime.transport import InProcess, Transport
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.atomic_file import Altered, Fingerprint
from hedgerow.platform.storage.checkpoint import (
    DamagedCheckpoint,
    newest_first,
    passed_over,
    prune,
    read_checkpoint,
    round_of,
    write_checkpoint,
)
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder


class Coordinator:
    """Runs the rounds of one experiment, or of several variants of it in lockstep, and saves their checkpoints.

    Variants differ only in floats of their algorithm, and share the work of each round, chunk by chunk.

    checkpoints: one folder per server, which continues from the last checkpoint there; None: no checkpoints. Steps run
    under the plans that run.json records, one level up; new plans are recorded there before the round that used them is
    reported. claim: gives this process the right to write there; None: no other process can write there.
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
        self._recorded: list[dict[str, Any]] = []
        self._constants: list[str | None] = []
        self._saved: dict[int, Path] = {}
        # Variants to save as soon as their round is reported.
        self._late: set[int] = set()
        self._warnings: dict[str, None] = {}
        self.on_round: Callable[[int, FederatedServer], None] = lambda variant, server: None
        """Called for each variant after each of its rounds, before a checkpoint of that round is written."""
        self.on_notice: Callable[[str], None] = lambda sentence: None
        """Receives sentences for the user about events during the run."""
        executor.on_notice = lambda sentence: self.on_notice(sentence)
        for variant, (server, folder) in enumerate(zip(servers, self._run_folders, strict=True)):
            server.variant, server.warn = variant, self._warn
            is_run = folder is not None and folder.exists
            plans = folder.record().get("plans", {}) if folder and is_run else {}
            if any(plan["compiled"] for plan in plans.values()):
                require_compiler("the plans in run.json", "resume the run with that version")
            executor.plans.take(variant, plans)
            self._recorded.append(plans)
            self._constants.append(folder.constants if folder and is_run else None)
            if checkpoints[variant] is not None:
                self.load_newest(variant, checkpoints[variant])  # type: ignore[arg-type]
        self._last_reported = servers[0].round
        self._failure: UserError | None = None

    def advance(self, seconds: float, last_reported: int | None = None) -> tuple[list[RoundRecord], bool]:
        """Run rounds for about `seconds`, at least one.

        Returns the first experiment's records after round `last_reported` (None: after the last record that was
        returned before), and whether the run is done.
        """
        until = time.perf_counter() + seconds
        if self._failure:
            raise self._failure
        self.write_records()
        first = self.round
        while not self.done:
            before = self.round
            try:
                self.run_round()
            except UserError as error:
                # An error while a round is saved ends the run at once: another process may have taken it over.
                if before == first or self.round != before:
                    raise
                # The rounds before the one that failed are reported first.
                self._failure = error
                break
            if time.perf_counter() >= until:
                break
        after = self._last_reported if last_reported is None else last_reported
        # The record of round r is at index r - 1.
        records = self.servers[0].history[after:]
        self._last_reported = after + len(records)
        return records, self.done

    @own_errors()
    def run_round(self) -> dict[int, RoundRecord]:
        """Run one round, and save it if a checkpoint is due; returns the record of each variant, by index."""
        # Not in the constructor: Ray wraps the errors of an actor's constructor before the user sees them.
        for server, expected in zip(self.servers, self._constants, strict=True):
            compare_constants(server.algorithm.task.module, expected)
        records = self.next_round()
        self.write_records()
        self._record_plans()
        for variant in records:
            self.on_round(variant, self.servers[variant])
        late, self._late = self._late, set()
        every = self.servers[0].experiment.checkpoints.every
        is_kept = any(self.servers[variant].round in self.servers[variant].decisions.kept for variant in records)
        is_due = self.done or (every and self.round % every == 0) or is_kept
        self._save(range(len(self.servers)) if is_due else late)
        return records

    def next_round(self) -> dict[int, RoundRecord]:
        """Run the next round of the variants that are furthest behind; returns the record of each, by index."""
        variants = self._variants_to_advance()
        target = self.servers[variants[0]].round + 1
        while behind := [v for v in self._variants_to_advance() if self.servers[v].round < target]:
            try:
                try:
                    self._run_in_lockstep(behind)
                except PlanFailed as error:
                    self._simplify(error, target)
                except ClientCrashed as error:
                    for variant in error.variants:
                        self.servers[variant].quarantine(error.client)
                    self._save_again(target)
            except ObjectsLost as lost:
                self._go_back(lost)
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
    def parts(self) -> int:
        """Number of parts of an exchange; runs with the same number have the same bits."""
        return self.executor.parts

    def plans(self) -> dict[str, Any]:
        """Plan of each step of the first variant (loop or vmap, chunk size), once it is known."""
        return self.executor.plans.values(0)

    def warnings(self) -> list[str]:
        """One sentence for each damaged checkpoint that was skipped, and for each logger that failed."""
        return list(self._warnings)

    def ended(self) -> str | None:
        """Reason why a logger ends the first variant after its last record; None: none does."""
        return self.servers[0].decisions.reason

    def _warn(self, sentence: str) -> None:
        self._warnings[sentence] = None
        self.on_notice(sentence)

    def parameters(self) -> Tree:
        """Parameters of the first variant that are reported, as NumPy arrays."""
        return tree_map(lambda leaf: leaf.numpy(), self.servers[0].scored_model)

    def test_scores(self) -> RoundRecord:
        """Scores of the first variant after its last round on test samples, and on the samples of clients, by name."""
        steps = self.servers[0].test_scores()
        answers: list[Aggregate] | None = None
        while True:
            try:
                exchanges = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            answers = self.executor.run(exchanges)

    def close(self) -> None:
        """End the workers."""
        self.executor.close()

    # ---- one round --------------------------------------------------------------------------------------------------

    def _variants_to_advance(self) -> list[int]:
        """Variants whose next round comes first; empty when all are done."""
        rounds = {variant: server.round for variant, server in enumerate(self.servers) if not server.done}
        return [variant for variant, round in rounds.items() if round == min(rounds.values())]

    def _run_in_lockstep(self, variants: list[int]) -> None:
        """Run the next round of some variants: exchanges that are due together run in parallel."""
        for variant in variants:
            self.servers[variant].running_variants = len(variants)
        rounds = {variant: self.servers[variant].run_round() for variant in variants}
        for variant in variants:
            self.executor.begin_round(variant)
        replies: dict[int, list[Aggregate] | None] = dict.fromkeys(variants)
        while rounds:
            requests: dict[int, list[Exchange]] = {}
            for variant, generator in list(rounds.items()):
                try:
                    requests[variant] = generator.send(replies[variant])  # type: ignore[arg-type]
                except StopIteration:
                    del rounds[variant]
                    server = self.servers[variant]
                    if server.committed == server.round:
                        self.executor.commit(variant)
            exchanges = [exchange for mine in requests.values() for exchange in mine]
            aggregates = iter(self.executor.run(exchanges) if exchanges else [])
            replies = {variant: [next(aggregates) for _ in mine] for variant, mine in requests.items()}

    def _simplify(self, failed: PlanFailed, round: int) -> None:
        """Run a step under a simpler plan from `round` on, which runs again."""
        if not self.executor.plans.simplify(failed):
            raise failed
        instead = "as a loop" if failed.plan.mode == "graph" else f"with {failed.plan.chunk // 2}"
        self.on_notice(f"round {round} is repeated: {failed}, and runs {instead} from now on")
        # A resumed run changes the plan at the same round.
        self._save_again(round)

    def _go_back(self, lost: ObjectsLost) -> None:
        """Return to the last checkpoints: client states were lost with a node."""
        for variant, (server, folder) in enumerate(zip(self.servers, self.folders, strict=True)):
            if folder is None or not self.load_newest(variant, folder):
                server.restart()
                if store := self.executor.stores[variant]:
                    store.load(None)
        self.on_notice(f"results were lost with their node ({lost}); the run continues from round {self.round + 1}")

    def _save_again(self, round: int) -> None:
        """Save the states before `round`, even if there is a checkpoint of them.

        Variants that have run the round already are saved once it is reported.
        """
        self._saved.clear()
        for variant, server in enumerate(self.servers):
            if server.round >= round:
                self._late.add(variant)
            elif self.folders[variant] is not None:
                self._save_variant(variant)

    # ---- records and checkpoints -------------------------------------------------------------------------------------

    def write_records(self) -> None:
        """Write the records of all rounds so far, and no others, to the run folders.

        Raises UserError when another process has taken over the run.
        """
        for server, folder in zip(self.servers, self._run_folders, strict=True):
            if folder and not server.history.is_in(folder.metrics):
                self._check_claim()
                with _writing(folder.metrics):
                    folder.path.mkdir(parents=True, exist_ok=True)
                    server.history.write(folder.metrics)
                    server.history.settle()

    def save(self) -> list[Path]:
        """Write a checkpoint of every variant at its current round, unless there is one; returns the folders.

        Raises UserError when another process has taken over the run.
        """
        return self._save(range(len(self.servers)))

    def _save(self, variants: Collection[int]) -> list[Path]:
        """Same as `save`, for some variants. If states were lost with their node, the rounds since the last checkpoints
        run again first.
        """
        reached = [server.round for server in self.servers]
        while True:
            try:
                return [self._save_variant(variant) for variant in variants]
            except ObjectsLost as lost:
                self._go_back(lost)
                while any(server.round < round for server, round in zip(self.servers, reached, strict=True)):
                    self.next_round()

    def _save_variant(self, variant: int) -> Path:
        """Write a checkpoint of one variant, as `save` does; returns its folder."""
        server, folder = self.servers[variant], self.folders[variant]
        assert folder is not None
        saved = self._saved.get(variant)
        if saved is None or saved.parent != folder or round_of(saved) != server.round:
            self._check_claim()
            self._write(variant, folder)
            # Check again: this process may have been suspended while it wrote, and would delete the other one's rounds.
            self._check_claim()
            prune(folder, server.experiment.checkpoints.keep, self._saved[variant], server.decisions.kept)
        return self._saved[variant]

    def load(self, variant: int, checkpoint: Path) -> None:
        """Continue a variant from a checkpoint folder, its own or another one. Raises DamagedCheckpoint."""
        state, progress = read_checkpoint(checkpoint)
        self.servers[variant].load_state_dict({"server": state, "progress": progress})
        self.executor.plans.take(variant, progress.get("plans", {}))
        if store := self.executor.stores[variant]:
            store.load(checkpoint)
        self._saved[variant] = checkpoint

    def load_newest(self, variant: int, folder: Path) -> bool:
        """Continue a variant from the newest intact checkpoint in a folder; returns whether there is one."""
        for checkpoint in newest_first(folder):
            try:
                self.load(variant, checkpoint)
            except DamagedCheckpoint as error:
                # A missing checkpoint was deleted in favour of a newer one.
                if checkpoint.exists():
                    self._warnings[passed_over(checkpoint, error.reason)] = None
            else:
                return True
        return False

    def _write(self, variant: int, folder: Path) -> None:
        server, store = self.servers[variant], self.executor.stores[variant]
        state, target = server.state_dict(), folder / f"round-{server.round:08d}"

        def save_states(aside: Path) -> dict[str, Fingerprint]:
            return store.save(aside) if store else {}

        with _writing(target):
            progress = state["progress"] | {"plans": self.executor.plans.values(variant)}
            self._saved[variant] = write_checkpoint(target, state["server"], progress, save_states, server.history)
            if store:
                store.saved(self._saved[variant])

    def _record_plans(self) -> None:
        for variant, folder in enumerate(self._run_folders):
            plans = self.executor.plans.values(variant)
            if folder and plans != self._recorded[variant] and folder.exists:
                self._recorded[variant] = plans
                folder.update(plans=plans)

    def _check_claim(self) -> None:
        if self.claim:
            self.claim.check()


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Raise UserError for a file or folder that cannot be written, Unsaved on a full disk."""
    try:
        yield
    except (OSError, SafetensorError, Altered) as error:
        fix = "make sure that its folder can be read and written"
        if isinstance(error, Altered):
            fix = "stop other programs from writing to this file"
        elif is_disk_full(error):
            fix = "free disk space there"
        kind = Unsaved if is_disk_full(error) else UserError
        raise kind(
            f"checkpoints: {target} cannot be written ({str(error).strip()}); {fix}, then `hedgerow resume` continues "
            "from the last checkpoint"
        ) from error


def build_coordinator(
    experiments: list[Experiment],
    dataset: Dataset,
    partition: Partition,
    checkpoints: Sequence[Path | None],
    claim: Claim | None = None,
    transport: Transport | None = None,
    parts: int = 1,
) -> Coordinator:
    """Coordinator of one experiment, or of several that differ only in floats of their algorithm.

    transport: None: one worker in this process. For the other arguments see Executor and Coordinator.
    """
    servers = build_servers(experiments, dataset, partition)
    if transport is None:
        resources = experiments[0].resources
        init_process(resources.threads, resources, experiments[0].engine.precision)
        transport = InProcess(lambda: Worker(*worker_arguments(experiments, dataset, partition)))
    return Coordinator(servers, build_executor(servers, transport, parts), list(checkpoints), claim)


def build_executor(servers: list[FederatedServer], transport: Transport, parts: int = 1) -> Executor:
    """Executor of these servers. parts: number of parts of an exchange."""
    stores = [
        StateStore(server.initial_client_state, server.population, server.participants, transport.memory)
        if server.initial_client_state
        else None
        for server in servers
    ]
    return Executor([server.experiment for server in servers], transport, parts, stores)


def build_servers(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> list[FederatedServer]:
    """Server of each experiment: rounds over clients, or over the tasks of a stream."""
    algorithms = build_algorithms(experiments, dataset, partition)
    return [
        OnlineServer(experiment, algorithm, partition, dataset)
        if algorithm.inner.trains_on == "stream"
        else FederatedServer(experiment, algorithm, partition, len(dataset.y_test))
        for experiment, algorithm in zip(experiments, algorithms, strict=True)
    ]


def worker_arguments(experiments: list[Experiment], dataset: Dataset, partition: Partition) -> tuple[Any, ...]:
    """Arguments of a Worker for these experiments."""
    first = experiments[0]
    algorithms = build_algorithms(experiments, dataset, partition)
    follows = first.evaluation.follows
    return algorithms, dataset, partition, first.seed, first.resources, follows, first.engine.precision
