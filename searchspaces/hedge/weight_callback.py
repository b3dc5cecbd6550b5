"""Callback of Ray Tune that adds Hedge's weights to the results of trials."""

import logging
import math
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.hedge.standing import incomplete

LOG = logging.getLogger(__name__)


class HedgeCallback(tune.Callback):
    """Callback of Tune that adds `hedge/weight` and `hedge/regret` to every result, for any logger.

    Both are of the latest complete round, and NaN before the first one.

    Args:
        scheduler: Scheduler of the same `tune.Tuner`.
    """

    def __init__(self, scheduler: HedgeScheduler):
        self.scheduler = scheduler

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        rounds = self.scheduler.rounds
        complete = rounds.complete > 0
        result["hedge/weight"] = self.scheduler.weight(trial) if complete else math.nan
        result["hedge/regret"] = rounds.hedge.regret if complete else math.nan

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        if not self.scheduler.rounds.complete:
            LOG.warning(incomplete(len(trials)))
