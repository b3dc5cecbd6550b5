"""Terminal output of a search: live table and closing tables."""

import math
from textwrap import shorten

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hedgerow.platform.common.percent import percent
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.terminal import TARGETS_CAPTION, draw_table
from hedgerow.platform.ui.wide_console import wide_console
from hedgerow.searchspaces.results.hedge_curves import HINDSIGHT, deployed_curves
from hedgerow.searchspaces.results.trials import Row, display, number

BAR = 10
EIGHTHS = " ▏▎▍▌▋▊▉"


class SearchTable:
    """Live table of the trials on a terminal; elsewhere, a plain line for about every tenth of the rounds.

    rounds: number of rounds of each trial. labels: one per trial, read when the table is drawn, so that a label may be
    replaced in the list once a sampler has chosen the configuration. metric, mode: sort order of a sweep; with Hedge
    records, the table is sorted by weight. policy: deployed policy whose mean score so far is shown next to that of the
    best expert in hindsight.
    """

    def __init__(
        self,
        name: str,
        rounds: int,
        labels: list[str],
        console: Console | None = None,
        metric: str = "test_accuracy",
        mode: str = "max",
        policy: str = "leader",
    ):
        self.policy = policy
        self._values: list[dict[int, float]] = [{} for _ in labels]
        self._rounds: list[RoundRecord] = []
        self.name, self.rounds, self.labels, self.metric = name, rounds, labels, metric
        self.console = console or Console()
        self._sign = -1 if mode == "max" else 1
        self._scored = "validation" if metric.startswith("validation_") else "test"
        self._seen: list[RoundRecord] = [{"round": 0} for _ in labels]
        self._states = ["waiting"] * len(labels)
        self._hedge: RoundRecord | None = None
        self._best: tuple[float, str] | None = None
        self._done = self._printed = 0
        # The table is built only when it is drawn, so that a record only needs to be stored.
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4)

    def __enter__(self) -> "SearchTable":
        if self.console.is_terminal:
            self._live.start()
        else:
            self._print(f"{len(self.labels)} trials of {self.rounds} rounds")
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()
        elif self._hedge is None and self._done > self._printed:
            self._print(self._sweep_line())

    def trial(self, index: int, record: RoundRecord) -> None:
        """Record a round of one trial."""
        self._done += record["round"] - self._seen[index]["round"]
        self._seen[index].update(record)
        self._states[index] = "running"
        value = record.get(self.metric, math.nan)
        self._values[index][record["round"]] = value
        # Best over all rounds: a later drop in accuracy does not change it.
        if math.isfinite(value) and (self._best is None or self._sign * value < self._sign * self._best[0]):
            self._best = value, self.labels[index]
        tenth = len(self.labels) * self.rounds / 10
        if not self.console.is_terminal and self._hedge is None and self._done // tenth > self._printed // tenth:
            self._printed = self._done
            self._print(self._sweep_line())

    def state(self, index: int, text: str) -> None:
        """Set the state of one trial, such as running, waiting, finished or failed."""
        self._states[index] = text

    def hedge(self, record: RoundRecord) -> None:
        """Record a round of Hedge."""
        self._hedge = record
        self._rounds.append(record)
        round_ = record["round"]
        tenth = round_ in (1, self.rounds) or round_ % max(1, self.rounds // 10) == 0
        if tenth and not self.console.is_terminal:
            leader = record["leader"]
            self._print(
                f"round {round_}/{self.rounds}  {self._figures(record)}  "
                f"leader {self.labels[leader]} ({percent(record['weights'][leader])})"
            )

    def note(self, text: str) -> None:
        """Show a message about work after the last round."""
        self._print(text)

    def _print(self, line: str) -> None:
        if self.console.is_terminal:
            # Above the table.
            self.console.print(f"{self.name}: {line}", highlight=False, markup=False)
        else:
            print(f"{self.name}: {line}", file=self.console.file, flush=True)

    def _sweep_line(self) -> str:
        line = f"{self._done}/{len(self.labels) * self.rounds} rounds of {len(self.labels)} trials"
        if self._best:
            return f"{line}, best {number(self.metric, self._best[0])} ({self._best[1]})"
        leading = self._order()[0]
        value = self._seen[leading].get(self.metric)
        return line if value is None else f"{line}, best {number(self.metric, value)} ({self.labels[leading]})"

    def _figures(self, record: RoundRecord) -> str:
        expected = record["expected"].get(self.metric)
        metric = self.metric.removeprefix("test_").replace("_", " ")
        parts = [] if expected is None else [f"expected {metric} {number(self.metric, expected)}"]
        if deployed := self._deployed():
            parts.append(deployed)
        bound = "" if record["bound"] is None else f" (bound {record['bound']:.3g})"
        return "  ".join([*parts, f"regret {record['regret']:.3g}{bound}"])

    def _deployed(self) -> str:
        """Mean scores so far of the deployed policy and of the best expert in hindsight; empty if unknown."""
        curves = deployed_curves(self._rounds, self._values, self.metric)
        if self.policy not in curves or HINDSIGHT not in curves:
            return ""
        mine, best = (number(self.metric, curves[name][-1][1]) for name in (self.policy, HINDSIGHT))
        return f"deployed {self.policy} {mine} (best in hindsight {best})"

    def _order(self) -> list[int]:
        """Indices of the trials, largest weight or best metric first; trials without a value last."""
        if self._hedge is not None:
            weights = self._hedge["weights"]
            return sorted(range(len(self.labels)), key=lambda i: -weights[i])

        def place(i: int) -> tuple[bool, float]:
            value = self._seen[i].get(self.metric)
            return (False, self._sign * value) if value is not None and math.isfinite(value) else (True, 0.0)

        return sorted(range(len(self.labels)), key=place)

    def _render(self) -> Group:
        order = self._order()
        header = Text.assemble((self.name, "bold"), f"  {self._header()}")
        # In addition to the rows: this header, the headings, the number of omitted trials, and the cursor line.
        room = max(1, self.console.height - 3 - math.ceil(header.cell_len / self.console.width))
        shown = order if len(order) <= room + 1 else order[:room]
        parts: list[Text | Table] = [header, self._table(shown)]
        if len(shown) < len(order):
            parts.append(Text(f"... and {len(order) - len(shown)} more", style="dim"))
        return Group(*parts)

    def _header(self) -> str:
        if self._hedge is None:
            return self._sweep_line()
        # The leader's configuration and weight are the table's first row.
        hedge = self._hedge
        return f"round {hedge['round']}/{self.rounds}  leader {hedge['leader']:03d}  {self._figures(hedge)}"

    def _table(self, shown: list[int]) -> Table:
        rows = {i: self._cells(i) for i in shown}
        columns = {h: max(len(h), *(len(cells[h]) for cells in rows.values())) for h in rows[shown[0]]}
        labels, _ = columns["configuration"], columns.pop("configuration")

        def room() -> int:
            """Width that the other columns, each with two spaces, leave for the configurations."""
            return self.console.width - sum(width + 2 for width in columns.values())

        for heading in LEAST:
            if room() < min(labels, ROOM):
                columns.pop(heading, None)
        table = Table(box=None, pad_edge=False, header_style="bold dim")
        width = max(len("configuration"), min(labels, room()))
        for heading in rows[shown[0]]:
            if heading == "configuration":
                table.add_column(heading, no_wrap=True)
            elif heading in columns:
                table.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=True)
        for i, cells in rows.items():
            label = shorten(cells["configuration"], width, placeholder=" …", break_long_words=False)
            texts = [
                Text(label if h == "configuration" else cells[h]) for h in cells if h in (*columns, "configuration")
            ]
            table.add_row(*texts, style="" if self._states[i] == "running" else "dim")
        return table

    def _weight(self, weight: float) -> str:
        return f"{bar(weight)} {percent(weight):>7}"

    def _cells(self, i: int) -> dict[str, str]:
        """Cells of a trial by heading."""
        record = self._seen[i]
        return {
            "expert" if self._hedge else "trial": f"{i:03d}",
            "configuration": self.labels[i],
            "round": str(record["round"]),
            "accuracy": percent(record.get(f"{self._scored}_accuracy")),
            "loss": number("loss", record.get(f"{self._scored}_loss")),
            **({"weight": self._weight(self._hedge["weights"][i])} if self._hedge else {}),
            "state": self._states[i],
        }


LEAST = ("loss", "state", "round", "accuracy")
"""Columns of the live table that make room for the configurations on a narrow terminal, in this order."""

NUMBERS = ("round", "accuracy", "loss")

ROOM = 24
"""Minimum width of the configurations, in characters, before other columns are dropped."""


def bar(share: float) -> str:
    """Draws a share between 0 and 1 as a bar of BAR characters, to an eighth of a character."""
    whole, eighths = divmod(round(8 * BAR * share), 8)
    return ("█" * whole + EIGHTHS[eighths]).ljust(BAR)[:BAR]


def closing_tables(
    rows: list[Row], summary: RoundRecord | None, best: list[Row], console: Console | None = None, limit: int = 20
) -> None:
    """Print the trials, the best trial by each metric, and a summary of Hedge.

    rows: from `trials.sweep_rows`; the first `limit` are shown. summary: from `trials.hedge_summary`; None for a
    search without Hedge. best: from `trials.best_per_metric`.
    """
    console = console or wide_console()
    texts, bests = _narrow(display(rows)), _narrow(display(best))
    if texts:
        _draw("Trials", texts[:limit], console)
    if len(texts) > limit:
        console.print(f"... and {len(texts) - limit} more")
    if bests:
        _draw("Best by metric", bests, console)
    if any(key.startswith("transmissions_to_") for row in rows for key in row):
        console.print(f"{TARGETS_CAPTION}; in parentheses: ratio to the cheapest trial")
    if summary:
        console.print(Text(hedge_sentences(summary)))


def _narrow(texts: list[dict[str, str]]) -> list[dict[str, str]]:
    """Drops the rounds to each target, which are in the files, and shortens the headings."""
    return [
        {heading.removeprefix("transmissions "): cell for heading, cell in text.items() if "rounds to " not in heading}
        for text in texts
    ]


def _draw(title: str, texts: list[dict[str, str]], console: Console) -> None:
    """Draws a table. On a narrow terminal, searched keys take precedence over costs, and these over other columns."""
    targets = [heading for heading in texts[0] if heading.startswith("to ")]
    last = ["best", "transmissions", "status"]
    first = [heading for heading in texts[0] if heading not in (*targets, *last)]
    draw_table(texts, title, console, [*first, *targets, *last])


def hedge_sentences(summary: RoundRecord) -> str:
    """Summary of Hedge from `trials.hedge_summary`, in sentences."""
    metric, bound, certain = summary["metric"], summary["bound"], summary["certain"]
    verdict = (
        "" if bound is None else f" ({'within' if summary['regret'] <= bound else 'above'} its bound, {bound:.3g})"
    )
    losses = {key: number("loss", summary[key]) for key in ("hedge_loss", "best_loss")}
    lines = [
        f"Hedge over {summary['experts']} experts: its mean expected loss is {losses['hedge_loss']} over "
        f"{summary['rounds']} rounds; the best expert in hindsight, {summary['best']}, has {losses['best_loss']}; "
        f"the total regret is {summary['regret']:.3g}{verdict}.",
        f"At the end {summary['leader']} leads with {percent(summary['leader_weight'])} of the weight; "
        + ("no expert ever had more than 90 %." if certain is None else f"90 % was first exceeded in round {certain}."),
    ]
    if summary["expected"] is not None:
        compared = "".join(
            f"; {whose}: {number(metric, summary[key])}"
            for key, whose in (("leader_metric", "each round's leader"), ("best_metric", "best expert in hindsight"))
            if summary[key] is not None
        )
        expected = number(metric, summary["expected"])
        lines.append(f"Weighted {metric.replace('_', ' ')}, averaged over the rounds: {expected}{compared}.")
    return "\n".join(lines)
