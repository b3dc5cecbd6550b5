"""What a person sees while an experiment runs, and when it ends."""

import re
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from hedgerow.platform.catalogue import Choice
from hedgerow.platform.report import target_heading

Record = dict[str, Any]

NUMBER = re.compile(r"[+×<-]?[\d.]|-?$")
"""How cells begin that are numbers; "-" and "" stand for none."""


class Progress:
    """A live bar on a terminal; elsewhere a plain line for about every tenth part of the rounds."""

    def __init__(self, name: str, rounds: int, console: Console | None = None):
        self.name, self.rounds = name, rounds
        self.console = console or Console()
        self.seen: Record = {}
        self._first: Record | None = None
        self._bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._bar.start()
            self._task = self._bar.add_task(self.name, total=self.rounds, figures="starting")
        else:
            self._print(f"{self.rounds} rounds")
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def __call__(self, record: Record) -> None:
        """Show one round."""
        self._first = self._first or record
        self.seen.update(record)
        self._tell(record["round"], self._figures(record))

    def _tell(self, number: int, figures: str) -> None:
        if self.console.is_terminal:
            self._bar.update(self._task, completed=number, figures=figures)
        elif number in (1, self.rounds) or number % max(1, self.rounds // 10) == 0:
            self._print(f"round {number}/{self.rounds}  {figures}")

    def _print(self, line: str) -> None:
        print(f"{self.name}: {line}", file=self.console.file, flush=True)

    def _figures(self, record: Record) -> str:
        parts = []
        if "test_accuracy" in self.seen:
            parts.append(f"accuracy {self.seen['test_accuracy']:.1%}")
        if "train_loss" in self.seen:
            parts.append(f"loss {self.seen['train_loss']:.3f}")
        assert self._first is not None
        rounds, seconds = record["round"] - self._first["round"], record["seconds"] - self._first["seconds"]
        if rounds and seconds > 0:
            parts.append(f"{rounds / seconds:.1f} rounds/s")
        return "  ".join(parts)


def closing_table(runs: list[tuple[str, dict[str, Any]]], console: Console | None = None) -> None:
    """One row per run. runs: (name, summary as `report.summarise` makes it)."""
    table = Table(title="Results", title_justify="left")
    rows = [summary_cells(summary) for _, summary in runs]
    table.add_column("run", no_wrap=True)
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    for heading in headings:
        table.add_column(heading, justify="right")
    for (name, _), row in zip(runs, rows, strict=True):
        table.add_row(name, *(row.get(heading, "-") for heading in headings))
    console = console or _console()
    console.print(table)
    if spent := _spent_rows(runs):
        print_rows(spent, "Computed by a client, per sample", console)
    for name, summary in runs:
        if summary["dropped"]:
            console.print(f"{name}: {dropped_text(summary['dropped'])}")
        if lost := {name.replace("_", " "): number for name, number in summary.get("lost", {}).items() if number}:
            console.print(f"{name}: clients that took no part: {', '.join(f'{n} {how}' for how, n in lost.items())}")
    if any(heading.startswith("to ") for heading in headings):
        console.print("to x: transmissions, in FedAvg rounds, until the target is first reached; + not reached")


def summary_cells(summary: dict[str, Any]) -> dict[str, str]:
    """A summary's figures as a person reads them, by heading."""
    if "ctm" in summary:
        return _stream_cells(summary)
    return {
        "rounds": str(summary["rounds"]),
        "accuracy": percent(summary["test_accuracy"]),
        "best": percent(summary["best_test_accuracy"]),
        "loss": "-" if summary["test_loss"] is None else f"{summary['test_loss']:.3f}",
        "clients": percent(summary["client_accuracy"]),
        "worst 10 %": percent(summary["client_accuracy_worst10"]),
        **{
            name: percent(summary[f"client_accuracy_{name}"])
            for name in ("highest", "lowest")
            if f"client_accuracy_{name}" in summary
        },
        **({"teacher": percent(summary["teacher_test_accuracy"])} if "teacher_test_accuracy" in summary else {}),
        "transmissions": f"{summary['transmissions']:g}",
        "sent": size_text(summary["bytes"]),
        "time": f"{summary['seconds']:.1f} s",
        **({"simulated": f"{summary['simulated_seconds']:.4g} s"} if "simulated_seconds" in summary else {}),
        **{name.replace("_", " "): f"{value:.3g}" for name, value in summary["report"].items()},
        **{f"to {target_heading(target)}": _reached(summary, target) for target in summary["to_target"]},
    }


def _spent_rows(runs: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a client computed and how often it was spoken to, as the complexity tables of the papers have it."""
    names = {name: None for _, summary in runs for name in summary["spent"]}
    return [
        {"run": run, "exchanges": summary["exchanges"]}
        | {name.replace("_", " "): f"{summary['spent'].get(name, 0):,.0f}" for name in names}
        for run, summary in runs
        if summary["spent"]
    ]


def _stream_cells(summary: dict[str, Any]) -> dict[str, str]:
    """Of a learner of a stream, which transmits nothing and whose last round is one task among many."""
    cells = {
        "tasks": str(summary["rounds"]),
        "CTM": percent(summary["ctm"]),
        "LTM": percent(summary.get("ltm")),
        "models kept": f"{summary['memory_vectors']:g}",
        "tasks kept": str(summary["memory_tasks"]),
        "time": f"{summary['seconds']:.1f} s",
    }
    return cells | ({"regret": f"{summary['regret']:.2f}"} if "regret" in summary else {})


def dropped_text(dropped: int) -> str:
    """A warning about clients that diverged, and the mend."""
    answers = "1 answer of a client was" if dropped == 1 else f"{dropped} answers of clients were"
    return f"warning: {answers} not finite and left out; lower lr or set clip_norm"


def print_rows(rows: list[dict[str, Any]], title: str, console: Console | None = None) -> None:
    """A table of dictionaries with the same keys, numbers to the right, texts to the left."""
    table = Table(title=title, title_justify="left")
    for heading in rows[0]:
        numbers = all(NUMBER.match(str(row[heading])) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    (console or _console()).print(table)


def print_choices(choices: list[Choice]) -> None:
    """What there is to choose from: name, what it is, and its source."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for choice in choices:
        table.add_row(Text(choice.name), Text(choice.what))
        if choice.source:
            table.add_row("", Text(choice.source, style="dim"))
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal; elsewhere wide enough for every column."""
    return Console(width=None if sys.stdout.isatty() else 160)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _reached(summary: dict[str, Any], target: str) -> str:
    reached = summary["to_target"].get(target)
    return f"{reached['transmissions']:g}" if reached else f"{summary['transmissions']:g}+"


def size_text(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
