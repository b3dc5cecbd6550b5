"""What a person sees of a search: the live table, plain lines, and the closing tables."""

import io
import re

import pytest
from made_up import NAN, deployed_records, hand_made, hedge_records, records, trials
from rich.console import Console
from searches import plan

from hedgerow.searchspaces.results.search_table import SearchTable, bar, closing_tables
from hedgerow.searchspaces.results.trials import Trial, best_per_metric, hedge_summary, sweep_rows
from hedgerow.searchspaces.tune.search_command import search_table


def show(table: SearchTable) -> str:
    """What the table looks like at this moment, without colours."""
    out = io.StringIO()
    Console(file=out, width=table.console.width, height=table.console.height).print(table._render())
    return out.getvalue()


@pytest.mark.parametrize(
    ("share", "text"), [(0, ""), (1, "█" * 10), (0.5, "█████"), (0.0125, "▏"), (0.96, "█████████▋")]
)
def test_bars_are_drawn_to_an_eighth_of_a_character(share, text):
    assert bar(share) == text.ljust(10)


def test_on_a_terminal_hedge_is_a_live_table_with_bars():
    out = io.StringIO()
    with SearchTable("mine", 4, ["lr=0.1", "[red]"], Console(file=out, force_terminal=True, width=100)) as table:
        for record in hand_made():
            for index in (0, 1):
                table.trial(index, records([0.5, 0.6, 0.7])[record["round"] - 1])
            table.hedge(record)
        table.state(1, "died")
    text = out.getvalue()
    assert "\x1b" in text
    assert "█████████▌" in text
    assert show(table).splitlines() == [
        "mine  round 3/4  leader 000  expected test accuracy 97.0 %  regret 0.410 (bound 2.500)",
        "expert  configuration  round  accuracy   loss  weight              state  ",
        "000     lr=0.1             3    70.0 %  0.300  █████████▌  95.0 %  running",
        "001     [red]              3    70.0 %  0.300  ▌            5.0 %  died   ",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 12), (80, 24), (50, 8), (200, 60)])
def test_the_live_table_fits_on_the_terminal(width, height):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    labels = [f"learning_rate={i} momentum=0.9 a_long_name=true" for i in range(24)]
    table = SearchTable("a long name of a search", 100, labels, console)
    table.hedge(hedge_records(24, 3)[-1])
    lines = show(table).splitlines()
    assert len(lines) < height
    shown = sum(line[:3].isdigit() for line in lines)
    assert (shown == 24) == (height == 60)
    assert shown == 24 or lines[-1].strip() == f"... and {24 - shown} more"
    assert sum(line.startswith("000 ") for line in lines) == 1


def test_an_ordinary_sweep_is_sorted_by_its_metric_and_has_no_weights():
    table = SearchTable("mine", 10, ["a", "b", "c"], Console(file=io.StringIO(), width=80), "test_loss", "min")
    table.trial(1, {"round": 2, "test_accuracy": 0.5, "test_loss": 0.3})
    table.trial(2, {"round": 3, "test_accuracy": 0.6, "test_loss": 0.2})
    lines = show(table).splitlines()
    assert lines[0].strip() == "mine  5/30 rounds of 3 trials, best test loss 0.200 (c)"
    assert [re.split(" {2,}", line.strip()) for line in lines[1:]] == [
        ["trial", "configuration", "round", "accuracy", "loss", "state"],
        ["002", "c", "3", "60.0 %", "0.200", "running"],
        ["001", "b", "2", "50.0 %", "0.300", "running"],
        ["000", "a", "0", "-", "-", "waiting"],
    ]


def test_the_best_value_of_a_sweep_never_falls():
    table = SearchTable("mine", 10, ["a", "b"], Console(file=io.StringIO(), width=80))
    shown = []
    for number, accuracy in enumerate([0.5, 0.9, 0.4, NAN, 0.6], start=1):
        table.trial(0, {"round": number, "test_accuracy": accuracy})
        shown.append(show(table).splitlines()[0].split("best test accuracy ")[1].strip())
    assert shown == ["50.0 % (a)", "90.0 % (a)", "90.0 % (a)", "90.0 % (a)", "90.0 % (a)"]


def test_the_live_table_cuts_no_word():
    labels = [f"learning_rate={i} momentum=0.9 a_long_name=true" for i in range(3)]
    for width in (50, 60, 80, 120):
        table = SearchTable("mine", 100, labels, Console(file=io.StringIO(), width=width))
        table.hedge(hedge_records(3, 3)[-1])
        words = {word for line in show(table).splitlines()[-3:] for word in line.split()[1:]}
        assert words <= {*" ".join(labels).split(), "…", "-", "0", "waiting"} | words_of_bars(table)
        assert ("…" in words) == (width < 100)


def words_of_bars(table: SearchTable) -> set[str]:
    """The weights as they are drawn."""
    return {word for i in range(3) for word in table._cells(i)["weight"].split()}


def test_elsewhere_a_sweep_is_a_plain_line_for_every_tenth_of_its_rounds():
    out = io.StringIO()
    labels = ["?", "lr=1"]
    with SearchTable("mine", 50, labels, Console(file=out)) as table:
        labels[0] = "lr=0.1"
        for number in range(50):
            for index in (0, 1):
                table.trial(index, records([0.5 + 0.4 * index] * 50)[number])
    lines = out.getvalue().splitlines()
    assert lines[0] == "mine: 2 trials of 50 rounds"
    assert lines[1] == "mine: 10/100 rounds of 2 trials, best test accuracy 90.0 % (lr=1)"
    assert lines[-1] == "mine: 100/100 rounds of 2 trials, best test accuracy 90.0 % (lr=1)"
    assert len(lines) == 11
    assert "\x1b" not in out.getvalue()


def test_a_sweep_that_stopped_early_ends_with_how_far_it_came():
    out = io.StringIO()
    with SearchTable("mine", 100, ["a"], Console(file=out)) as table:
        for record in records([NAN] * 14):
            table.trial(0, record)
    assert out.getvalue().splitlines()[1:] == ["mine: 10/100 rounds of 1 trials", "mine: 14/100 rounds of 1 trials"]


def test_a_trial_that_failed_is_not_the_best_one():
    out = io.StringIO()
    with SearchTable("mine", 10, ["a", "b"], Console(file=out)) as table:
        for index, value in enumerate((0.9, 0.5)):
            for record in records([value] * 5):
                table.trial(index, record)
            table.state(index, "failed" if index == 0 else "running")
    assert out.getvalue().splitlines()[-1] == "mine: 10/20 rounds of 2 trials, best test accuracy 50.0 % (b)"


def test_configurations_that_look_alike_have_their_numbers(tmp_path):
    spec = plan(tmp_path, search={"space": {"algorithm.lr": [0.1, 0.10000001, 0.3]}})
    assert search_table(spec).labels == ["000 lr=0.1", "001 lr=0.1", "lr=0.3"]


def test_an_expert_that_failed_does_not_lead():
    out = io.StringIO()
    with SearchTable("mine", 3, ["a", "b", "c"], Console(file=out, width=100)) as table:
        table.state(0, "failed")
        table.hedge(hedge_records(3, 3)[-1])
    assert "leader b (" in out.getvalue()
    assert [line.split()[0] for line in show(table).splitlines()[2:]] == ["001", "002", "000"]


def test_elsewhere_hedge_is_a_plain_line_for_every_tenth_of_its_rounds():
    out = io.StringIO()
    experts = [f"lr={i}" for i in range(4)]
    with SearchTable("mine", 100, experts, Console(file=out)) as table:
        for record in hedge_records(4, 100):
            for index in range(4):
                table.trial(index, records([0.5] * 100)[record["round"] - 1])
            table.hedge(record)
    lines = out.getvalue().splitlines()
    # The losses are 0, 1/4, 1/2, 3/4: the weight after the round is 1 / (1 + 0.1^(1/4) + 0.1^(1/2) + 0.1^(3/4)).
    assert (
        lines[1]
        == "mine: round 1/100  expected test accuracy 62.5 %  regret 0.375 (bound 0.890)  leader lr=0 (weight 48.6 %)"
    )
    assert lines[-1].startswith("mine: round 100/100  expected test accuracy 100.0 %  regret")
    assert lines[-1].endswith("leader lr=0 (weight 100.0 %)")
    assert len(lines) == 12
    assert "\x1b" not in out.getvalue()


def test_the_first_line_has_the_deployed_policy_and_the_best_expert_in_hindsight():
    out = io.StringIO()
    with SearchTable("mine", 3, ["a", "b"], Console(file=out)) as table:
        for record in deployed_records():
            table.trial(0, {"round": record["round"], "test_accuracy": 0.75})
            table.hedge(record)
    assert "round 2/3  deployed leader 85.0 % (best in hindsight 75.0 %)  regret" in out.getvalue()
    assert (
        "round 3/3  expected test accuracy 97.0 %  deployed leader 80.0 % (best in hindsight 75.0 %)" in out.getvalue()
    )


def test_the_closing_tables_show_the_trials_the_best_and_hedge():
    out = io.StringIO()
    targets = [0.6, 0.99]
    rows, best = sweep_rows(trials(), "test_accuracy", "max", targets), best_per_metric(trials(), targets)
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy")
    closing_tables(rows, summary, best, Console(file=out, width=160), limit=4)
    text = out.getvalue()
    assert "8 (8.0 × the cheapest)" in text
    assert "8+" in text
    assert "not reached" in text
    assert "... and 1 more" in text
    assert "90 % was first exceeded in round 3" in text
    assert "rounds to" not in text


def test_the_closing_tables_of_a_search_in_which_nothing_worked():
    out = io.StringIO()
    dead = [Trial("000", {"task.model.layers": ["[bold]"]}, [], "died")]
    closing_tables(sweep_rows(dead, "test_accuracy", "max", []), None, best_per_metric(dead, []), Console(file=out))
    assert "died" in out.getvalue()
    assert "[bold]" in out.getvalue()
    assert "Best by metric" not in out.getvalue()


@pytest.mark.parametrize(("ends_early", "words"), [(False, "about 30 s left"), (True, "at most about 30 s left")])
def test_the_time_left_is_that_of_the_remaining_rounds_at_the_pace_of_this_session(ends_early, words):
    out, times = io.StringIO(), [100.0]
    with SearchTable(
        "mine", 10, ["a", "b"], Console(file=out), ends_early=ends_early, clock=lambda: times[-1]
    ) as table:
        # A resumed search has four of its twenty rounds; four more take ten seconds, so that twelve take thirty.
        for index in range(2):
            table.trial(index, {"round": 2})
        assert "left" not in out.getvalue()
        table.state(0, "running")
        times.append(110.0)
        table.trial(0, {"round": 6})
    assert out.getvalue().splitlines()[-1] == f"mine: 8/20 rounds of 2 trials, {words}"
