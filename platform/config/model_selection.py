"""Metrics that select a model or end a run: their direction, the samples behind them, and the rules for their use."""

from collections.abc import Mapping

from pydantic import Field

from hedgerow.platform.common.registry import nearest
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.measures_section import measure_name

EVALUATED = {"test", "validation", "client"}
"""Words in names of metrics of an evaluation: every such name has one of them."""


class Patience(Section):
    """End of a run whose metric no longer improves."""

    metric: str = Field("validation_accuracy", description="metric of evaluated rounds, such as validation_loss")
    evaluations: int = Field(ge=1, description="end the run after this many evaluations in a row without improvement")
    min_delta: float = Field(0.0, ge=0, description="an improvement is a change by more than this")


def uses_test_samples(metric: str) -> bool:
    """Whether a metric is computed from test samples or from the samples on which clients are evaluated."""
    return not metric.startswith("train_") and not {"test", "client"}.isdisjoint(metric.split("_"))


def selection_mistake(
    key: str, metric: str, modes: Mapping[str, str], has_validation: bool, scores_clients: bool, allowed: bool
) -> str | None:
    """Sentence about a metric that cannot select the best round of a run or end it; None if it can.

    key: its place in the file. modes: of the task's metrics, by name. has_validation: whether there are validation
    samples. scores_clients: whether clients are evaluated. allowed: whether test samples may select.
    """
    known = [f"{of}_{name}" for name in modes for of in ("validation", "test", "client")]
    if measure_name(metric) not in modes or not EVALUATED.intersection(metric.split("_")):
        return (
            f"`{key}`: {metric!r} is not a metric of evaluated rounds{nearest(metric, known)} (such as "
            f"{', '.join(known)})"
        )
    if "validation" in metric.split("_") and not has_validation:
        return f"`{key}: {metric}` needs validation samples; set `task.validation: {{fraction: 0.1}}`"
    if metric.startswith("client_") and not scores_clients:
        return f"`{key}: {metric}` needs `evaluation.clients` above 0"
    if uses_test_samples(metric) and not allowed:
        instead = f"validation_{measure_name(metric)}"
        return (
            f"`{key}`: {metric} selects by samples that only score the result; set it to {instead}, or "
            "`evaluation.allow_test_selection: true` if test data are meant to select"
        )
    return None
