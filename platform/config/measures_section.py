"""The keys `task.loss` and `task.metrics` of an experiment file."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, model_validator

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.measures import RESERVED, Mode, ScoreFunction, Scoring
from hedgerow.algorithms.measures import LOSSES, METRICS, USUAL
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, Registry, nearest
from hedgerow.platform.common.section import NamedSection


def _measure(found: Any) -> ScoreFunction | None:
    """A built-in measure, or a user's own function as one; None if it is neither."""
    if isinstance(found, ScoreFunction):
        return found
    return ScoreFunction(found) if callable(found) and not isinstance(found, type) else None


FUNCTION = "a function of (outputs, targets, mask)"
losses = Registry(LOSSES, ScoreFunction, "task.loss", enter=_measure, what=f"a loss, {FUNCTION}")
metrics = Registry(METRICS, ScoreFunction, "task.metrics", enter=_measure, what=f"a metric, {FUNCTION}")


class MeasureChoice(NamedSection):
    """A function of (outputs, targets, mask), by its name or dotted path; the name alone stands for the section."""

    registry: ClassVar[Registry[ScoreFunction]]
    dotted_key: ClassVar[str] = "name"

    name: str
    args: dict[str, Any] = Field({}, description="further keyword arguments of the function")

    @model_validator(mode="after")
    def _exists(self, info: ValidationInfo) -> Any:
        if info.context != WITHOUT_IMPORTS or "." not in self.name:
            try:
                self.measure()
            except UserError as error:
                raise ValueError(str(error)) from None
        return self

    def measure(self) -> ScoreFunction:
        """Returns the function with its arguments. Raises UserError."""
        measure: Any = self.registry.resolve(self.name, place="")
        try:
            inspect.signature(measure.function).bind(None, None, None, **self.args)
        except TypeError as error:
            raise UserError(f"{self.name} cannot be called with (outputs, targets, mask) and `args`: {error}") from None
        except ValueError:
            # A function of C++ has no signature.
            pass
        found: ScoreFunction = measure
        return replace(found, function=partial(found.function, **self.args)) if self.args else found

    @property
    def label(self) -> str:
        """Name in records: the last part of a dotted path."""
        return self.name.rpartition(".")[2]


class LossChoice(MeasureChoice):
    """The loss that is minimised: its name, or the dotted path of your own function."""

    registry = losses

    name: str = Field("cross_entropy", description=f"one of {', '.join(LOSSES)}, or the dotted path of your own")


class MetricChoice(MeasureChoice):
    """A metric of the evaluations: its name, or the dotted path of your own function."""

    registry = metrics

    name: str = Field(description=f"one of {', '.join(METRICS)}, or the dotted path of your own")
    mode: Mode | None = Field(
        None, description="whether more (max) or less (min) is better; null: as the function declares it"
    )

    @model_validator(mode="before")
    @classmethod
    def _mode_of_the_function(cls, value: Any, info: ValidationInfo) -> Any:
        value = {"name": value} if isinstance(value, str) else value
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or (info.context == WITHOUT_IMPORTS and "." in name):
            return value
        try:
            declared = metrics.resolve(name, place="").mode
        except UserError as error:
            raise ValueError(str(error)) from None
        given = value.get("mode")
        if declared is None and given is None:
            raise ValueError(
                f"{name} does not say whether more or less is better; decorate it with @metric, or write "
                f"`{{name: {name}, mode: max}}`, or min"
            )
        if declared and given and declared != given:
            raise ValueError(f"the mode of {name} is {declared}; remove `mode: {given}`")
        return {**value, "mode": given or declared}

    rules = (
        Rule(
            lambda metric: (
                (metric.label in RESERVED or metric.label.endswith(("_count", "_correct", "_loss")))
                and repr(metric.label)
            ),
            "{found} is a name of other results; rename the function",
        ),
    )


def metric_choices(loss: LossChoice, chosen: Sequence[MetricChoice] | None) -> list[MetricChoice]:
    """Metrics of a task: the chosen ones, or the usual ones of its loss."""
    if chosen is not None:
        return list(chosen)
    return [MetricChoice(name=name) for name in USUAL.get(loss.name, ())]


def scoring(loss: LossChoice, chosen: Sequence[MetricChoice] | None) -> Scoring:
    """The loss and the metrics of a task as functions. Raises UserError."""
    return Scoring(loss.measure(), {choice.label: choice.measure() for choice in metric_choices(loss, chosen)})


def main_metric_of(task: dict[str, Any]) -> str:
    """Main metric of a section `task` that is not validated yet."""

    def name(choice: Any) -> str:
        named = choice.get("name", "cross_entropy") if isinstance(choice, dict) else choice
        return named if isinstance(named, str) else ""

    metrics, loss = task.get("metrics"), task.get("loss", "cross_entropy")
    names = [name(one) for one in metrics] if isinstance(metrics, list) else USUAL.get(name(loss), ())
    return names[0].rpartition(".")[2] if names else "loss"


PREFIXES = ("server_", "teacher_", "simple_", "test_", "validation_", "client_", "train_", "best_")
SUFFIXES = ("_worst10", "_highest", "_lowest")


def measure_name(metric: str) -> str:
    """Name of the measure behind an entry of a record: "mae" of "validation_mae" or "client_mae_worst10"."""
    for prefix in PREFIXES:
        metric = metric.removeprefix(prefix)
    for suffix in SUFFIXES:
        metric = metric.removesuffix(suffix)
    return metric


def mode_of(metric: str, modes: Mapping[str, str] | None = None) -> str | None:
    """Whether an entry of a record is to be minimised ("min") or maximised ("max"); None if that is unknown.

    modes: of the task's own metrics, by name.
    """
    name = measure_name(metric)
    if mode := (modes or {}).get(name):
        return mode
    if name in METRICS:
        return metrics.resolve(name).mode  # type: ignore[attr-defined, no-any-return]
    parts = metric.split("_")
    return "max" if "accuracy" in parts else "min" if "loss" in parts else None


def target_objection(metric: str, modes: Mapping[str, str], has_targets: bool) -> str | None:
    """Returns why a metric cannot be `evaluation.target_metric`, and the fix; None if it can.

    modes: of the task's metrics, by name, the main one first.
    """
    known = [f"{of}_{name}" for of in ("test", "client", "validation") for name in modes]
    ends = [f"client_{next(iter(modes))}_{which}" for which in ("worst10", "highest", "lowest")]
    if metric not in [*known, *ends, "simple_test_accuracy"]:
        return (
            f"`evaluation.target_metric: {metric}` is not a metric of this task{nearest(metric, known)} (allowed: "
            f"{', '.join(known)})"
        )
    if has_targets and mode_of(metric) is None:
        return (
            f"`evaluation.targets` are not supported for `target_metric: {metric}`, a metric of your own; choose "
            "test_loss or a built-in metric"
        )
    return None
