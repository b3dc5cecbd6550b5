"""Hedge search: all configurations train in parallel, and their weights are updated each round."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.platform.data.partitions.task_stream import Stream
from hedgerow.searchspaces.hedge.async_rounds import check_range
from hedgerow.searchspaces.hedge.deployment import Deployment
from hedgerow.searchspaces.hedge.elimination import Elimination
from hedgerow.searchspaces.hedge.promotion import Promotion
from hedgerow.searchspaces.hedge.promotion_scheduler import PromotionScheduler
from hedgerow.searchspaces.hedge.scheduler import ROUND, HedgeHooks, HedgeScheduler, TrialRules
from hedgerow.searchspaces.hedge.weights import Hedge, make_hedge
from hedgerow.searchspaces.spaces.packing import members
from hedgerow.searchspaces.spaces.search_section import (
    STREAM,
    KeptRounds,
    SearchKind,
    SearchSetup,
    evaluated_metrics,
)

BOUNDED = ("fixed", "tuned", "anytime", "adahedge")
"""Rates whose regret has a bound with stopped experts."""

RATES = {"gamma": ("fixed", "fixed_share"), "share": ("fixed_share",), "exploration": ("exp3", "exp3_ix")}
"""Rates that use each of these keys."""

COMEBACK = 0.05
"""`comeback` on a stream whose file does not say it."""


class HedgeSearch(SearchKind):
    """Online search with Hedge: each configuration is an expert, reweighted every round (thesis, Algorithm 10)."""

    pauses_trials: ClassVar[bool] = True
    weighs_rounds: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = (
        *("metric", "mode", "range", "loss", "rate", "gamma", "share", "exploration", "missing", "comeback", "prune"),
        *("allocate", "grace", "reduction", "smooth"),
    )

    allocate: Literal["rounds", "promote"] = Field(
        "rounds",
        description="rounds: all experts train the same rounds; promote: the better ones first, on a fixed data set",
    )
    grace: int = Field(2, ge=1, description="evaluations of each expert before one is promoted (allocate: promote)")
    reduction: int = Field(3, ge=2, description="one in this many experts is promoted at each rung (allocate: promote)")
    gamma: float = Field(
        0.1, gt=0, lt=1, description="each round multiplies a weight by gamma^loss (rates fixed and fixed_share)"
    )
    loss: Literal["scaled", "raw"] = Field(
        "scaled",
        description="loss that gamma refers to: the metric scaled to [0, 1], or the metric itself, such as the "
        "cross-entropy of the thesis; raw needs `range`",
    )
    rate: Literal["fixed", "tuned", "anytime", "adahedge", "fixed_share", "leader", "exp3", "exp3_ix"] = Field(
        "fixed",
        description="learning rate of the weights; default for a loss without `range` and `gamma`: adahedge; exp3 and "
        "exp3_ix observe one expert per round",
    )
    share: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="fraction of the weight that is spread over all experts each round (rate: fixed_share)",
    )
    exploration: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="exp3: share of uniform draws (null: 0); exp3_ix: added to the probability that divides the "
        "observed loss (null: half the learning rate)",
    )
    range: list[float] | None = Field(
        None,
        description="[low, high] of the metric; null: an accuracy, or an unbounded loss, which requires rate adahedge",
    )
    missing: Literal["penalise", "skip"] = Field(
        "penalise", description="loss of an expert that failed permanently: the worst loss in every round, or none"
    )
    ahead: int | None = Field(
        None,
        ge=0,
        description="rounds that an expert may be ahead of another; 0: lock-step, no expert begins a round before all "
        "have run the one before, whatever report_every is; null: 0 on a stream, otherwise 20",
    )
    deploy: Literal["leader", "sample", "mixture"] = Field(
        "leader",
        description="whose model SEARCH/deployed has: the expert with the largest weight (allocate: promote: the best "
        "score), one drawn from the weights, or all experts, with the weighted mean of their predicted probabilities",
    )
    deploy_every: int = Field(
        1, ge=0, description="rounds between two replacements of SEARCH/deployed, in complete rounds; 0: never"
    )
    comeback: Annotated[float, Field(ge=0, le=1)] | Literal["off"] | None = Field(
        None,
        description="on a stream, stop experts that could become the best only with a larger advantage than this in "
        "each of the remaining rounds, on average; 1: those that cannot become the best; off: none; null: 0.05 where "
        "it has a bound, unless `prune`, `record` or the size of `pack` rules it out",
    )
    prune: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="stop experts whose weight falls below this, without a bound on the regret; 0: never",
    )

    @model_validator(mode="before")
    @classmethod
    def _rate(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        lower = values.get("mode") == "min" or mode_of(str(values.get("metric"))) == "min"
        if lower and values.get("range") is None and not {"rate", "gamma"} & values.keys():
            return {**values, "rate": "adahedge"}
        return values

    def build(self, setup: SearchSetup) -> tuple[None, HedgeScheduler | PromotionScheduler]:
        """Returns no searcher, and the scheduler of Hedge or of promotion with the settings of the file."""
        experts = len(setup.configurations)
        if self.allocate == "promote":
            reports, steps = _scored_rounds(setup.experiment), (self.grace, self.reduction)
            return None, PromotionScheduler(
                Promotion(experts, reports, *steps, self.smooth, self.gamma, self.share),
                setup.room,
                self.metric,
                self.mode,
                range=(self.range[0], self.range[1]) if self.range else None,
                seed=setup.experiment.seed,
                deployment=self._deployment(setup) if self.deploy_every else None,
                warn=setup.warn,
                on_block=setup.on_block,
            )
        rules = TrialRules(
            ahead=self._ahead(setup.experiment),
            # Otherwise, models of experts that are ahead could fill the disk.
            strict=self.deploy_every > 0,
            missing=self.missing,
            prune=self.prune,
            elimination=self._elimination(setup.experiment),
        )
        hooks = HedgeHooks(
            on_round=setup.on_round,
            warn=setup.warn,
            averaged=(*evaluated_metrics(setup.experiment), *STREAM),
            seed=setup.experiment.seed,
            members=members,
            journal=setup.journal,
            deployment=self._deployment(setup),
        )
        bounds = (self.range[0], self.range[1]) if self.range else None
        hedge = self._hedge(setup.experiment)
        return None, HedgeScheduler(ROUND, self.metric, self.mode, bounds, experts, hedge, rules, hooks)

    def rounds_per_report(self, experiment: Experiment) -> int:
        """One if rounds are lock-step, where an expert waits after each of its rounds, or if experts are promoted."""
        return self.report_every if self._ahead(experiment) and self.allocate == "rounds" else 1

    def reports_together(self, experiment: Experiment) -> bool:
        """Lock-step rounds, unless each may be the last one of an expert."""
        return not self._ahead(experiment) and self.alone_by is None

    def kept_rounds(self, experiment: Experiment) -> KeptRounds:
        """All rounds with the metric; models only where they are deployed."""
        return KeptRounds(self.metric, self.deploy_every, predictions=self.allocate == "rounds")

    def _ahead(self, experiment: Experiment) -> int:
        if self.ahead is not None:
            return self.ahead
        return 0 if isinstance(experiment.task.partition, Stream) else 20

    def _deployment(self, setup: SearchSetup) -> Deployment | None:
        if setup.deployed is None or setup.expert_folder is None:
            return None
        return Deployment(
            setup.deployed,
            setup.expert_folder,
            self.deploy,
            self.deploy_every,
            setup.experiment.rounds,
            setup.predictions,
            setup.warn,
        )

    def on(self, experiment: Experiment) -> Self:
        """On a stream, experts that can hardly win any more are stopped by default."""
        search = super().on(experiment)
        excluded = self.allocate != "rounds" or self.rate not in BOUNDED or self.prune or self.record
        if excluded or isinstance(self.pack, int) or not experiment.task.partition.is_stream:
            return search
        return search if self.comeback is not None else search.model_copy(update={"comeback": COMEBACK})

    @property
    def _rho(self) -> float | None:
        """`comeback` as a number; None: no expert is stopped by it."""
        return None if self.comeback == "off" else self.comeback

    def check(self, experiment: Experiment) -> None:
        """Raises UserError when the range of the losses or the evaluation settings do not suit Hedge."""
        self._check_allocation(experiment)
        self._check_raw()
        check_range("search.range", self.mode, self.range, self.rate == "adahedge")
        if self._rho is not None:
            self._check_comeback(experiment)
        if key := experiment.early_end:
            raise UserError(
                f"{key} cannot be used with kind hedge, which weights all experts in every round; remove it"
            )
        if self.rate in ("tuned", "exp3", "exp3_ix") and experiment.evaluation.every > experiment.rounds:
            raise UserError(f"search.rate: `{self.rate}` needs at least one evaluated round; lower evaluation.every")

    @property
    def alone_by(self) -> str | None:
        """Key that stops or pauses single experts, which rules out packs, since a trial does so only as a whole."""
        if self.allocate == "promote":
            return "`allocate: promote`"
        return "`comeback`" if self._rho is not None else "`prune`" if self.prune else None

    @property
    def ends_trials_by(self) -> str | None:
        """Key that stops experts; promotion gives all of them their last round in the end."""
        return None if self.allocate == "promote" else self.alone_by

    def _check_allocation(self, experiment: Experiment) -> None:
        """Raises UserError when experts cannot be promoted here, or when a key has no effect."""
        if self.allocate == "rounds":
            self._check_without_effect("grace", "reduction", why="all experts train the same rounds")
            unused = [key for key, rates in RATES.items() if self.rate not in rates]
            self._check_without_effect(*unused, why=f"`rate: {self.rate}` does not use it")
            return
        if isinstance(experiment.task.partition, Stream):
            raise UserError(
                "search.allocate: promote lets experts rest, and an expert that rests on a stream misses tasks; remove "
                "it: `comeback` stops experts there"
            )
        if (evaluations := _scored_rounds(experiment)) <= self.grace:
            raise UserError(
                f"search.grace: {self.grace} is not below the number of evaluations of a trial, {evaluations}, so that "
                "no expert would be promoted; lower it, or evaluation.every"
            )
        if self.mode == "min" and self.range is None:
            raise UserError(
                "search.range: `allocate: promote` needs losses in [0, 1]; set a range such as [0, 4.6] for "
                f"{self.metric}"
            )
        if self.deploy == "mixture":
            raise UserError(
                "search.deploy: mixture needs predictions of all experts after the same round, which `allocate: "
                "promote` does not give; set it to leader or sample"
            )
        if self.deploy_every > 1:
            raise UserError("search.deploy_every: `allocate: promote` deploys after each block; set it to 1 or 0")
        stops = ("comeback",) if self._rho is not None else ()
        keys = ("rate", "loss", "exploration", "missing", "ahead", *stops, "prune")
        self._check_without_effect(*keys, why="`allocate: promote` weighs by fixed_share and stops no expert")

    def _check_without_effect(self, *keys: str, why: str) -> None:
        """Raises UserError when one of these keys is set."""
        for key in keys:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise UserError(f"search.{key} has no effect: {why}; remove it")

    def _check_comeback(self, experiment: Experiment) -> None:
        """Raises UserError when the rule has no bound here."""
        if not isinstance(experiment.task.partition, Stream):
            raise UserError(
                "search.comeback stops experts on a stream, whose rounds do not come back; this data set is fixed: "
                "remove it, or use `kind: asha`"
            )
        if self.rate not in BOUNDED:
            raise UserError(
                f"search.comeback: rate {self.rate} has no bound with stopped experts; set `rate` to fixed, tuned, "
                "anytime or adahedge, or remove `comeback`"
            )
        if self.prune:
            raise UserError("search.comeback and search.prune both stop experts; remove one of them")

    def _check_raw(self) -> None:
        """Raises UserError when `loss: raw` has no range, no gamma, or too wide a range."""
        if self.loss != "raw":
            return
        if self.mode == "max" or self.range is None:
            raise UserError(
                "search.loss: `raw` is for a metric to be minimised with a range, such as `metric: validation_loss` "
                "with `range: [0, 4.6]`; set both, or remove `loss`"
            )
        if self.rate not in ("fixed", "fixed_share"):
            raise UserError(f"search.loss: rate {self.rate} has no gamma; remove `loss`, or set `rate: fixed`")
        if self._gamma == 0:
            raise UserError(
                f"search.loss: gamma {self.gamma:g} to the power of the width of the range {self.range} is 0 in double "
                "precision; raise gamma, or narrow the range"
            )

    @property
    def _gamma(self) -> float:
        """Gamma per unit of the scaled loss: with range [low, high], g per unit of the metric is g^(high - low)."""
        return self.gamma ** (self.range[1] - self.range[0]) if self.loss == "raw" and self.range else self.gamma

    def _hedge(self, experiment: Experiment) -> Callable[[int], Hedge]:
        """Function that returns Hedge with the rate of the file for a number of experts."""
        return partial(
            make_hedge,
            self.rate,
            gamma=self._gamma,
            rounds=self._losses(experiment),
            share=self.share,
            seed=experiment.seed,
            exploration=self.exploration,
        )

    def _elimination(self, experiment: Experiment) -> Elimination | None:
        if self._rho is None:
            return None
        return Elimination(self._rho, self._losses(experiment), in_range=self.mode == "max" or self.range is not None)

    def _losses(self, experiment: Experiment) -> int:
        """Number of losses of each expert: of a metric of the training, one in every round."""
        return experiment.rounds if self.metric.startswith("train_") else _scored_rounds(experiment)


def _scored_rounds(experiment: Experiment) -> int:
    """Number of evaluated rounds; in a stream, all."""
    stream = isinstance(experiment.task.partition, Stream)
    return -(-experiment.rounds // (1 if stream else experiment.evaluation.every))
