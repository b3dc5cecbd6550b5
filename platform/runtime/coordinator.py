"""The coordinator of a run: advances its servers round by round, saves checkpoints and recovers from lost workers."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.common.errors import DISK_FULL, UserError
from hedgerow.platform.common.heartbeat import beat
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.config.resources import Kind, SpeedChange
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.assignment import REVIEW
from hedgerow.platform.runtime.autotune import require_compiler
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.recovery import SUSPICIOUS, attempt, find_crashing_clients, persist
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.shards import ChunkTooLarge, ExecutionPlan
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
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder

Run = Callable[[list[Exchange]], list[Aggregate]]
"""Runs exchanges and returns their aggregates, as `Executor.run` does."""


class Coordinator:
    """Runs the rounds of one experiment, or of several variants of it in lockstep, and saves their checkpoints.

    Variants differ only in floats of their algorithm, and share the work of each round, chunk by chunk.

    checkpoints: one folder per server, which continues from the last checkpoint there. None: no checkpoints, so a lost
    worker means starting again from round 1. Steps run under the plans that run.json records, one level up; new plans
    are recorded there before the round that used them is reported. Measured speeds are recorded there before the first
    round that uses them, and never for a round that has run. claim: gives this process the right to write there; None:
    no other process can write there.
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
        # Last round after which measured speeds were compared with those in use, by this or an earlier process.
        self._last_review = 0
        for variant, (server, folder) in enumerate(zip(servers, self._run_folders, strict=True)):
            server.variant = variant
            is_run = folder is not None and folder.exists
            record = folder.record() if folder and is_run else {}
            self._recorded.append({step: ExecutionPlan(**plan) for step, plan in record.get("plans", {}).items()})
            if any(plan.compiled for plan in self._recorded[-1].values()):
                require_compiler("the plans in run.json", "resume the run with that version")
            self._take_speeds(record.get("speeds", []))
            self._last_review = max(self._last_review, record.get("last_speed_review", 0))
            executor.plans[variant] |= self._recorded[-1]
            self._constants.append(folder.constants if folder and is_run else None)
        # For each variant: plans that replace those of the executor from the round on that runs next.
        self._next_plans: list[dict[str, ExecutionPlan]] = [{} for _ in servers]
        self._saved: dict[int, Path] = {}
        self._behind: set[int] = set()
        self._passed_over: dict[Path, str] = {}
        self.on_round: Callable[[int, FederatedServer], None] = lambda variant, server: None
        """Called for each variant after each of its rounds, before a checkpoint of that round is written."""
        self.on_notice: Callable[[str], None] = lambda sentence: None
        """Receives sentences for the user about events during the run."""
        self.reload()
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
        first = self.round
        while not self.done:
            before = self.round
            try:
                with own_errors():
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

    def run_round(self) -> dict[int, RoundRecord]:
        """Run one round, and save it if a checkpoint is due; returns the record of each variant, by index."""
        # Not in the constructor: Ray wraps the errors of an actor's constructor before the user sees them.
        for server, expected in zip(self.servers, self._constants, strict=True):
            compare_constants(server.algorithm.task.module, expected)
        records = self.next_round()
        self._record_plans()
        self._review_speeds()
        for variant in records:
            self.on_round(variant, self.servers[variant])
        # Their plans changed after they had run this round.
        for variant in self._behind & records.keys():
            self._saved.pop(variant, None)
            self._save_variant(variant)
        self._behind -= records.keys()
        every = self.servers[0].experiment.checkpoints.every
        is_best = any(self.servers[variant].has_best_round for variant in records)
        # Copies of client states are incomplete until the next checkpoint.
        if self.done or (every and self.round % every == 0) or is_best or self.executor.exposed:
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
        """Number of shares of the clients' work; runs with the same number have the same bits."""
        return self.executor.num_shards

    @property
    def kinds(self) -> list[Kind]:
        """Kind of client actor that runs each share."""
        return self.executor.shares

    @property
    def actor_counts(self) -> list[int]:
        """Empty: this coordinator places no client actors."""
        return []

    def plans(self) -> dict[str, Any]:
        """Plan of each step of the first variant (loop or vmap, chunk size), once it is known."""
        return _as_values(self.executor.plans[0])

    def speeds(self) -> list[dict[str, Any]]:
        """Relative speeds of the shares, and the rounds from which they hold."""
        return [change.model_dump() for change in self.executor.speeds]

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
        """Run the next round of some variants side by side.

        If a chunk of clients does not fit into memory, it is halved, and the round runs again from its beginning.
        """
        rounds = {variant: self.servers[variant].round for variant in variants}
        while unfinished := [variant for variant in variants if self.servers[variant].round == rounds[variant]]:
            try:
                self._attempt_round(unfinished, run)
            except ChunkTooLarge as error:
                self._halve_chunk(error, self.servers[unfinished[0]].round + 1, set(variants) - set(unfinished))

    def _attempt_round(self, variants: list[int], run: Run) -> None:
        """Run the next round of some variants: exchanges that are due together run in parallel."""
        for variant in variants:
            self.servers[variant].sharing = len(variants)
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
            complete = [variant for variant, exchanges in requests.items() if not exchanges]
            exchanges = [exchange for mine in requests.values() for exchange in mine]
            aggregates = iter(run(exchanges) if exchanges else [])
            self.executor.copy_states({variant: self.servers[variant].round + 1 for variant in complete})
            replies = {variant: [next(aggregates) for _ in mine] for variant, mine in requests.items()}

    def _halve_chunk(self, failed: ChunkTooLarge, round: int, finished: set[int]) -> None:
        """Halve the chunk of a step that does not fit into memory, from `round` on.

        The states before the round are saved with the new plan, so that a replay or a resumed run changes plans at the
        same round. finished: variants that have run the round already, and are not saved before it is reported.
        """
        self._next_plans = self.executor.smaller_plans(failed)
        if not any(self._next_plans):
            raise failed
        chunk = failed.plan.chunk
        self.on_notice(
            f"round {round} is repeated: the step {failed.step} does not fit into memory with {chunk} clients at once, "
            f"and runs with {chunk // 2} from now on"
        )
        for variant, plans in enumerate(self._next_plans):
            if plans and self.folders[variant] is not None:
                self._saved.pop(variant, None)
                if variant in finished:
                    self._behind.add(variant)
                else:
                    self._save_variant(variant)
        for plans, following in zip(self.executor.plans, self._next_plans, strict=True):
            plans |= following
        self._next_plans = [{} for _ in self.servers]

    # ---- checkpoints and recovery ------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Continue all variants from their last intact checkpoints, which another process may have written."""
        self._replay([0] * len(self.servers))

    def save(self) -> list[Path]:
        """Write a checkpoint of every variant at its current round, unless there is one; returns the folders.

        Raises UserError when another process has taken over the run.
        """
        folders = [self._save_variant(variant) for variant in range(len(self.servers))]
        self.executor.exposed.clear()
        return folders

    def _save_variant(self, variant: int) -> Path:
        """Write a checkpoint of one variant, as `save` does; returns its folder."""
        server, folder = self.servers[variant], self.folders[variant]
        assert folder is not None
        saved = self._saved.get(variant)
        if saved is None or saved.parent != folder or round_of(saved) != server.round:
            write = partial(self._write, variant, folder)
            self._check_claim()
            persist(f"checkpoint {server.round}", write, self._recover)
            # Check again: this process may have been suspended while it wrote, and would delete the other one's rounds.
            self._check_claim()
            best = server.selection.best
            keep = server.experiment.checkpoints.keep
            prune(folder, keep, self._saved[variant], best.round if best else None)
        return self._saved[variant]

    def load(self, variant: int, checkpoint: Path) -> None:
        """Continue a variant from a checkpoint folder, its own or another one. Raises DamagedCheckpoint."""
        state, progress = read_checkpoint(checkpoint)
        self.servers[variant].load_state_dict({"server": state, "progress": progress})
        self.executor.plans[variant] |= {
            step: ExecutionPlan(**plan) for step, plan in progress.get("plans", {}).items()
        }
        self._take_speeds(progress.get("speeds", []))
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
        """Recover from a lost worker. Only this round runs again, unless copies of client states are lost as well: then
        all rounds since the checkpoint.
        """
        if not all(server.stateless for server in self.servers) and not self.executor.restore_states():
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
                state["progress"]
                | {"plans": _as_values(self.executor.plans[variant] | self._next_plans[variant])}
                | {"speeds": self.speeds()},
                lambda aside: self.executor.save_states(variant, aside, server.committed),
                server.history,
            )
            self.executor.checkpoints[variant] = self._saved[variant]
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
                folder.update(plans=_as_values(plans))

    def _review_speeds(self) -> None:
        """From time to time, let the executor compare measured speeds, and record those of the next round."""
        is_measured = self.servers[0].experiment.resources.speeds == "measured"
        if not is_measured or self.round % REVIEW or self.round <= self._last_review or self.done:
            return
        persist(f"round {self.round}", partial(self.executor.review_speeds, self.round + 1), self._recover)
        self._last_review = self.round
        folder = self._run_folders[0]
        if folder and folder.exists:
            folder.update(speeds=self.speeds(), last_speed_review=self._last_review)

    def _take_speeds(self, changes: list[dict[str, Any]]) -> None:
        """Use recorded speeds, unless those in use continue them."""
        if len(changes) > len(self.executor.speeds):
            self.executor.speeds = [SpeedChange(**change) for change in changes]

    def _check_claim(self) -> None:
        if self.claim:
            self.claim.check()


def _as_values(plans: dict[str, ExecutionPlan]) -> dict[str, Any]:
    """Plans as JSON values."""
    return {step: asdict(plan) for step, plan in plans.items()}


def _remedy(error: Exception) -> str:
    """Fix for a checkpoint that cannot be written, for the error message."""
    # Ray wraps the error of an actor.
    cause = getattr(error, "cause", error)
    if isinstance(cause, Altered):
        return "stop other programs from writing to this file"
    if getattr(cause, "errno", None) in DISK_FULL:
        return "free disk space there"
    return "make sure that its folder can be read and written"
