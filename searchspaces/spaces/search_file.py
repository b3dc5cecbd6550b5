"""Reads and validates the experiment file of a search, including its `search` section."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hedgerow.platform.common.errors import UserError, mistakes
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, nearest
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import enter_folder_of, parse_experiment, read_experiment, read_file
from hedgerow.platform.config.measures_section import measure_name
from hedgerow.platform.config.model_selection import uses_test_samples
from hedgerow.platform.config.resources import Device
from hedgerow.platform.config.validation_errors import explain
from hedgerow.platform.config.yaml_reader import Lines, dump_values
from hedgerow.searchspaces.spaces.published_spaces import named_space
from hedgerow.searchspaces.spaces.search_section import (
    VALIDATION,
    SearchKind,
    evaluated_metrics,
    search_file,
)
from hedgerow.searchspaces.spaces.space import (
    Overrides,
    Space,
    configurations,
    corners,
    frozen,
    may_hold,
    with_overrides,
)

SEARCHABLE = (
    *("algorithm", "task.model", "task.partition", "seed", "clients_per_round"),
    *("aggregation", "transforms", "objective", "fedex", "simulation", "schedule", "privacy", "engine"),
)
"""Keys that may differ between the trials of a search; all trials share data, rounds, evaluation and resources."""

HELD_BACK = {"fraction": 0.1, "from": "clients"}
"""Section `task.validation` of a search by a validation metric whose file has none."""


@dataclass(frozen=True)
class SearchSpec:
    """A validated search. values: the experiment file without `search`. configurations: known before the start."""

    experiment: Experiment
    search: SearchKind
    values: dict[str, Any]
    configurations: list[Overrides]

    def trial(self, overrides: Overrides) -> Experiment:
        """The experiment of one configuration. Raises UserError."""
        return parse_experiment(with_overrides(self.values, overrides))

    def with_device(self, device: Device) -> "SearchSpec":
        """The search with the chosen device of all its trials."""
        resources = (self.values.get("resources") or {}) | {"device": device}
        return replace(
            self, experiment=self.experiment.with_device(device), values=self.values | {"resources": resources}
        )

    @property
    def selects_on_test(self) -> bool:
        """Whether test samples of a fixed data set, or the clients' evaluation, take part in the selection."""
        return _test_metric(self.search, self.experiment) is not None

    @property
    def resolved(self) -> dict[str, Any]:
        """The file with every default filled in."""
        search = self.search.model_dump(mode="json", exclude_none=True)
        return self.experiment.model_dump(mode="json") | {"search": search}

    def dump(self) -> str:
        """The resolved file as YAML; loading it gives the same search."""
        return dump_values(self.resolved)


def load_search(path: str | Path, overrides: Sequence[str] = ()) -> SearchSpec:
    """Read and validate an experiment file with a `search` section.

    overrides: strings "key.key=value", as for --set. Raises UserError that lists all mistakes in the file.
    """
    enter_folder_of(Path(path))
    values, lines = read_file(Path(path), overrides)
    return parse_search(values, lines, str(path))


def read_search(path: str | Path) -> SearchSpec:
    """Read the file of a started search, for callers that do not continue it.

    Does not import anything that the file names, and does not validate its configurations again. Raises UserError.
    """
    values, lines = read_file(Path(path), imports=False)
    _require_section(values, str(path))
    section = _search_section(values.pop("search"), lines, str(path), imports=False)
    search, experiment = section, read_experiment(path)
    resolved = experiment.model_dump(mode="json")
    configs = configurations(search.space, resolved, search.samples, experiment.seed)
    return SearchSpec(experiment, search, values, _trials(search, configs))


def _require_section(values: dict[str, Any], source: str) -> None:
    if "search" not in values:
        raise UserError(f"{source}: there is no `search:` section; add one, as in examples/digits_hedge.yaml")


def parse_search(values: dict[str, Any], lines: Lines | None = None, source: str = "experiment") -> SearchSpec:
    """Validate plain values, including `search`. lines, source: their origin, for error messages. Raises UserError."""
    lines = lines or {}
    _require_section(values, source)
    base, section = {key: value for key, value in values.items() if key != "search"}, values["search"]
    others: UserError | None = None
    try:
        experiment = parse_experiment(base, lines, source)
        if experiment.seeds:
            raise UserError(f"{lines.get(('seeds',), source)}: seeds: a search has one seed for all trials; set `seed`")
        if not experiment.task.partition.is_stream and isinstance(section, dict):
            section = _with_metric(section, experiment)
    except UserError as error:
        others = error
    try:
        search = _search_section(section, lines, source)
    except UserError as error:
        if others:
            raise mistakes(source, others.sentences + error.sentences) from None
        raise
    if others:
        raise others
    search = search.on(experiment)
    if (
        search.metric.startswith(VALIDATION)
        and not experiment.task.validation
        and not experiment.task.partition.is_stream
    ):
        base = {**base, "task": {**base["task"], "validation": HELD_BACK}}
        experiment = parse_experiment(base, lines, source)
    if (evaluation := _tested_at_the_end(search, experiment, base.get("evaluation") or {})) is not None:
        base = {**base, "evaluation": evaluation}
        experiment = parse_experiment(base, lines, source)
    try:
        _check_metric(search, experiment)
        _check_selection(search, experiment)
        _check_space(search, experiment)
        _check_recording(search, experiment)
        _check_noise(search, experiment)
        search.check(experiment)
        resolved = experiment.model_dump(mode="json")
        configs = configurations(search.space, resolved, search.samples, experiment.seed)
        _check_conditions(search.space, configs, resolved)
    except UserError as error:
        raise UserError(f"{_place(str(error), lines, source)}: {error}") from None
    # Some corners are also configurations.
    each = {frozen(overrides): overrides for overrides in (*corners(search.space, resolved), *configs)}
    for overrides in each.values():
        _check_trial(search, base, overrides, lines, source)
    if search.is_one_run:
        try:
            base = search.within_run(base, configs)
        except UserError as error:
            raise UserError(f"{_place(str(error), lines, source)}: {error}") from None
        experiment = parse_experiment(base, lines, source)
    return SearchSpec(experiment, search, base, _trials(search, configs))


def _tested_at_the_end(search: SearchKind, experiment: Experiment, evaluation: dict[str, Any]) -> dict[str, Any] | None:
    """Section `evaluation` of a search whose trials score test samples at their end alone, and whose targets are of
    validation samples; None if the file says how often, or if something in it needs all test scores.
    """
    task = experiment.task
    if "test" in evaluation or task.partition.is_stream or search.record is not None:
        return None
    known = f"{VALIDATION}{task.main_metric}" if task.validation else experiment.evaluation.target_metric
    target = evaluation.get("target_metric", known)
    needed = [search.metric, *experiment.selecting.values(), *[target] * bool(experiment.evaluation.targets)]
    return None if any(map(uses_test_samples, needed)) else {**evaluation, "test": "end", "target_metric": target}


def _with_metric(section: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Section `search` with the default metric of the task, and the mode that a metric of the user's own declares."""
    task = experiment.task
    if task.main_metric != "accuracy":
        section = {"metric": f"{VALIDATION}{task.main_metric}", **section}
    mode = task.modes.get(measure_name(str(section.get("metric"))))
    return section if mode is None else {"mode": mode, **section}


def _trials(search: SearchKind, configurations: list[Overrides]) -> list[Overrides]:
    """Configurations of the trials that are known before the start."""
    if search.is_one_run:
        return [{}]
    return [] if search.proposes else configurations


def _place(sentence: str, lines: Lines, source: str) -> str:
    """Place of the key that a sentence begins with; of the space if it begins with none that the file has."""
    key = tuple(sentence.partition(":")[0].split("."))
    return lines.get(key) or lines.get(("search", "space"), source)


def _search_section(section: Any, lines: Lines, source: str, imports: bool = True) -> SearchKind:
    if isinstance(section, dict) and isinstance(section.get("space"), str):
        place = lines.get(("search", "space"), source)
        try:
            section = {**section, "space": named_space(section["space"])}
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    if isinstance(section, dict) and "kind" not in section:
        section = {"kind": "hedge", **section}
    try:
        context = None if imports else WITHOUT_IMPORTS
        file: Any = search_file().model_validate({"search": section}, strict=True, context=context)
    except ValidationError as error:
        raise explain(error, search_file(), {"search": section}, lines, source, imports) from None
    return file.search


def _check_trial(search: SearchKind, base: dict[str, Any], overrides: Overrides, lines: Lines, source: str) -> None:
    """Raises UserError with the location of the searched key when a configuration is not a valid experiment, or has a
    value that clients replace by their draws.
    """
    places = dict(lines)
    for key in overrides:
        home = ("search", "space", key)
        places[tuple(key.split("."))] = lines.get(home, lines.get(("search", "space"), source))
    fedex = parse_experiment(with_overrides(base, overrides), places, source).fedex
    # The section of a search of kind fedex has the keys of its space.
    drawn = set(fedex.keys) & set(overrides) if fedex and not search.is_one_run else set()
    for key in sorted(drawn):
        raise UserError(
            f"{places[tuple(key.split('.'))]}: search.space.{key} has no effect, because the clients draw this key "
            "(fedex.factors); remove it from one of them"
        )


def _check_space(search: SearchKind, experiment: Experiment) -> None:
    for key in search.space:
        if not any(key == known or key.startswith(f"{known}.") for known in SEARCHABLE):
            raise UserError(
                f"search.space.{key} cannot be searched{nearest(key, SEARCHABLE)}: it is the same for all trials "
                f"(searchable keys: {', '.join(SEARCHABLE)})"
            )
        if key.startswith("task.partition") and experiment.task.partition.is_stream:
            raise UserError(f"search.space.{key} cannot be searched: the stream is the same for all trials")


def _check_recording(search: SearchKind, experiment: Experiment) -> None:
    """Raises UserError when `record: all` would not see every configuration up to its last round."""
    if search.record is None:
        return
    if search.ends_trials_by:
        raise UserError(
            f"search.record: `all` needs every configuration up to its last round, but {search.ends_trials_by} ends or "
            "changes some; record with kind grid, random or hedge, and replay the recording with `hedgerow replay`"
        )
    if key := experiment.early_end:
        raise UserError(f"search.record: `all` needs every round, but {key} ends trials early; remove it")


def _check_noise(search: SearchKind, experiment: Experiment) -> None:
    """Raises UserError when the validation of the search cannot have the noise that it asks for."""
    if search.noise is None:
        return
    validation = experiment.task.validation
    if not search.metric.startswith(VALIDATION) or validation is None:
        raise UserError(
            f"search.noise is for validation metrics, not for {search.metric}; set `metric: validation_accuracy`, or "
            "remove `noise`"
        )
    if search.noise.clients and validation.is_at_server:
        raise UserError(
            "search.noise.clients: the server scores its own samples (task.validation.from); remove it, or set "
            "`from: clients`"
        )


def _check_conditions(space: Space, found: list[Overrides], values: dict[str, Any]) -> None:
    """Raises UserError when a key never has a value. values: the experiment file."""
    for key, entry in space.items():
        # The draws of other keys may miss a condition by chance.
        never = entry.form == "grid" and not any(key in overrides for overrides in found)
        if never or not may_hold(entry.when, space, values):
            raise UserError(f"search.space.{key}: its condition {entry.when} never holds; fix or remove `when`")


def _test_metric(search: SearchKind, experiment: Experiment) -> str | None:
    """Key of the metric of test samples that takes part in the selection; None if there is none, or on a stream."""
    if experiment.task.partition.is_stream:
        return None
    if uses_test_samples(search.metric):
        return "search.metric"
    ends_trials = experiment.evaluation.stop and uses_test_samples(experiment.evaluation.target_metric)
    return "evaluation.target_metric" if ends_trials else None


def _check_selection(search: SearchKind, experiment: Experiment) -> None:
    """Raises UserError when test samples would select a configuration without permission."""
    if experiment.task.partition.is_stream and search.allow_test_selection:
        raise UserError(
            "search.allow_test_selection has no effect on a stream, whose tasks are scored before they are learnt; "
            "remove it"
        )
    key = _test_metric(search, experiment)
    if search.allow_test_selection or key is None:
        return
    metric = search.metric if key == "search.metric" else experiment.evaluation.target_metric
    instead = "validation_loss" if "loss" in metric else f"validation_{experiment.task.main_metric}"
    what = "selects by" if key == "search.metric" else "ends trials (evaluation.stop) by"
    raise UserError(
        f"{key}: {metric} {what} samples that only score the result; set `{key.partition('.')[2]}: {instead}`, or "
        "`search.allow_test_selection: true` if test data are meant to select"
    )


def _check_metric(search: SearchKind, experiment: Experiment) -> None:
    known = list(dict.fromkeys([*evaluated_metrics(experiment), experiment.evaluation.target_metric]))
    if experiment.task.partition.is_stream:
        # Hedge uses the loss of each round; the other kinds use the last round.
        known = ["test_accuracy", "test_loss"] if search.weighs_rounds else ["ctm", "ltm", "ltm_loss"]
    if search.metric not in known and not search.metric.startswith("train_"):
        raise UserError(
            f"search.metric: {search.metric!r} is not reported{nearest(search.metric, known)} (allowed: "
            f"{', '.join(known)}, or train_... for a metric of the algorithm)"
        )
    if experiment.evaluation.test == "end" and uses_test_samples(search.metric):
        raise UserError(
            f"evaluation.test: with `end`, only the last evaluation has {search.metric}, which selects; set it to every"
        )
    if search.metric.startswith("client_") and not experiment.evaluation.clients:
        raise UserError(f"search.metric: {search.metric} needs evaluation.clients above 0")
