"""The `search` section of an experiment file: every key, its type, its bounds, its default."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from hedgerow.platform.common.section import Section

FORMS = ("grid", "choice", "uniform", "loguniform", "integers")
"""How a key's values are given; `grid` lists all, the others are drawn from."""


class Entry(Section):
    """The values of one key of the experiment file. A plain list stands for `grid`."""

    grid: list[Any] | None = Field(None, min_length=1, description="every one of these values")
    choice: list[Any] | None = Field(None, min_length=1, description="one of these values, drawn")
    uniform: list[float] | None = Field(None, description="[low, high]: drawn evenly between them")
    loguniform: list[float] | None = Field(None, description="[low, high]: drawn evenly between their logarithms")
    integers: list[Annotated[int, Field(lt=2**63 - 1)]] | None = Field(
        None, description="[low, high]: a whole number, both ends included"
    )
    when: dict[str, Any] = Field({}, description="only where these other keys have these values (or one of a list)")

    @model_validator(mode="before")
    @classmethod
    def _list_is_grid(cls, value: Any) -> Any:
        return {"grid": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [form for form in FORMS if getattr(self, form) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(FORMS)}" + (f", not {' and '.join(given)}" if given else ""))
        bounds = self.uniform or self.loguniform or self.integers
        if bounds is not None and (len(bounds) != 2 or bounds[0] >= bounds[1]):
            raise ValueError(f"`{given[0]}` takes [low, high] with low < high, not {bounds}")
        if self.loguniform and self.loguniform[0] <= 0:
            raise ValueError(f"`loguniform` takes bounds above 0, not {self.loguniform}")
        return self

    @property
    def form(self) -> str:
        return next(form for form in FORMS if getattr(self, form) is not None)

    @property
    def values(self) -> list[Any]:
        """The values of a grid or choice, or the two bounds."""
        return getattr(self, self.form)


MODES = {"accuracy": "max", "loss": "min"}
"""Which way a metric is better, by the last part of its name."""

ACCURACIES = ("test_accuracy", "client_accuracy", "client_accuracy_worst10")
LOSSES = ("test_loss", "client_loss")
"""What every run reports on evaluated rounds; the clients' where evaluation.clients is above 0."""


STREAM = ("ctm", "ltm", "ltm_loss", "efficiency_points", "efficiency_reached")
"""What learners of streams report beside test_accuracy and test_loss, which are of the round's own task."""

ALONE = ("asha", "pbt", "optuna")
"""Kinds of search that start, stop or change each trial by itself."""


class SearchSection(Section):
    """What all kinds of search have in common."""

    kind: Any
    space: dict[str, Entry] = Field(description="keys of this file and their values, or the name of a known space")
    metric: str = Field("test_accuracy", description="what is optimised: a metric of the evaluated rounds")
    mode: Literal["max", "min"] = Field("max", description="whether more or less of it is better")
    samples: int | None = Field(None, ge=1, description="draws of the keys that are not grids")
    concurrency: int | None = Field(None, ge=1, description="trials at once; null: as many as the cluster holds")
    report_every: int = Field(10, ge=1, description="rounds between two reports of a trial")
    restarts: int = Field(3, ge=0, description="how often a trial whose process died starts again")
    pack: Annotated[int, Field(ge=1)] | Literal["auto", "off"] = Field(
        "auto",
        description="configurations that differ only in numbers such as lr train together, so many in a trial at most; "
        "auto: as many as keep every slot busy; off: each in a trial of its own",
    )

    @field_validator("pack", mode="before")
    @classmethod
    def _off_is_no_truth_value(cls, value: Any) -> Any:
        # To YAML a bare `off` is false.
        return "off" if value is False else value

    @model_validator(mode="before")
    @classmethod
    def _mode_by_metric(cls, values: Any) -> Any:
        if isinstance(values, dict) and "mode" not in values:
            values = {**values, "mode": _mode_of(str(values.get("metric", "accuracy"))) or "max"}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.space:
            raise ValueError("`space` is empty; name at least one key, such as `algorithm.lr: [0.01, 0.1]`")
        natural = _mode_of(self.metric)
        if natural and natural != self.mode:
            raise ValueError(
                f"`mode: {self.mode}` contradicts `metric: {self.metric}`, of which {natural} is better; set "
                f"`mode: {natural}` or leave it out"
            )
        drawn = [key for key, entry in self.space.items() if entry.form != "grid"]
        if drawn and self.samples is None:
            raise ValueError(f"`samples` is missing: how many draws of {', '.join(drawn)}? Add `samples: 10`")
        if not drawn and self.samples is not None and self.kind != "optuna":
            raise ValueError("`samples` has nothing to draw: every key of the space is a grid; remove it")
        return self

    @model_validator(mode="after")
    def _packs_where_trials_end_together(self) -> Self:
        if self._alone and isinstance(self.pack, int):
            raise ValueError(f"`pack: {self.pack}` does not go with {self._alone}, which treats each trial alone")
        return self

    @property
    def _alone(self) -> str | None:
        """What keeps the trials apart, if anything does."""
        return f"kind {self.kind}" if self.kind in ALONE else None

    @property
    def packed(self) -> int | Literal["auto"] | None:
        """Configurations in a trial at most; None: one, which is on its own."""
        return None if self.pack == "off" or self._alone else self.pack


def _mode_of(metric: str) -> str | None:
    return next((mode for part, mode in MODES.items() if part in metric.split("_")), None)


class HedgeSearch(SearchSection):
    """Online search: every configuration is an expert, weighted round by round (thesis, Algorithm 10)."""

    kind: Literal["hedge"] = "hedge"
    gamma: float = Field(0.1, gt=0, lt=1, description="weights shrink by gamma^loss each round (rate: fixed)")
    rate: Literal["fixed", "tuned", "anytime", "adahedge", "fixed_share", "leader"] = Field(
        "fixed",
        description="how fast the weights follow the losses; default for a loss without `range` and `gamma`: adahedge",
    )
    share: float = Field(0.01, gt=0, lt=1, description="what rate fixed_share gives back to all experts each round")
    range: list[float] | None = Field(
        None, description="[low, high] of a metric to be minimised; null: any, which only rate adahedge takes"
    )
    missing: Literal["penalise", "skip"] = Field(
        "penalise", description="an expert that died for good: the worst loss in every round, or asleep"
    )
    ahead: int = Field(20, ge=1, description="with more experts than room, rounds that one may be ahead of another")
    prune: float = Field(0.0, ge=0, lt=1, description="experts whose weight falls below this are stopped; 0: none")

    @model_validator(mode="before")
    @classmethod
    def _range_and_rate(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        # The key of files written before `range` existed.
        clip = values.pop("clip", None)
        if clip is not None:
            if "range" in values:
                raise ValueError("`clip: c` means `range: [0, c]`; remove `clip`")
            values["range"] = [0.0, clip]
        lower = values.get("mode") == "min" or _mode_of(str(values.get("metric"))) == "min"
        if lower and values.get("range") is None and not {"rate", "gamma"} & values.keys():
            values["rate"] = "adahedge"
        return values

    @property
    def _alone(self) -> str | None:
        return "`prune`" if self.prune else None


class GridSearch(SearchSection):
    """Every combination of the grids."""

    kind: Literal["grid"] = "grid"


class RandomSearch(SearchSection):
    """Configurations drawn at random."""

    kind: Literal["random"] = "random"


class AshaSearch(SearchSection):
    """Random or grid search that stops the weaker trials early (Tune's ASHAScheduler; Li et al. 2020)."""

    kind: Literal["asha"] = "asha"
    grace: int = Field(10, ge=1, description="rounds that every trial gets")
    reduction: int = Field(3, ge=2, description="one of so many goes on at every rung")


class PbtSearch(SearchSection):
    """Population based training (Tune's PopulationBasedTraining; Jaderberg et al. 2017)."""

    kind: Literal["pbt"] = "pbt"
    interval: int = Field(10, ge=1, description="rounds between two exchanges")
    quantile: float = Field(0.25, gt=0, le=0.5, description="share of the population that is replaced by the best")
    resample: float = Field(0.25, ge=0, le=1, description="chance that a key is drawn anew instead of nudged")


class OptunaSearch(SearchSection):
    """Optuna's sampler (TPE) proposes the configurations, one after the other."""

    kind: Literal["optuna"] = "optuna"
    samples: int = Field(description="how many configurations are tried", ge=1)


SearchConfig = Annotated[
    HedgeSearch | GridSearch | RandomSearch | AshaSearch | PbtSearch | OptunaSearch, Field(discriminator="kind")
]


class SearchFile(Section):
    """The part of an experiment file that a plain run leaves out."""

    search: SearchConfig
