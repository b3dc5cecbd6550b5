"""The keys `task.loss` and `task.metrics` of an experiment file."""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, model_validator
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.measures import RESERVED, Mode, ScoreFunction, Scoring, sees_all
from hedgerow.algorithms.measures import LOSSES, METRICS, USUAL
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import WITHOUT_IMPORTS, Registry, nearest
from hedgerow.platform.common.section import NamedSection


def _function(found: Any) -> ScoreFunction | None:
    """A built-in measure, or a user's own function as one; None if it is neither."""
    if isinstance(found, ScoreFunction):
        return found
    return ScoreFunction(found) if callable(found) and not isinstance(found, type) else None


def _loss(found: Any) -> ScoreFunction | None:
    """A loss is a sum over samples."""
    measure = _function(found)
    return measure if measure and not measure.sees_all else None


def _metric(found: Any) -> ScoreFunction | None:
    """A built-in metric, a user's own function or a class of torchmetrics as one; None if it is none of these."""
    if isinstance(found, type):
        # The class is there, so its package is imported, and no other one is wanted.
        package = sys.modules.get("torchmetrics")
        return of_torchmetrics(found) if package and issubclass(found, package.Metric) else None
    measure = _function(found)
    return replace(measure, sees_all=True) if measure and measure is not found and sees_all(found) else measure


def of_torchmetrics(kind: Any) -> ScoreFunction:
    """A metric of torchmetrics, which sees all samples of a split at once."""

    def value(outputs: Tensor, targets: Tensor, **args: Any) -> Tensor:
        metric = kind(**args)
        metric.update(outputs, targets)
        result: Tensor = metric.compute()
        return result

    modes: dict[bool, Mode] = {True: "max", False: "min"}
    mode = modes.get(kind.higher_is_better)
    return ScoreFunction(value, mode=mode, sees_all=True)


METRIC = re.compile(r"(?!\.)[\w. -]+(/(?!\.)[\w. -]+)*")
"""Names of metrics that MLflow records."""

PREFIXES = ("server_", "teacher_", "simple_", "test_", "validation_", "client_", "train_", "best_")
SUFFIXES = ("_worst10", "_highest", "_lowest")
"""Beginnings and ends of the entries of a record around the name of a measure."""

FUNCTION = "a function of (outputs, targets, mask)"
losses = Registry(LOSSES, ScoreFunction, "task.loss", enter=_loss, what=f"a loss, {FUNCTION}")
metrics = Registry(
    METRICS,
    ScoreFunction,
    "task.metrics",
    enter=_metric,
    what=f"a metric, {FUNCTION} or (outputs, targets), or a class of torchmetrics",
)


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
            inspect.signature(measure.function).bind(*[None] * measure.arguments, **self.args)
        except TypeError as error:
            given = "(outputs, targets)" if measure.sees_all else "(outputs, targets, mask)"
            raise UserError(f"{self.name} cannot be called with {given} and `args`: {error}") from None
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
                (
                    metric.label in RESERVED
                    or metric.label.endswith(("_count", "_correct", "_loss", *SUFFIXES))
                    or metric.label.startswith(PREFIXES)
                )
                and repr(metric.label)
            ),
            "{found} is a name of other results; rename the function",
        ),
        Rule(
            lambda metric: (natural := mode_of(metric.label)) and metric.mode not in (natural, None) and natural,
            "the mode of a metric with the name {name} is {found}, and the function's is {mode}; rename the function",
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
