"""The `search` section of an experiment file: keys that all kinds of search share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, create_model, field_validator, model_validator

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.registry import Registry
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.searchspaces.spaces import SEARCH_KINDS

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

Overrides = dict[str, Any]
"""Values by the dotted key that they replace in the experiment file: {"algorithm.lr": 0.1}."""

VALIDATION = "validation_"
"""Prefix of the metrics that runs with `task.validation` report in evaluated rounds."""

FORMS = ("grid", "choice", "uniform", "loguniform", "integers")
"""Forms of a key's values: `grid` tries all of them, the other forms draw from them."""


class Dimension(Section):
    """Values of one key of the experiment file. A plain list stands for `grid`."""

    grid: list[Any] | None = Field(None, min_length=1, description="try each of these values")
    choice: list[Any] | None = Field(None, min_length=1, description="draw one of these values")
    uniform: list[float] | None = Field(None, description="[low, high]: draw uniformly between the bounds")
    loguniform: list[float] | None = Field(None, description="[low, high]: draw log-uniformly between the bounds")
    integers: list[Annotated[int, Field(lt=2**63 - 1)]] | None = Field(
        None, description="[low, high]: draw an integer, bounds included"
    )
    when: dict[str, Any] = Field({}, description="only if these other keys have these values (or one of a list)")

    @model_validator(mode="before")
    @classmethod
    def _list_is_grid(cls, value: Any) -> Any:
        return {"grid": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [form for form in FORMS if getattr(self, form) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"set exactly one of {', '.join(FORMS)}" + (f", not {' and '.join(forms)}" if forms else "")
            )
        bounds = self.uniform or self.loguniform or self.integers
        if bounds is not None and (len(bounds) != 2 or bounds[0] >= bounds[1]):
            raise ValueError(f"`{forms[0]}` takes [low, high] with low < high, not {bounds}")
        if self.loguniform and self.loguniform[0] <= 0:
            raise ValueError(f"`loguniform` takes bounds above 0, not {self.loguniform}")
        return self

    @property
    def form(self) -> str:
        return next(form for form in FORMS if getattr(self, form) is not None)

    @property
    def values(self) -> list[Any]:
        """Values of a grid or choice, or the two bounds."""
        return getattr(self, self.form)


def evaluated_metrics(experiment: Experiment) -> list[str]:
    """Metrics of evaluated rounds; validation ones need task.validation, client ones evaluation.clients above 0."""
    task = experiment.task
    names = [name for name in task.modes if name != "loss"]
    worst = [f"client_{task.main_metric}_worst10"] if names else []
    places = ("validation", "test", "client")
    return [*(f"{of}_{name}" for name in names for of in places), *worst, *(f"{of}_loss" for of in places)]


STREAM = ("ctm", "ltm", "ltm_loss", "efficiency_points", "efficiency_reached")
"""Further metrics of stream learners. Their test_accuracy and test_loss are those of the round's own task."""


class Budget(Section):
    """Work after which a search ends. A trial that trains completes its round, and no other round begins."""

    client_rounds: int | None = Field(
        None,
        ge=1,
        description="of all trials together: clients that take part in a round of a trial, each counted once",
    )
    seconds: float | None = Field(
        None, gt=0, description="of wall-clock time in which trials train or start, in all sessions together"
    )

    alternatives = (("client_rounds", "seconds"),)

    @property
    def limit(self) -> float:
        """Value of the key that is set."""
        return self.client_rounds or self.seconds or 0.0

    @property
    def unit(self) -> str:
        """The key that is set."""
        return "seconds" if self.client_rounds is None else "client_rounds"


class Noise(Section):
    """Noise on the validation metric of each evaluation, to study how a search copes with it (Kuo et al. 2023)."""

    clients: int | None = Field(
        None, ge=1, description="number of random clients that score each evaluation; null: all that hold samples back"
    )
    scale: float = Field(
        0.0, ge=0, description="standard deviation of Gaussian noise on `metric`; accuracies stay in [0, 1]"
    )


@dataclass(frozen=True)
class SearchSetup:
    """Inputs from which a kind of search builds its searcher and scheduler.

    values: the experiment file without `search`. configurations: one per trial, by number; if a searcher proposes them,
    those that an interrupted search has tried. journal: file that a scheduler may write. on_round: called with records
    of the search's own rounds. warn: called with warnings for the user. deployed: folder of the state that is deployed,
    if the kind deploys one. expert_folder: run folder of a trial by its number. predictions: whether trials that
    keep their rounds (`SearchKind.kept_rounds`) can return their predictions. room: trials that train at once.
    on_block: called with records of blocks of work.
    """

    experiment: Experiment
    values: dict[str, Any]
    configurations: list[Overrides]
    journal: Path
    on_round: Callable[[dict[str, Any]], None]
    warn: Callable[[str], None]
    deployed: Path | None = None
    expert_folder: Callable[[int], Path] | None = None
    predictions: bool = False
    room: int = 1
    on_block: Callable[[dict[str, Any]], None] = lambda record: None


@dataclass(frozen=True)
class KeptRounds:
    """Rounds whose predictions and models each trial keeps until they are complete.

    metric: metric that the records of these rounds have. models: rounds between two rounds whose model it keeps;
    0: none. predictions: whether it keeps predictions, where that is possible.
    """

    metric: str
    models: int
    predictions: bool = True


class SearchKind(Section):
    """Base class of all kinds of search: their keys, and how Ray Tune runs them. Subclass it for your own kind."""

    treats_trials_alone: ClassVar[bool] = False
    """Whether it starts, stops or changes trials individually, so that they cannot be packed."""

    pauses_trials: ClassVar[bool] = False
    """Whether its scheduler pauses trials. Tune counts paused trials as running, so they get no concurrency limit."""

    proposes: ClassVar[bool] = False
    """Whether a searcher proposes the configurations one by one; otherwise, all are known before the search starts."""

    weighs_rounds: ClassVar[bool] = False
    """Whether it compares trials in every round instead of only at their end."""

    is_one_run: ClassVar[bool] = False
    """Whether its only trial is one run, in which the clients use different configurations; see `within_run`."""

    fixed: ClassVar[tuple[str, ...]] = ()
    """Keys that a search keeps when it is resumed, because they determine records of all its rounds."""

    kind: Any
    space: dict[str, Dimension] = Field(description="keys of this file and their values, or name of a published space")
    metric: str = Field(
        "validation_accuracy",
        description="metric to optimise, reported in evaluated rounds; the default is the main one of `task.metrics` "
        "on validation samples; on a stream test_accuracy, or ctm in kinds that compare last rounds",
    )
    mode: Literal["max", "min"] = Field("max", description="whether to maximise or minimise the metric")
    allow_test_selection: bool = Field(
        False,
        description="whether metrics of test samples, or of the clients' evaluation, may decide on a fixed data set; "
        "results then say that test data selected them",
    )
    samples: int | None = Field(None, ge=1, description="number of draws of the keys that are not grids")
    concurrency: int | None = Field(None, ge=1, description="maximum number of parallel trials; null: as many as fit")
    report_every: int = Field(10, ge=1, description="rounds between two reports of a trial")
    restarts: int = Field(3, ge=0, description="maximum restarts of a trial whose process died")
    pack: Annotated[int, Field(ge=1)] | Literal["auto", "off"] = Field(
        "auto",
        description="maximum number of configurations that train together in a trial if they differ only in numbers "
        "such as lr; auto: as many as keep every slot busy; off: one per trial",
    )

    record: Literal["all"] | None = Field(
        None, description="all: keep the curves of all configurations in recording.json, for `hedgerow replay`"
    )
    budget: Budget | None = Field(
        None, description="work after which the search ends; null: every trial runs as long as the kind lets it"
    )
    noise: Noise | None = Field(None, description="noise on the validation metric, for studies; null: none")
    smooth: float = Field(
        0.5,
        ge=0,
        le=1,
        description="trials are ranked by the mean of the metric over this last fraction of their evaluations; 0: by "
        "the last one, which is the default unless the metric is one of validation samples",
    )

    @field_validator("pack", "comeback", mode="before", check_fields=False)
    @classmethod
    def _off_is_no_truth_value(cls, value: Any) -> Any:
        # YAML reads a bare `off` as false.
        return "off" if value is False else value

    @model_validator(mode="before")
    @classmethod
    def _mode_by_metric(cls, values: Any) -> Any:
        if isinstance(values, dict) and "mode" not in values:
            values = {**values, "mode": mode_of(str(values.get("metric", "accuracy"))) or "max"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _smooth_by_metric(cls, values: Any) -> Any:
        # On a stream, the metrics themselves are means over tasks.
        if isinstance(values, dict) and not str(values.get("metric", VALIDATION)).startswith(VALIDATION):
            return {"smooth": 0.0, **values}
        return values

    rules = (
        Rule(
            lambda search: not search.space,
            "`space` is empty; name at least one key, such as `algorithm.lr: [0.01, 0.1]`",
        ),
        Rule(
            lambda search: (natural := mode_of(search.metric)) and natural != search.mode and natural,
            "`mode: {mode}` contradicts `metric: {metric}`, whose mode is {found}; set `mode: {found}` or remove it",
        ),
        Rule(
            lambda search: search.samples is None and ", ".join(search.drawn),
            "`samples` is missing: set the number of draws of {found}, as in `samples: 10`",
        ),
        Rule(
            lambda search: not search.drawn and search.samples is not None and not search.proposes,
            "`samples` has no effect, because every key of the space is a grid; remove it",
        ),
        Rule(
            lambda search: search.alone_by and isinstance(search.pack, int),
            "`pack: {pack}` cannot be used with {alone_by}, which treats trials individually; remove it",
        ),
        Rule(
            lambda search: search.record and search.budget,
            "`record: {record}` needs every round of every trial, and `budget` may end the search before; remove one "
            "of them",
        ),
    )

    def build(self, setup: SearchSetup) -> "tuple[Searcher | None, TrialScheduler | None]":
        """Returns Ray Tune's searcher and scheduler.

        Without a searcher, the trials are the configurations of the file; without a scheduler, each runs to completion.
        A reported result contains `round`, the entries of the round's record, and `done`.
        """
        raise NotImplementedError

    @property
    def report_smooth(self) -> float:
        """`smooth` of the metric in reports. A kind that compares trials in every round is given the values as they
        are.
        """
        return 0.0 if self.weighs_rounds else self.smooth

    def on(self, experiment: Experiment) -> Self:
        """These settings with the defaults that depend on the experiment: on a stream, tasks are scored on their test
        samples before they are learnt, and the metrics that a trial ends with are means over tasks.
        """
        if not experiment.task.partition.is_stream or "metric" in self.model_fields_set:
            return self
        smooth = self.smooth if "smooth" in self.model_fields_set else 0.0
        return self.model_copy(update={"metric": "test_accuracy" if self.weighs_rounds else "ctm", "smooth": smooth})

    def check(self, experiment: Experiment) -> None:
        """Check settings that depend on the experiment, before any work starts. Raises UserError."""

    def rounds_per_report(self, experiment: Experiment) -> int:
        """Number of rounds between two reports of a trial."""
        return self.report_every

    def reports_together(self, experiment: Experiment) -> bool:
        """Whether trials that all run at once may report several rounds together; no trial then runs ahead of another.

        Not for a kind that decides anything for a trial after each round.
        """
        return False

    def kept_rounds(self, experiment: Experiment) -> KeptRounds | None:
        """Rounds that each trial keeps in files, for a kind that deploys the models of its trials; None: none."""
        return None

    @property
    def ends_trials_by(self) -> str | None:
        """Setting that may keep a trial from its last round; None if there is none."""
        return self.alone_by

    def within_run(self, values: dict[str, Any], configurations: list[Overrides]) -> dict[str, Any]:
        """Returns the file of the run, if it `is_one_run`. values: the file without `search`. Raises UserError."""
        return values

    @property
    def drawn(self) -> list[str]:
        """Keys whose values are drawn."""
        return [key for key, entry in self.space.items() if entry.form != "grid"]

    @property
    def alone_by(self) -> str | None:
        """Setting that rules out packs; None if there is none."""
        return f"kind {self.kind}" if self.treats_trials_alone else None

    @property
    def packed(self) -> int | Literal["auto"] | None:
        """Maximum number of configurations per trial; None: packs are off."""
        return None if self.pack == "off" or self.alone_by else self.pack


KINDS = Registry(SEARCH_KINDS, SearchKind, "search.kind")
"""Accepted values of `search.kind`: a built-in name, or the dotted path of the user's own SearchKind."""


@cache
def any_search() -> Any:
    """Type of the section `search`: any kind. A function, because the kinds import this module."""
    return KINDS.choice()


@cache
def search_file() -> type[Section]:
    """Model of the part of an experiment file that a plain run does not use: a section with the one key `search`."""
    search: Any = (any_search(), Field())
    return create_model("SearchFile", __base__=Section, search=search)
