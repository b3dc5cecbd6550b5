"""Body of the command `replay`."""

from collections.abc import Sequence

import click

from hedgerow.platform.common.percent import percent
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.terminal import draw_table
from hedgerow.platform.ui.wide_console import wide_console
from hedgerow.searchspaces.replay.tuner_replay import replay
from hedgerow.searchspaces.results.recording import COSTS, Recording
from hedgerow.searchspaces.results.trials import display, number


def replay_recording(
    name: str, kind: str, settings: Sequence[str], budget: float | None, slots: int | None, seed: int | None
) -> CommandOutput:
    """Replay a recorded search with another tuner, and show its choice and its cost. Raises UserError."""
    recording = Recording.read(name)
    found = replay(recording, kind, settings, budget, slots, seed)
    rows, chosen = found.rows, found.rows[found.chosen]
    whole = {cost: float(recording.cost(cost).sum()) for cost in COSTS}

    def render() -> None:
        shown = [row for row in rows if row["rounds"]]
        if shown:
            draw_table(display(shown), f"{kind} on {recording.name}", wide_console(), [])
        if len(shown) < len(rows):
            click.echo(f"{len(rows) - len(shown)} trials did not report.")
        metric = found.plan.search.metric
        value = number(metric, chosen[metric])
        click.echo(
            f"Choice: {chosen['configuration']} (recorded {chosen['recorded']}), {metric.replace('_', ' ')} {value} in "
            f"round {chosen['rounds']}."
        )
        if found.test_score:
            scores = ", ".join(f"{name.replace('_', ' ')} {number(name, x)}" for name, x in found.test_score.items())
            click.echo(f"Test score of the choice, as trained: {scores}.")
        if found.online is not None:
            click.echo(f"Online score, the mean test accuracy of the deployed model: {percent(found.online)}.")
        spent = [
            f"{found.costs[cost]:,.0f} {cost.replace('_', ' ')} ({percent(found.costs[cost] / whole[cost])} of the "
            "recording)"
            for cost in COSTS
            if whole[cost]
        ]
        click.echo(f"Cost: {', '.join(spent)}.")

    return CommandOutput(
        {
            "recording": recording.name,
            "kind": kind,
            "choice": chosen,
            "test": found.test_score,
            "online": found.online,
            "costs": found.costs,
            "trials": rows,
        },
        render,
    )
