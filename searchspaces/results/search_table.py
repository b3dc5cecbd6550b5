"""Terminal output of a search: live table and closing tables."""

import math
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hedgerow.platform.common.numbers import TRANSMISSIONS, name_of, number, percent, unit_of
from hedgerow.platform.common.table import Table, wide_console
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.terminal import print_line
from hedgerow.searchspaces.hedge.deployment import score_names
from hedgerow.searchspaces.results.hedge_curves import HINDSIGHT, deployed_curves, score_kind
from hedgerow.searchspaces.results.trials import Row, trial_table
from hedgerow.searchspaces.spaces.smoothing import smoothed

IMPORTANCE = ("expert", "trial", "configuration", "weight", "accuracy", "round", "state", "loss")
"""Columns of the live table, the most important one first."""

BAR = 10
EIGHTHS = " ▏▎▍▌▋▊▉"


class SearchTable:
    """Live table of the trials on a terminal; elsewhere, a plain line for about every tenth of the rounds.

    rounds: number of rounds of each trial. labels: one per trial, read when the table is drawn, so that a label may be
    replaced in the list once a sampler has chosen the configuration. metric, mode: sort order of a sweep; with Hedge
    records, the table is sorted by weight. smooth: see `smoothing.smoothed`. policy: deployed policy whose mean score
    so far is shown next to that of the best expert in hindsight. ends_early: whether some trials may not run all
    rounds, so that the time left is an upper limit. clock: seconds.
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
        smooth: float = 0.0,
        ends_early: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.policy, self.smooth, self.ends_early, self.clock = policy, smooth, ends_early, clock
        self._begun: tuple[float, int] | None = None
        """Time at which the first trial started, and the rounds that a resumed search had completed by then."""
        self._known = {metric, score_names(metric)[score_kind(metric)]}
        self._values: list[dict[int, RoundRecord]] = [{} for _ in labels]
        self._rounds: list[RoundRecord] = []
        self.name, self.rounds, self.labels, self.metric = name, rounds, labels, metric
        self.console = console or Console()
        self._sign = -1 if mode == "max" else 1
        self._scored = "validation" if metric.startswith("validation_") else "test"
        self._seen: list[RoundRecord] = [{"round": 0} for _ in labels]
        self._states = ["waiting"] * len(labels)
        self._hedge: RoundRecord | None = None
        self._best: dict[int, float] = {}
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
        if known := {name: record[name] for name in self._known if name in record}:
            self._values[index][record["round"]] = known
        # Best over all rounds: a later drop in accuracy does not change it.
        if math.isfinite(value) and self._sign * value < self._sign * self._best.get(index, self._sign * math.inf):
            self._best[index] = value
        tenth = len(self.labels) * self.rounds / 10
        if not self.console.is_terminal and self._hedge is None and self._done // tenth > self._printed // tenth:
            self._printed = self._done
            self._print(self._sweep_line())

    def state(self, index: int, text: str) -> None:
        """Set the state of one trial, such as running, waiting, finished or failed."""
        self._states[index] = text
        if text == "running" and self._begun is None:
            self._begun = self.clock(), self._done

    def hedge(self, record: RoundRecord) -> None:
        """Record a round of Hedge."""
        self._hedge = record
        self._rounds.append(record)
        round_ = record["round"]
        tenth = round_ in (1, self.rounds) or round_ % max(1, self.rounds // 10) == 0
        if tenth and not self.console.is_terminal:
            leader = self._order()[0]
            self._print(
                f"round {round_}/{self.rounds}  {self._figures(record)}  "
                f"leader {self.labels[leader]} (weight {percent(record['next_weights'][leader])}){self._left()}",
            )

    def note(self, text: str) -> None:
        """Show a message about work after the last round."""
        self._print(text)

    def _print(self, line: str) -> None:
        print_line(self.console, self.name, line)

    def _sweep_line(self) -> str:
        line = f"{self._done}/{len(self.labels) * self.rounds} rounds of {len(self.labels)} trials{self._left()}"
        sound = [index for index in self._best if self._states[index] != "failed"]
        if not sound:
            return line
        best = min(sound, key=lambda index: self._sign * self._best[index])
        return f"{line}, best {name_of(self.metric)} {self._text(self._best[best])} ({self.labels[best]})"

    def _left(self) -> str:
        """Time that the remaining rounds take at the pace so far; empty if it is unknown."""
        total = len(self.labels) * self.rounds
        if self._begun is None or not self._begun[1] < self._done < total:
            return ""
        begun, before = self._begun
        seconds = (self.clock() - begun) * (total - self._done) / (self._done - before)
        return f", {'at most ' * self.ends_early}about {number(round(seconds), 's')} left"

    def _text(self, value: float) -> str:
        return number(value, unit_of(self.metric))

    def _figures(self, record: RoundRecord) -> str:
        expected = record["expected"].get(self.metric)
        parts = [] if expected is None else [f"expected {name_of(self.metric)} {self._text(expected)}"]
        if deployed := self._deployed():
            parts.append(deployed)
        bound = "" if record["bound"] is None else f" (bound {number(record['bound'], 'loss')})"
        return "  ".join([*parts, f"regret {number(record['regret'], 'loss')}{bound}"])

    def _deployed(self) -> str:
        """Mean scores so far of the deployed policy and of the best expert in hindsight; empty if unknown."""
        curves = deployed_curves(self._rounds, self._values, self.metric)
        if self.policy not in curves or HINDSIGHT not in curves:
            return ""
        kind = score_kind(self.metric)
        mine, best = (number(curves[name][-1][1], unit_of(kind)) for name in (self.policy, HINDSIGHT))
        what = "" if kind in self.metric else f" {kind}"
        return f"deployed {self.policy}{what} {mine} (best in hindsight {best})"

    def _order(self) -> list[int]:
        """Indices of the trials, largest weight or best metric first; trials that failed or have no value last."""
        if self._hedge is not None:
            weights = self._hedge["next_weights"]
            return sorted(range(len(self.labels)), key=lambda i: (self._states[i] == "failed", -weights[i]))

        def place(i: int) -> tuple[bool, float]:
            # NaN: not evaluated.
            values = [known[self.metric] for known in self._values[i].values() if self.metric in known]
            score = smoothed(values, self.smooth) if values else math.nan
            return (False, self._sign * score) if math.isfinite(score) else (True, 0.0)

        return sorted(range(len(self.labels)), key=place)

    def _render(self) -> Group:
        order = self._order()
        header = Text.assemble((self.name, "bold"), f"  {self._header()}")
        # In addition to the rows: this header, the headings, the number of omitted trials, and the cursor line.
        room = max(1, self.console.height - 3 - math.ceil(header.cell_len / self.console.width))
        shown = order if len(order) <= room + 1 else order[:room]
        table = self._table(shown).lines(self.console.width, IMPORTANCE, "configuration")
        parts: list[Any] = [header, table]
        if len(shown) < len(order):
            parts.append(Text(f"... and {len(order) - len(shown)} more", style="dim"))
        return Group(*parts)

    def _header(self) -> str:
        if self._hedge is None:
            return self._sweep_line()
        # The leader's configuration and weight are the table's first row.
        hedge = self._hedge
        figures = f"{self._figures(hedge)}{self._left()}"
        return f"round {hedge['round']}/{self.rounds}  leader {self._order()[0]:03d}  {figures}"

    def _weight(self, weight: float) -> str:
        return f"{bar(weight)} {percent(weight):>7}"

    def _table(self, shown: list[int]) -> Table:
        running = [row for row, i in enumerate(shown) if self._states[i] == "running"]
        return Table([self._cells(i) for i in shown], marked=running)

    def _cells(self, i: int) -> dict[str, Any]:
        """Cells of a trial by heading."""
        record = self._seen[i]
        return {
            "expert" if self._hedge else "trial": f"{i:03d}",
            "configuration": self.labels[i],
            "round": record["round"],
            "accuracy": record.get(f"{self._scored}_accuracy"),
            "loss": record.get(f"{self._scored}_loss"),
            **({"weight": self._weight(self._hedge["next_weights"][i])} if self._hedge else {}),
            "state": self._states[i],
        }


def bar(share: float) -> str:
    """Draws a share between 0 and 1 as a bar of BAR characters, to an eighth of a character."""
    whole, eighths = divmod(round(8 * BAR * share), 8)
    return ("█" * whole + EIGHTHS[eighths]).ljust(BAR)[:BAR]


def closing_tables(
    rows: list[Row],
    summary: RoundRecord | None,
    best: list[Row],
    console: Console | None = None,
    limit: int = 20,
    winner: str = "",
) -> None:
    """Print the trials, the best trial by each metric, and a summary of Hedge.

    rows: from `trials.sweep_rows`; the first `limit` are shown. summary: from `trials.hedge_summary`; None for a
    search without Hedge. best: from `trials.best_per_metric`. winner: name of the winning trial.
    """
    console = console or wide_console()
    for title, shown in (("Trials", rows[:limit]), ("Best by metric", best)):
        if shown:
            table = trial_table(shown, title, brief=True, winner=winner)
            # On a narrow terminal, searched keys take precedence over costs, and these over other columns.
            names, last = [one.name for one in table.columns], ("transmissions", "status")
            costs = [name for name in names if "_to_" in name]
            table.print(console, [*(n for n in names if n not in (*costs, *last) and n[:5] != "best_"), *costs, *names])
        if len(rows) > limit and shown is not best:
            console.print(f"... and {len(rows) - limit} more")
    if any(row.get("transmissions") for row in rows):
        console.print(TRANSMISSIONS)
    if summary:
        console.print(Text(hedge_sentences(summary)))


def hedge_sentences(summary: RoundRecord) -> str:
    """Summary of Hedge from `trials.hedge_summary`, in sentences."""
    metric, bound, certain = summary["metric"], summary["bound"], summary["certain"]
    side = "" if bound is None else "within" if summary["regret"] <= bound else "above"
    verdict = f" ({side} its bound, {number(bound, 'loss')})" if side else ""
    losses = {key: number(summary[key], "loss") for key in ("hedge_loss", "best_loss")}
    lines = [
        f"Hedge over {summary['experts']} experts: its mean expected loss is {losses['hedge_loss']} over "
        f"{summary['rounds']} rounds; the best expert in hindsight, {summary['best']}, has {losses['best_loss']}; "
        f"the total regret is {number(summary['regret'], 'loss')}{verdict}.",
        f"At the end {summary['leader']} leads with {percent(summary['leader_weight'])} of the weight; "
        + ("no weight exceeded 90 % before." if certain is None else f"90 % was first exceeded in round {certain}."),
    ]
    if summary["stopped"]:
        lines.append(
            f"{summary['stopped']} of {summary['experts']} experts were stopped. Against one of them the bound is at "
            f"most {number(summary['price'], 'loss')} higher, and no higher unless it would have gained more than "
            "`search.comeback` per round."
        )
    if summary["expected"] is not None:
        compared = "".join(
            f"; {whose}: {number(summary[key], unit_of(metric))}"
            for key, whose in (("leader_metric", "each round's leader"), ("best_metric", "best expert in hindsight"))
            if summary[key] is not None
        )
        expected = number(summary["expected"], unit_of(metric))
        lines.append(f"Expected {name_of(metric)}, averaged over the rounds: {expected}{compared}.")
    return "\n".join(lines)
