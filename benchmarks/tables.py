"""Results of peers.py as a Markdown table and two figures."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from hedgerow.platform.common.percent import percent

# Okabe and Ito's colours are distinguishable with any colour vision.
OURS, THEIRS = "#D55E00", "#56B4E9"

DEFAULT = "hedgerow"


def table(workloads: dict[str, Any]) -> str:
    """One row per contender, under a heading row for each workload."""
    lines = [
        "| contender | time per round | times Hedgerow | first round after | memory | accuracy | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in workloads.values():
        lines.append(f"| **{result['workload']}** ({result['data']}, {result['rounds']} rounds) | | | | | | |")
        for name, row in result["rows"].items():
            cells = [
                name,
                "{} ({} to {})".format(*map(_seconds, (1e-3 * ms for ms in row["ms per round"]))),
                f"{row['times hedgerow']:.2f}" if "times hedgerow" in row else "",
                "{:.1f} s ({:.1f} to {:.1f})".format(*row["s to round 1"]),
                f"{row['peak MB']:.0f} MB",
                percent(row["accuracy"]),
                f"{row['apart']:.0e}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [f"| {name} | {_first_line(p)} | | | | | |" for name, p in result["problems"].items()]
    return "\n".join(lines) + "\n"


def draw(workloads: dict[str, Any], file: Path) -> None:
    """FILE.png: seconds per round, on a logarithmic scale; FILE-start.png: seconds to the end of round 1."""
    workloads = {name: result for name, result in workloads.items() if result["rows"]}
    if not workloads:
        return
    _panels(workloads, "ms per round", 1e-3, "seconds per round", file.with_name(f"{file.name}.png"), log=True)
    label = "seconds from the command to the end of round 1"
    _panels(workloads, "s to round 1", 1.0, label, file.with_name(f"{file.name}-start.png"), log=False)


def _panels(workloads: dict[str, Any], key: str, unit: float, label: str, file: Path, log: bool) -> None:
    bars = sum(len(result["rows"]) + 2 for result in workloads.values())
    figure = Figure(figsize=(9, 0.8 + 0.3 * bars), layout="constrained")
    heights = [len(result["rows"]) + 1 for result in workloads.values()]
    panels = figure.subplots(len(workloads), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, result in zip(panels, workloads.values(), strict=True):
        _bars(panel, result["rows"], key, unit, log)
        panel.set_title(f"{result['workload']} ({result['data']})", fontsize=9, loc="left")
    panels[-1].set_xlabel(label)
    figure.savefig(file, dpi=150)


def _bars(panel: Axes, rows: dict[str, Any], key: str, unit: float, log: bool) -> None:
    names = sorted(rows, key=lambda name: -rows[name][key][0])
    middle, least, most = zip(*([unit * value for value in rows[name][key]] for name in names), strict=True)
    whiskers = [[m - a for m, a in zip(middle, least, strict=True)], [b - m for m, b in zip(middle, most, strict=True)]]
    colours = [OURS if name.startswith(DEFAULT) else THEIRS for name in names]
    panel.barh(names, middle, xerr=whiskers, color=colours, capsize=3)
    if log:
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlim(min(least) / 2, 4 * max(most))
    else:
        panel.set_xlim(0, 1.3 * max(most))
    ours = rows[DEFAULT][key][0] if DEFAULT in rows else None
    for position, (name, end) in enumerate(zip(names, most, strict=True)):
        # Per round, the ratio is the median over repeats that were measured in turn.
        ratio = rows[name].get("times hedgerow") if log else ours and rows[name][key][0] / ours
        label = _seconds(middle[position]) + (f"  {ratio:.3g}×" if ratio else "")
        panel.annotate(label, (end, position), (6, 0), textcoords="offset points", va="center", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "/")
