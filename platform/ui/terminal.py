"""Output on a terminal: progress of a run, and tables of results."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import cost_rows, dropped_text, loss_text, summary_cells, value_text
from hedgerow.platform.tracking.summary import main_metric
from hedgerow.platform.ui.wide_console import wide_console

NUMBER = re.compile(r"[+×<-]?[\d.]|-?$")
"""Beginning of cells that are numbers; "-" and "" mean no number."""


FIRST = ("run", "test accuracy", "CTM", "LTM")


NEXT = ("test loss", "best", "rounds", "tasks", "time", "worst 10 %", "clients", "transmissions", "simulated")
"""Columns of the results by importance: first these two lists, with columns of targets in between, then all others."""


TARGETS_CAPTION = "to x: transmissions, in FedAvg rounds, until the target is first reached; +: not reached"


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
            self._print(f"{self.rounds} rounds")
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
        self._print(text)

    def _show(self, number: int, figures: str) -> None:
        if self.console.is_terminal:
            self._bar.update(self._task, completed=number, figures=figures)
        elif number in (1, self.rounds) or number % max(1, self.rounds // 10) == 0:
            self._print(f"round {number}/{self.rounds}  {figures}")

    def _print(self, line: str) -> None:
        if self.console.is_terminal:
            # Above the bar.
            self.console.print(f"{self.name}: {line}", highlight=False, markup=False)
        else:
            print(f"{self.name}: {line}", file=self.console.file, flush=True)

    def _figures(self, record: RoundRecord) -> str:
        parts = []
        main = main_metric([self.seen])
        if (value := self.seen.get(f"test_{main}")) is not None:
            parts.append(f"test {main.replace('_', ' ')} {value_text(main, value)}")
        if "train_loss" in self.seen:
            parts.append(f"train loss {loss_text(self.seen['train_loss'])}")
        assert self._first is not None
        rounds, seconds = record["round"] - self._first["round"], record["seconds"] - self._first["seconds"]
        if rounds and seconds > 0:
            parts.append(f"{rounds / seconds:.1f} rounds/s")
        return "  ".join(parts)


def closing_table(runs: list[tuple[str, dict[str, Any]]], console: Console | None = None) -> None:
    """Print one row per run. runs: (name, result of `summary.summarise`)."""
    rows = [{"run": name} | summary_cells(summary) for name, summary in runs]
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    console = console or wide_console()
    targets = [heading for heading in headings if heading.startswith("to ")]
    first = [*FIRST, *(f"test {summary.get('metric', 'accuracy')}".replace("_", " ") for _, summary in runs)]
    draw_table([{h: row.get(h, "-") for h in headings} for row in rows], "Results", console, [*first, *targets, *NEXT])
    if costs := cost_rows(runs):
        print_rows(costs, "Computed by a client, per sample", console)
    for name, summary in runs:
        if summary["dropped"]:
            console.print(f"{name}: {dropped_text(summary['dropped'])}")
        if absences := {name.replace("_", " "): number for name, number in summary.get("lost", {}).items() if number}:
            console.print(
                f"{name}: clients that took no part: {', '.join(f'{n} {how}' for how, n in absences.items())}"
            )
    if any(heading.startswith("to ") for heading in headings):
        console.print(TARGETS_CAPTION)


def print_rows(rows: list[dict[str, Any]], title: str, console: Console | None = None) -> None:
    """Print a table of dictionaries; missing cells are empty. Numbers are aligned right, texts left."""
    headings = dict.fromkeys(key for row in rows for key in row)
    texts = [{key: str(row.get(key, "")) for key in headings} for row in rows]
    draw_table(texts, title, console or wide_console())


def draw_table(rows: list[dict[str, str]], title: str, console: Console, importance: Sequence[str] = ()) -> None:
    """Print rows with the same keys. On a narrow terminal texts wrap between words, then columns are left out.

    importance: headings, the most important one first; the others follow from left to right. The first column stays.
    """
    columns = {heading: [row[heading] for row in rows] for heading in rows[0]}
    numeric = {h for h, cells in columns.items() if all(NUMBER.match(cell) for cell in cells)}
    ranks = [h for h in dict.fromkeys([*list(columns)[:1], *importance, *columns]) if h in columns]
    full = {h: max(map(cell_len, (h, *cells))) for h, cells in columns.items()}
    least = {
        h: max(
            cell_len(word)
            for text in (h, *cells)
            for word in ([text] if h in numeric and text != h else text.split()) or [""]
        )
        for h, cells in columns.items()
    }
    # Border and padding take three characters of a column.
    while len(ranks) > 1 and 1 + sum(3 + least[h] for h in ranks) > console.width:
        ranks.pop()
    headings = [h for h in columns if h in ranks]
    room = console.width - 1 - sum(3 + least[h] for h in headings)
    table = Table(title=Text(title), title_justify="left")
    for heading in headings:
        more = max(0, min(room, full[heading] - least[heading]))
        room -= more
        width = min(least[heading] + more, console.width - 4)
        justify: Literal["left", "right"] = "right" if heading in numeric else "left"
        table.add_column(Text(heading), justify=justify, width=width, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[heading]) for heading in headings))
    console.print(table)
    if left_out := [h for h in columns if h not in ranks]:
        console.print(Text(f"columns for which the terminal is too narrow (--json has all): {', '.join(left_out)}"))
