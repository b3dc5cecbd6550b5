"""Metrics that select a model or end a run: their direction, the samples behind them, and the rules for their use."""

from pydantic import Field

from hedgerow.platform.common.registry import nearest
from hedgerow.platform.common.section import Section

MODES = {"accuracy": "max", "loss": "min"}
"""Direction of optimisation, by a part of the name of the metric."""

METRICS = (
    *("validation_accuracy", "validation_loss", "test_accuracy", "test_loss"),
    *("client_accuracy", "client_accuracy_worst10", "client_loss"),
)
"""Metrics of evaluated rounds that most runs have, for suggestions."""

ENDINGS = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss")
"""Endings of all metrics of the server's evaluations: algorithms with several models put a name before them."""


class Patience(Section):
    """End of a run whose metric no longer improves."""

    metric: str = Field("validation_accuracy", description="metric of evaluated rounds, such as validation_loss")
    evaluations: int = Field(ge=1, description="end the run after this many evaluations in a row without improvement")
    min_delta: float = Field(0.0, ge=0, description="an improvement is a change by more than this")


def uses_test_samples(metric: str) -> bool:
    """Whether a metric is computed from test samples or from the samples on which clients are evaluated."""
    return not metric.startswith("train_") and not {"test", "client"}.isdisjoint(metric.split("_"))


def mode_of(metric: str) -> str | None:
    """Direction of optimisation ("max" or "min") of a metric, if its name determines it; otherwise None."""
    return next((mode for part, mode in MODES.items() if part in metric.split("_")), None)


def selection_mistake(key: str, metric: str, has_validation: bool, scores_clients: bool, allowed: bool) -> str | None:
    """Sentence about a metric that cannot select the best round of a run or end it; None if it can.

    key: its place in the file. has_validation: whether there are validation samples. scores_clients: whether clients
    are evaluated. allowed: whether test samples may select.
    """
    if mode_of(metric) is None or not (metric.endswith(ENDINGS) or metric.startswith("client_")):
        return (
            f"`{key}`: {metric!r} is no accuracy or loss of evaluated rounds{nearest(metric, METRICS)} (such as "
            f"{', '.join(METRICS)})"
        )
    if "validation" in metric.split("_") and not has_validation:
        return f"`{key}: {metric}` needs validation samples; set `task.validation: {{fraction: 0.1}}`"
    if metric.startswith("client_") and not scores_clients:
        return f"`{key}: {metric}` needs `evaluation.clients` above 0"
    if uses_test_samples(metric) and not allowed:
        instead = "validation_loss" if mode_of(metric) == "min" else "validation_accuracy"
        return (
            f"`{key}`: {metric} selects by samples that only score the result; set it to {instead}, or "
            "`evaluation.allow_test_selection: true` if test data are meant to select"
        )
    return None
