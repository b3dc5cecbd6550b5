"""The federated loop: an iterator of rounds over clients, for one experiment or for several in lock step.

Everything above (Ray, Tune, MLflow, checkpoints, reports) sees only: next(), save(), and the learners' records.
"""

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from hedgerow.algorithms.core.messages import Result
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.dispatch import Dispatcher
from hedgerow.platform.executors import Deadly, Executor, WorkerLost
from hedgerow.platform.heartbeat import beat
from hedgerow.platform.learner import Learner, Record, Request
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
from hedgerow.platform.storage.run_lock import Claim

PATIENCE = 5
"""How often in a row workers may be lost before the run gives up."""

SUSPICIOUS = 2
"""How often in a row in the same round, until it is found out whether a client is the cause."""

DEATHS = 2
"""How often the worker of a client dies, while it works on that one alone, until the client is quarantined."""


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a file system in which nothing more can be stored."""

CarryOut = Callable[[list[tuple[int, Request]]], list[Result]]
"""Carries out requests, each with its expert."""


class FederatedRun(Iterator[dict[int, Record]]):
    """Rounds of some learners on one executor; each `next` runs one round of those that are least far.

    It returns the record of each, by number. Learners that differ in floats only share the work of a round, chunk by
    chunk.

    folders: where each learner's checkpoints go; it goes on from the last one that lies there. None keeps none, and
    then a lost worker means starting again from round 1. claim: by which this process may write there; None: nothing
    else can write there.
    """

    def __init__(
        self, learners: list[Learner], executor: Executor, folders: list[Path | None], claim: Claim | None = None
    ):
        self.learners, self.executor, self.folders, self.claim = learners, executor, folders, claim
        self._dispatcher = Dispatcher(learners, executor)
        self._saved: dict[int, Path] = {}
        self._passed_over: dict[Path, str] = {}
        self.reload()

    def __next__(self) -> dict[int, Record]:
        going = self._least_far()
        if not going:
            raise StopIteration
        target = self.learners[going[0]].round + 1

        def rest(carry_out: CarryOut = self._dispatcher.carry_out) -> None:
            self._one_round([expert for expert in going if self.learners[expert].round < target], carry_out)

        if not self._patiently(rest, self._recover, SUSPICIOUS):
            self._quarantine(partial(rest, self._dispatcher.one_by_one))
            self._persistently(f"round {target}", rest, self._recover)
        return {expert: self.learners[expert].history[-1] for expert in going}

    @property
    def round(self) -> int:
        """The last round that all learners have behind them, but those that ended early."""
        going = self._least_far()
        return self.learners[going[0]].round if going else max(learner.round for learner in self.learners)

    @property
    def done(self) -> bool:
        """Whether all rounds of all learners are run."""
        return not self._least_far()

    @property
    def warnings(self) -> list[str]:
        """A sentence about each damaged checkpoint that was passed over."""
        return list(self._passed_over.values())

    def save(self) -> list[Path]:
        """Write a checkpoint of every learner at its present round, unless that is done; returns the folders.

        Raises UserError when another process has taken the run over.
        """
        for expert, (learner, folder) in enumerate(zip(self.learners, self.folders, strict=True)):
            assert folder is not None
            saved = self._saved.get(expert)
            if saved is None or saved.parent != folder or round_of(saved) != learner.round:
                write = partial(self._write, expert, folder)
                self._check_claim()
                self._persistently(f"checkpoint {learner.round}", write, self._back)
                # Again: a process can be suspended for long while it writes, and would delete the other one's rounds.
                self._check_claim()
                prune(folder, learner.experiment.checkpoints.keep, self._saved[expert])
        return [self._saved[expert] for expert in range(len(self.learners))]

    def load(self, expert: int, checkpoint: Path) -> None:
        """Let a learner continue from a checkpoint folder, its own or another's. Raises DamagedCheckpoint."""
        server, progress = read_checkpoint(checkpoint)
        self.learners[expert].load_state_dict({"server": server, "progress": progress})
        self.executor.load_states(expert, checkpoint)
        self._saved[expert] = checkpoint

    def load_newest(self, expert: int, folder: Path) -> bool:
        """Whether there is an intact checkpoint in a folder, from which the learner then continues."""
        for checkpoint in newest_first(folder):
            try:
                self.load(expert, checkpoint)
            except DamagedCheckpoint as error:
                # One that is gone was deleted for a newer one.
                if checkpoint.exists():
                    self._passed_over[checkpoint] = passed_over(checkpoint, error.reason)
            else:
                return True
        return False

    def reload(self) -> None:
        """Let all learners continue from their last intact checkpoints."""
        self._replay([0] * len(self.learners))

    # ---- one round ----------------------------------------------------------------------------------------------

    def _least_far(self) -> list[int]:
        """The experts whose next round comes first; none when all are at their end."""
        left = {e: one.round for e, one in enumerate(self.learners) if not one.done}
        return [expert for expert, round in left.items() if round == min(left.values())]

    def _one_round(self, experts: list[int], carry_out: CarryOut) -> None:
        """Drive the rounds of some learners side by side: what they want at the same time is carried out at once."""
        rounds = {expert: self.learners[expert].one_round() for expert in experts}
        results: dict[int, list[Result] | None] = dict.fromkeys(experts)
        while True:
            wanted: dict[int, list[Request]] = {}
            for expert, generator in list(rounds.items()):
                try:
                    wanted[expert] = generator.send(results[expert])  # type: ignore[arg-type]
                except StopIteration:
                    del rounds[expert]
                beat()
            if not wanted:
                return
            answers = iter(carry_out([(e, request) for e, some in wanted.items() for request in some]))
            results = {expert: [next(answers) for _ in some] for expert, some in wanted.items()}

    # ---- nothing is lost ----------------------------------------------------------------------------------------

    def _persistently(self, what: str, action: Callable[[], None], recover: Callable[[], None]) -> None:
        if not self._patiently(action, recover, PATIENCE):
            raise RuntimeError(f"{what}: client actors died {PATIENCE} times in a row")

    def _patiently(self, action: Callable[[], None], recover: Callable[[], None], times: int) -> bool:
        """Whether it was done without the loss of a worker, in so many attempts."""
        for _ in range(times):
            try:
                action()
                return True
            except WorkerLost:
                recover()
        return False

    def _quarantine(self, round_one_by_one: Callable[[], None]) -> None:
        """Run a round with one client after the other until no worker dies, and leave out those who kill theirs.

        Then all is as before that round. Raises RuntimeError when they are too many.
        """
        before = [learner.round for learner in self.learners]
        # So that rounds which were told are not run again with a client that has become deadly since.
        self._save_again()
        deaths: Counter[tuple[int, int]] = Counter()
        while True:
            try:
                self._persistently("a round with one client after the other", round_one_by_one, self._back)
                break
            except Deadly as error:
                self._replay(before)
                deaths[error.expert, error.client] += 1
                if deaths[error.expert, error.client] > DEATHS:
                    raise RuntimeError(f"client {error.client} was left out, and still kills its process") from error
                if deaths[error.expert, error.client] == DEATHS:
                    self.learners[error.expert].quarantine(error.client)
                    self._save_again()
        self._replay(before)

    def _save_again(self) -> None:
        """Also where this round is saved already."""
        self._saved.clear()
        if None not in self.folders:
            self.save()

    def _recover(self) -> None:
        """A worker died. Without client states only the round at hand is lost; with them, all since the checkpoint."""
        if not all(learner.stateless for learner in self.learners):
            self._back()

    def _back(self) -> None:
        self._replay([learner.round for learner in self.learners])

    def _replay(self, targets: list[int]) -> None:
        """Back to the last checkpoints, and forward again: rounds are functions of state and number."""

        def replay() -> None:
            for expert, folder in enumerate(self.folders):
                if folder is None or not self.load_newest(expert, folder):
                    self.learners[expert].restart()
                    self.executor.load_states(expert, None)
            while any(one.round < target for one, target in zip(self.learners, targets, strict=True)):
                self._one_round(self._least_far(), self._dispatcher.carry_out)

        self._persistently(f"round {max(targets)}", replay, lambda: None)

    def _check_claim(self) -> None:
        if self.claim:
            self.claim.check()

    def _write(self, expert: int, folder: Path) -> None:
        learner = self.learners[expert]
        state, target = learner.state_dict(), folder / f"round-{learner.round:08d}"
        try:
            self._saved[expert] = write_checkpoint(
                target,
                state["server"],
                state["progress"],
                lambda aside: self.executor.save_states(expert, aside, learner.committed),
                learner.history,
            )
        except (OSError, SafetensorError, Altered) as error:
            # That of an actor begins with its traceback.
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"checkpoints: {target} cannot be written ({reason}); {_remedy(error)}, then `hedgerow resume` "
                "continues from the one before"
            ) from error


def _remedy(error: Exception) -> str:
    """What makes it possible to write a checkpoint, after it has failed."""
    # Ray wraps that of an actor.
    cause = getattr(error, "cause", error)
    if isinstance(cause, Altered):
        return "let nothing else write to this file"
    if getattr(cause, "errno", None) in FULL:
        return "make room there"
    return "make sure that its folder can be read and written"
