"""Promotion as a scheduler of Ray Tune: a trial is an expert, which trains for a block of work and then rests."""

from collections.abc import Callable
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.async_rounds import LossScale
from hedgerow.searchspaces.hedge.deployment import Deployment, draw
from hedgerow.searchspaces.hedge.promotion import Promotion
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.packing import members
from hedgerow.searchspaces.spaces.smoothing import tie_breaker


class PromotionScheduler(TrialScheduler):
    """Lets trials train by the blocks of `Promotion`, and pauses them with a checkpoint between two blocks.

    rule: gives the work. room: trials that train at once. metric, mode: objective. range: its (low, high); None: it is
    an accuracy in [0, 1]. seed: of the draws of the policy `sample`. deployment: deploys a model after each block, of
    the policy leader or sample; None: none. warn: takes `warning` at the end. on_block: called with the record of each
    block.
    """

    def __init__(
        self,
        rule: Promotion,
        room: int,
        metric: str,
        mode: Literal["max", "min"],
        range: tuple[float, float] | None = None,
        seed: int = 0,
        deployment: Deployment | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
        on_block: Callable[[RoundRecord], None] = lambda record: None,
    ):
        super().__init__()
        self._metric = self.objective = metric
        self.rule, self.room, self.seed = rule, room, seed
        self.scale, self.warn = LossScale(metric, mode, range), warn
        self.deployment, self.on_block = deployment, on_block
        self._trials: dict[int, Trial] = {}
        self._rounds: dict[int, int] = {}
        """Round of each expert's latest report."""

    @property
    def leader(self) -> int | None:
        """Expert with the best score; None if none has reported."""
        return self.rule.best

    @property
    def warning(self) -> str | None:
        """Warning about the weights at the end of the search, or None."""
        if self.rule.weights.rounds:
            return self.scale.warning
        return "promotion has no weights, because no expert has completed a block of work; give the search more time"

    def end_early(self) -> None:
        """Warn at the end of a search that a budget has ended, without the callbacks of its trials."""
        if self.warning:
            self.warn(self.warning)

    # ---- callbacks of Tune --------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        expert = _expert(trial)
        if expert not in self._trials and trial.status == Trial.PENDING:
            # Paused from the start: Tune starts pending trials itself, but paused ones only when the scheduler says so.
            trial.set_status(Trial.PAUSED)
        self._trials[expert] = trial

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        expert = _expert(trial)
        self._report(expert, result)
        # Decided now, so that the next trial takes over the process of this one, or this one keeps it.
        self._assign()
        return TrialScheduler.CONTINUE if expert in self.rule.running else TrialScheduler.PAUSE

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> None:
        self._report(_expert(trial), result)
        self._end(_expert(trial), failed=False)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._end(_expert(trial), failed=True)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        # ResumableScheduler passes on permanent failures alone.
        self._end(_expert(trial), failed=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        self._assign()
        chosen = [trial for expert in self.rule.running if (trial := self._trials.get(expert))]
        return next((trial for trial in chosen if trial.status == Trial.PAUSED), None)

    def debug_string(self) -> str:
        return f"Promotion: {self.rule.weights.rounds} blocks, leader {self.leader}"

    # ---- work ---------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Give blocks of work to resting experts while there is room."""
        while len(self.rule.running) < self.room and (block := self.rule.decide()):
            self.rule.start(block)

    def _end(self, expert: int, failed: bool) -> None:
        self.rule.end(expert, failed)
        if len(self.rule.ended) == len(self.rule.losses) and self.warning:
            self.warn(self.warning)
        self._assign()

    def _report(self, expert: int, result: RoundRecord) -> None:
        if expert not in self.rule.running:
            # An interrupted search goes on with other slots than before.
            self.rule.start(self.rule.next_block(expert))
        value, self._rounds[expert] = result[self.objective], result[ROUND]
        self.scale.check(value, expert, result[ROUND])
        suffered = self.rule.report(expert, self.scale.loss(value, 1.0), tie_breaker([result], self.objective))
        if suffered is not None:
            self._close(expert, suffered)
        if self.deployment is not None:
            self.deployment.forget(result[ROUND] - 1, [expert])

    def _close(self, expert: int, suffered: float) -> None:
        """Record the end of a block, and deploy a model."""
        hedge, weights, leader = self.rule.weights, self.rule.deployed_weights, self.rule.best
        assert leader is not None, "the block has reports"
        if self.deployment is not None:
            chosen = draw(self.seed, hedge.rounds, weights) if self.deployment.policy == "sample" else leader
            self.deployment.deploy(hedge.rounds, {chosen: 1.0}, self._rounds)
        self.on_block(
            {
                "block": hedge.rounds,
                "expert": expert,
                "round": self._rounds[expert],
                "weights": weights.tolist(),
                "leader": leader,
                "hedge_loss": suffered,
                "regret": hedge.regret,
                "bound": hedge.bound(),
            }
        )


def _expert(trial: Trial) -> int:
    """Number of a trial's expert."""
    return members(trial.trial_id, trial.config)[0][0]
