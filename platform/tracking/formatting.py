"""Cells of tables: sizes, counts and summaries as text."""

import math
from collections.abc import Sequence
from typing import Any

from hedgerow.platform.common.percent import percent
from hedgerow.platform.tracking.summary import is_no_share, target_heading


def summary_cells(summary: dict[str, Any]) -> dict[str, str]:
    """The numbers of a summary as text, by heading."""
    if "ctm" in summary:
        return _stream_cells(summary)
    targets = [float(label) for label in summary["to_target"] if not is_no_share(label)]
    main = summary.get("metric", "accuracy")
    more = [key.removeprefix("test_") for key in summary if key.startswith("test_") and key != f"test_{main}"]
    return {
        "rounds": str(summary["rounds"]),
        f"test {main.replace('_', ' ')}": value_text(main, summary[f"test_{main}"], targets),
        "best": value_text(main, summary[f"best_test_{main}"], targets),
        **{
            f"test {name.replace('_', ' ')}": value_text(name, summary[f"test_{name}"])
            for name in more
            if name != "loss"
        },
        "test loss": loss_text(summary["test_loss"]),
        "clients": value_text(main, summary[f"client_{main}"], targets),
        "worst 10 %": value_text(main, summary[f"client_{main}_worst10"]),
        **{
            name: value_text(main, summary[f"client_{main}_{name}"], targets)
            for name in ("highest", "lowest")
            if f"client_{main}_{name}" in summary
        },
        **({"teacher": percent(summary["teacher_test_accuracy"])} if "teacher_test_accuracy" in summary else {}),
        "transmissions": f"{summary['transmissions']:g}",
        "sent": size_text(summary["bytes"]),
        "time": f"{summary['seconds']:.1f} s",
        **({"simulated": f"{summary['simulated_seconds']:.4g} s"} if "simulated_seconds" in summary else {}),
        **{
            name.replace("_", " "): percent(value) if name.endswith("_accuracy") else f"{value:.3g}"
            for name, value in summary["report"].items()
        },
        **{f"to {target_heading(target)}": _reached(summary, target) for target in summary["to_target"]},
    }


def cost_rows(runs: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row per run with exchanges and compute costs per client, as in the complexity tables of papers."""
    names = {name: None for _, summary in runs for name in summary["spent"]}
    return [
        {"run": run, "exchanges": summary["exchanges"]}
        | {name.replace("_", " "): count_text(summary["spent"].get(name, 0)) for name in names}
        for run, summary in runs
        if summary["spent"]
    ]


def _stream_cells(summary: dict[str, Any]) -> dict[str, str]:
    """Cells of an algorithm on a stream, which transmits nothing and whose last round is one of many tasks."""
    cells = {
        "tasks": str(summary["rounds"]),
        "CTM": percent(summary["ctm"]),
        "LTM": percent(summary.get("ltm")),
        "models kept": f"{summary['memory_vectors']:g}",
        "tasks kept": str(summary["memory_tasks"]),
        "time": f"{summary['seconds']:.1f} s",
    }
    return cells | ({"regret": loss_text(summary["regret"])} if "regret" in summary else {})


def dropped_text(dropped: int) -> str:
    """Warning about clients that diverged, with the fix."""
    answers = "1 client answer was" if dropped == 1 else f"{dropped} client answers were"
    return f"warning: {answers} not finite and left out; lower lr or set clip_norm"


def value_text(name: str, value: float | None, targets: Sequence[float] = ()) -> str:
    """The value of a metric: an accuracy in per cent, any other one with three decimals."""
    return percent(value, targets) if "accuracy" in name else loss_text(value)


LARGE = 1e6
"""Larger numbers are printed in scientific notation."""


def loss_text(value: float | None) -> str:
    """A loss with three decimals."""
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < LARGE or not math.isfinite(value) else f"{value:.2e}"


def count_text(value: float) -> str:
    """A large count."""
    return f"{value:,.0f}" if abs(value) < LARGE else f"{value:.3e}"


def _reached(summary: dict[str, Any], target: str) -> str:
    cost = summary["to_target"].get(target)
    return f"{cost['transmissions']:g}" if cost else f"{summary['transmissions']:g}+"


def size_text(size: float) -> str:
    """A size in bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
