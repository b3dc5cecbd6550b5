"""Output on a terminal: progress of a run, and tables of results."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from hedgerow.platform.common.numbers import TRANSMISSIONS, name_of, number, unit_of
from hedgerow.platform.common.table import wide_console
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import cost_table, dropped_warning, summary_table
from hedgerow.platform.tracking.summary import main_metric

NEXT = (
    *("test_loss", "rounds", "seconds", "client_accuracy_worst10", "client_accuracy", "transmissions"),
    "simulated_seconds",
)
"""Columns of the results by importance, after the main metric, targets and best values; then all others."""


class Progress:
    """A progress bar on a terminal; elsewhere a plain line for about every tenth of the rounds."""

    def __init__(self, name: str, rounds: int, console: Console | None = None):
        self.name, self.rounds = name, rounds
        self.console = console or Console()
        self.seen: RoundRecord = {}
        self._first: RoundRecord | None = None
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
            print_line(self.console, self.name, f"{self.rounds} rounds")
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    def __call__(self, record: RoundRecord) -> None:
        """Show one round."""
        self._first = self._first or record
        self.seen.update(record)
        self._show(record["round"], self._figures(record))

    def note(self, text: str) -> None:
        """Print a note about the work after the last round."""
        print_line(self.console, self.name, text)

    def _show(self, done: int, figures: str) -> None:
        if self.console.is_terminal:
            self._bar.update(self._task, completed=done, figures=figures)
        elif done in (1, self.rounds) or done % max(1, self.rounds // 10) == 0:
            print_line(self.console, self.name, f"round {done}/{self.rounds}  {figures}")

    def _figures(self, record: RoundRecord) -> str:
        parts = []
        main = main_metric([self.seen])
        known = (of for of in ("test", "validation") if self.seen.get(f"{of}_{main}") is not None)
        if of := next(known, None):
            parts.append(f"{of} {name_of(main)} {number(self.seen[f'{of}_{main}'], unit_of(main))}")
        if "train_loss" in self.seen:
            parts.append(f"train loss {number(self.seen['train_loss'], 'loss')}")
        assert self._first is not None
        rounds, seconds = record["round"] - self._first["round"], record["seconds"] - self._first["seconds"]
        if rounds and seconds > 0:
            parts.append(f"{rounds / seconds:.1f} rounds/s")
        return "  ".join(parts)


def print_line(console: Console, name: str, line: str) -> None:
    """Print a line about a run or a search: on a terminal, above its bar or table."""
    if console.is_terminal:
        console.print(f"{name}: {line}", highlight=False, markup=False)
    else:
        print(f"{name}: {line}", file=console.file, flush=True)


def closing_table(runs: list[tuple[str, dict[str, Any]]], console: Console | None = None) -> None:
    """Print one row per run. runs: (name, result of `summary.summarise`)."""
    table, console = summary_table(runs, "Results"), console or wide_console()
    mains = [f"test_{summary.get('metric', 'accuracy')}" for _, summary in runs]
    targets = [one.name for one in table.columns if one.name.startswith("transmissions_to_")]
    table.print(console, ["run", *mains, "ctm", "ltm", *targets, *(f"best_{main}" for main in mains), *NEXT])
    costs = cost_table(runs, "Computed by a client, per sample")
    if costs.rows:
        costs.print(console)
    for name, summary in runs:
        if summary["dropped"]:
            console.print(f"{name}: {dropped_warning(summary['dropped'])}")
        if absences := {name.replace("_", " "): lost for name, lost in summary.get("lost", {}).items() if lost}:
            console.print(
                f"{name}: clients that took no part: {', '.join(f'{n} {how}' for how, n in absences.items())}"
            )
    if any(one.name == "transmissions" for one in table.columns):
        console.print(TRANSMISSIONS)
