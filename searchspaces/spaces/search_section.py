"""The `search` section of an experiment file: what all kinds of search have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, create_model, field_validator, model_validator

from hedgerow.platform.common.registry import Registry
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces import SEARCH_KINDS

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

Overrides = dict[str, Any]
"""Values by the dotted key that they replace in the experiment file: {"algorithm.lr": 0.1}."""

FORMS = ("grid", "choice", "uniform", "loguniform", "integers")
"""How a key's values are given; `grid` lists all, the others are drawn from."""


class Dimension(Section):
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
"""What learners of streams report in addition to test_accuracy and test_loss, which are of the round's own task."""


@dataclass(frozen=True)
class SearchSetup:
    """What a kind of search builds its searcher and scheduler from.

    values: the experiment file without `search`. configurations: of the trials, by number; where they are proposed one
    by one, those that an interrupted search has tried. journal: file that a scheduler may write. on_round: takes
    records of the search's own rounds. warn: takes sentences for the user.
    """

    experiment: Experiment
    values: dict[str, Any]
    configurations: list[Overrides]
    journal: Path
    on_round: Callable[[dict[str, Any]], None]
    warn: Callable[[str], None]


class SearchKind(Section):
    """A kind of search: its keys, and how Ray Tune carries it out. Derive from it for a kind of your own."""

    treats_trials_alone: ClassVar[bool] = False
    """Whether it starts, stops or changes each trial by itself, so that trials cannot be packed."""

    pauses_trials: ClassVar[bool] = False
    """Whether its scheduler pauses trials. Tune counts these as running, so it is given no limit then."""

    proposes: ClassVar[bool] = False
    """Whether a searcher proposes the configurations one by one; else all are known before the search starts."""

    weighs_rounds: ClassVar[bool] = False
    """Whether it compares trials in every round, and not only at their end."""

    kind: Any
    space: dict[str, Dimension] = Field(description="keys of this file and their values, or the name of a known space")
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
            values = {**values, "mode": mode_of(str(values.get("metric", "accuracy"))) or "max"}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.space:
            raise ValueError("`space` is empty; name at least one key, such as `algorithm.lr: [0.01, 0.1]`")
        natural = mode_of(self.metric)
        if natural and natural != self.mode:
            raise ValueError(
                f"`mode: {self.mode}` contradicts `metric: {self.metric}`, of which {natural} is better; set "
                f"`mode: {natural}` or leave it out"
            )
        drawn = [key for key, entry in self.space.items() if entry.form != "grid"]
        if drawn and self.samples is None:
            raise ValueError(f"`samples` is missing: how many draws of {', '.join(drawn)}? Add `samples: 10`")
        if not drawn and self.samples is not None and not self.proposes:
            raise ValueError("`samples` has nothing to draw: every key of the space is a grid; remove it")
        return self

    @model_validator(mode="after")
    def _packs_where_trials_end_together(self) -> Self:
        if self.alone_by and isinstance(self.pack, int):
            raise ValueError(f"`pack: {self.pack}` does not go with {self.alone_by}, which treats each trial alone")
        return self

    def build(self, setup: SearchSetup) -> "tuple[Searcher | None, TrialScheduler | None]":
        """Ray Tune's searcher and scheduler.

        Without a searcher, the trials are the configurations of the file; without a scheduler, each runs to its end. A
        reported result has the entries `round`, those of the round's record, and `done`.
        """
        raise NotImplementedError

    def check(self, experiment: Experiment) -> None:
        """Check what depends on the experiment, before any work. Raises UserError."""

    @property
    def alone_by(self) -> str | None:
        """The setting that keeps the trials apart, if there is one."""
        return f"kind {self.kind}" if self.treats_trials_alone else None

    @property
    def packed(self) -> int | Literal["auto"] | None:
        """Configurations in a trial at most; None: one, which is on its own."""
        return None if self.pack == "off" or self.alone_by else self.pack


def mode_of(metric: str) -> str | None:
    """Whether more ("max") or less ("min") of a metric is better, where its name says it."""
    return next((mode for part, mode in MODES.items() if part in metric.split("_")), None)


KINDS = Registry(SEARCH_KINDS, SearchKind, "search.kind")
"""What `search.kind` takes: a built-in name, or the dotted path of the user's own SearchKind."""


@cache
def any_search() -> Any:
    """The type of the section `search`: one of the kinds. A function, since the kinds import this module."""
    return KINDS.union()


@cache
def search_file() -> type[Section]:
    """The part of an experiment file that a plain run leaves out: a section with the one key `search`."""
    search: Any = (any_search(), Field())
    return create_model("SearchFile", __base__=Section, search=search)
