"""What a search leaves behind: rows, tables, the live table, and the figures."""

import csv
import io
import math
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

from hedgerow.searchspaces.figures import draw_losses, draw_parallel, draw_regret, draw_trials, draw_weights
from hedgerow.searchspaces.report import (
    Trial,
    best_per_metric,
    display,
    hedge_summary,
    ranked,
    short_label,
    short_names,
    sweep_rows,
    to_csv,
    to_markdown,
    trial_labels,
)
from hedgerow.searchspaces.terminal import SearchTable, bar, closing_tables, hedge_sentences

NAN = float("nan")


def records(accuracies: list[float | None], cost: float = 1.0, clients: bool = False) -> list[dict]:
    """One per round; not evaluated where there is no accuracy. cost: transmissions per round."""
    out = []
    for number, accuracy in enumerate(accuracies, start=1):
        record = {
            "round": number, "seconds": 0.5 * number, "train_loss": 2.0 / number, "transmissions": cost * number,
            "scalars_down": 10, "scalars_up": 10, "bytes_down": 40, "bytes_up": 40, "dropped": 0,
        }  # fmt: skip
        if accuracy is not None:
            record |= {"test_accuracy": accuracy, "test_loss": 1 - accuracy}
            if clients:
                record |= {"client_accuracy": accuracy - 0.1, "client_accuracy_worst10": accuracy - 0.2}
        out.append(record)
    return out


def trials() -> list[Trial]:
    """Accurate and dear; quick and cheap, falling back; diverged; dead at once; never good."""
    return [
        Trial("000", {"algorithm.lr": 0.1, "algorithm.mu": 1.0}, records([0.2, None, 0.5, 0.9], cost=2, clients=True)),
        Trial("001", {"algorithm.lr": 1.0}, records([0.6, 0.8, 0.7, 0.7])),
        Trial("002", {"algorithm.lr": 10.0}, records([0.3, NAN])),
        Trial("003", {"algorithm.lr": 100.0}, [], "died"),
        Trial("004", {"algorithm.lr": 0.01}, records([0.1, 0.1, 0.2, 0.2])),
    ]


def hedge_records(experts: int, rounds: int, gamma: float = 0.1, dead: int | None = None) -> list[dict]:
    """Hedge on experts of constant loss 0, 1/n, 2/n, ...; `dead` has no loss from the second round on, and rests."""
    log_weights, paid, best_loss, out = [0.0] * experts, 0.0, 0.0, []
    for number in range(1, rounds + 1):
        losses = [None if i == dead and number > 1 else i / experts for i in range(experts)]
        total = sum(map(math.exp, log_weights))
        weights = [math.exp(s) / total for s in log_weights]
        awake = sum(w for w, loss in zip(weights, losses, strict=True) if loss is not None)
        loss = sum(w * x for w, x in zip(weights, losses, strict=True) if x is not None) / awake
        paid += loss
        record = {
            "round": number,
            "weights": weights,
            "losses": losses,
            "hedge_loss": loss,
            "expected": {"test_accuracy": 1 - loss},
            "leader": weights.index(max(weights)),
            "best": 0,
            "cumulative_loss": paid,
            "best_loss": best_loss,
            "regret": paid - best_loss,
            "bound": math.log(experts) / -math.log(gamma) - math.log(gamma) * number / 8,
            "entropy": 1.0,
        }
        out.append(record)
        log_weights = [s + (x or 0) * math.log(gamma) for s, x in zip(log_weights, losses, strict=True)]
    return out


# ---- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ({"algorithm.lr": 0.1, "algorithm.mu": 1.0}, "lr=0.1 mu=1"),
        ({"algorithm.lr": 0.1, "model.lr": 0.25, "seed": 3}, "algorithm.lr=0.1 model.lr=0.25 seed=3"),
        ({"a.b.lr": 1, "c.b.lr": 2, "lr": 3}, "a.b.lr=1 c.b.lr=2 lr=3"),
        (
            {"algorithm.name": "fedavg", "task.model.layers": [64, 64], "x.on": True},
            "name=fedavg layers=[64, 64] on=true",
        ),
        ({"algorithm.lr": 0.0123456789}, "lr=0.01235"),
        ({}, "defaults"),
    ],
)
def test_a_label_is_as_short_as_it_can_be_without_ambiguity(overrides, label):
    assert short_label(overrides) == label


def test_a_key_keeps_as_much_of_its_section_as_it_needs():
    assert short_names(["a.x.lr", "b.x.lr", "b.y.lr", "c.mu"]) == {
        "a.x.lr": "a.x.lr", "b.x.lr": "b.x.lr", "b.y.lr": "y.lr", "c.mu": "mu",
    }  # fmt: skip


def test_labels_of_trials_are_unambiguous_among_all_of_them():
    same = {"algorithm.lr": 0.1}
    assert trial_labels([Trial("000", same, []), Trial("001", same, []), Trial("002", {"model.lr": 1}, [])]) == [
        "000 algorithm.lr=0.1", "001 algorithm.lr=0.1", "model.lr=1",
    ]  # fmt: skip


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_a_sweeps_rows_are_sorted_by_the_final_metric_with_diverged_and_dead_trials_last():
    rows = sweep_rows(trials(), "test_accuracy", "max", [0.6, 0.85])
    assert [row["trial"] for row in rows] == ["000", "001", "004", "002", "003"]
    assert rows[0] == {
        "trial": "000", "algorithm.lr": 0.1, "algorithm.mu": 1.0, "test_accuracy": 0.9, "best_test_accuracy": 0.9,
        "transmissions": 8, "rounds_to_0.6": 4, "transmissions_to_0.6": 8, "gain_to_0.6": 8.0,
        "rounds_to_0.85": 4, "transmissions_to_0.85": 8, "gain_to_0.85": 1.0, "status": "finished",
    }  # fmt: skip
    assert rows[1] == {
        "trial": "001", "algorithm.lr": 1.0, "algorithm.mu": None, "test_accuracy": 0.7, "best_test_accuracy": 0.8,
        "transmissions": 4, "rounds_to_0.6": 1, "transmissions_to_0.6": 1, "gain_to_0.6": 1.0,
        "rounds_to_0.85": None, "transmissions_to_0.85": None, "gain_to_0.85": None, "status": "finished",
    }  # fmt: skip
    assert math.isnan(rows[3]["test_accuracy"])
    assert rows[3]["best_test_accuracy"] == 0.3
    dead = {"trial": "003", "algorithm.lr": 100.0, "status": "died"}
    assert rows[4] == dict.fromkeys(rows[0]) | dead


def test_a_loss_is_better_when_it_is_smaller():
    rows = sweep_rows(trials(), "test_loss", "min", [])
    assert [row["trial"] for row in rows] == ["000", "001", "004", "002", "003"]
    assert rows[1]["best_test_loss"] == pytest.approx(0.2)


def test_equals_keep_their_order():
    equal = [Trial(name, {}, records([0.5])) for name in ("000", "001", "002")]
    assert [trial.name for trial in ranked(equal, "test_accuracy", "max")] == ["000", "001", "002"]


def test_hedges_last_weights_go_with_their_experts_wherever_those_are_sorted():
    found = trials()[:3]
    hedge = [{"weights": [0.5, 0.3, 0.2]}, {"weights": [0.1, 0.7, 0.2]}]
    rows = sweep_rows(found[::-1], "test_accuracy", "max", [], hedge)
    assert [(row["trial"], row["weight"]) for row in rows] == [("000", 0.2), ("001", 0.7), ("002", 0.1)]


def test_an_algorithm_that_transmits_nothing_has_no_gain():
    (row,) = sweep_rows([Trial("000", {}, records([0.9], cost=0))], "test_accuracy", "max", [0.5])
    assert (row["transmissions_to_0.5"], row["gain_to_0.5"]) == (0, None)
    assert display([row])[0]["transmissions to 50%"] == "0"


def test_the_best_trial_by_each_metric():
    rows = best_per_metric(trials(), [0.6, 0.85, 0.99])
    found = [(row["metric"], row["trial"], row["configuration"]) for row in rows]
    accurate, cheap = ("000", "lr=0.1 mu=1"), ("001", "lr=1")
    assert found == [
        ("test_accuracy", *accurate), ("test_loss", *accurate), ("client_accuracy", *accurate),
        ("client_accuracy_worst10", *accurate), ("transmissions_to_0.6", *cheap), ("transmissions_to_0.85", *accurate),
        ("transmissions_to_0.99", None, None),
    ]  # fmt: skip
    assert [row["value"] for row in rows[:-1]] == pytest.approx([0.9, 0.1, 0.8, 0.7, 1, 8])
    assert rows[-1]["value"] is None
    assert rows[0]["gain_to_0.6"] == 8.0


def test_a_metric_that_no_trial_has_is_left_out():
    assert [row["metric"] for row in best_per_metric(trials()[1:2], [])] == ["test_accuracy", "test_loss"]
    assert best_per_metric([Trial("000", {}, [], "died")], [0.5]) == [
        {"metric": "transmissions_to_0.5", "trial": None, "configuration": None, "value": None}
    ]


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_csv_file_reads_back(tmp_path):
    rows = sweep_rows(trials(), "test_accuracy", "max", [0.85])
    rows[0]["algorithm.mu"] = 1 / 3
    to_csv(rows, tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open(newline="") as file:
        back = list(csv.DictReader(file))
    assert list(back[0]) == list(rows[0])
    assert [row["trial"] for row in back] == ["000", "001", "004", "002", "003"]
    assert float(back[0]["algorithm.mu"]) == 1 / 3
    assert back[1]["transmissions_to_0.85"] == ""
    assert back[3]["test_accuracy"] == "nan"


def test_a_csv_file_of_rows_with_different_columns_has_them_all(tmp_path):
    to_csv(best_per_metric(trials(), [0.99]), tmp_path / "best.csv")
    lines = (tmp_path / "best.csv").read_text().splitlines()
    assert lines[-1].startswith("transmissions_to_0.99,,,,")


def test_markdown_has_percentages_gains_and_marks_of_what_was_not_reached():
    found = trials()
    assert to_markdown(sweep_rows([found[0], found[3], found[4]], "test_accuracy", "max", [0.5])) == (
        "| trial | lr | mu | test accuracy | best | transmissions | rounds to 50% | transmissions to 50% | status |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| 000 | 0.1 | 1 | 90.0% | 90.0% | 8 | 3 | 6 (1.0×) | finished |\n"
        "| 004 | 0.01 | - | 20.0% | 20.0% | 4 | - | 4+ | finished |\n"
        "| 003 | 100 | - | - | - | - | - | - | died |\n"
    )
    found[4].records = records([0.1] * 20)
    assert "| 20+ (>3.3×) |" in to_markdown(sweep_rows(found[::4], "test_accuracy", "max", [0.5]))


def test_markdown_of_the_best_formats_each_value_as_its_metric():
    lines = to_markdown(best_per_metric(trials(), [0.6, 0.99])).splitlines()
    assert lines[2].startswith("| test accuracy | 000 | lr=0.1 mu=1 | 90.0% | 8 | 4 | 8 (8.0×) |")
    assert lines[3].startswith("| test loss | 000 | lr=0.1 mu=1 | 0.100 |")
    assert lines[6].startswith("| transmissions to 60% | 001 | lr=1 | 1 | 4 | 1 | 1 (1.0×) |")
    assert lines[7].startswith("| transmissions to 99% | - | - | not reached |")


def test_markdown_escapes_pipes_and_line_ends():
    assert (
        to_markdown([{"trial": "a|b", "note": "two\nlines"}])
        == "| trial | note |\n| --- | --- |\n| a\\|b | two lines |\n"
    )
    assert to_markdown([]) == ""


# ---- Hedge ----------------------------------------------------------------------------------------------------------


def hand_made() -> list[dict]:
    """Two experts, three rounds: the second leads at first, the first is the best."""
    rows = [([0.5, 0.5], [0.2, 0.4], 0.3), ([0.3, 0.7], [0.1, 0.5], 0.38), ([0.95, 0.05], [0.0, 0.6], 0.03)]
    paid, best, out = 0.0, 0.0, []
    for number, (weights, losses, loss) in enumerate(rows, start=1):
        paid, best = paid + loss, best + losses[0]
        record = {
            "round": number,
            "weights": weights,
            "losses": losses,
            "hedge_loss": loss,
            "best": 0,
            "expected": {"test_accuracy": 1 - loss} if number != 2 else {},
            "leader": weights.index(max(weights)),
            "cumulative_loss": paid,
            "best_loss": best,
            "regret": paid - best,
            "bound": 2.5,
            "entropy": 0.5,
        }
        out.append(record)
    return out


def test_hedges_summary_averages_over_the_rounds():
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy")
    assert summary == {
        "metric": "test_accuracy", "rounds": 3, "experts": 2, "hedge_loss": pytest.approx(0.71 / 3), "best": "a",
        "best_loss": pytest.approx(0.1), "regret": pytest.approx(0.41), "bound": 2.5, "leader": "a",
        "leader_weight": 0.95, "certain": 3, "expected": pytest.approx((0.7 + 0.97) / 2), "leader_metric": None,
        "best_metric": None,
    }  # fmt: skip


def test_the_leaders_and_the_best_experts_metric_come_from_the_experts_records():
    experts = [Trial("000", {}, records([0.8, 0.9, 1.0])), Trial("001", {}, records([0.6, 0.5]))]
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy", experts)
    assert summary["leader_metric"] == pytest.approx((0.8 + 0.5 + 1.0) / 3)
    assert summary["best_metric"] == pytest.approx(0.9)


def test_a_search_that_never_made_up_its_mind_says_so():
    summary = hedge_summary(hand_made()[:2], ["a", "b"], "test_accuracy")
    assert summary["certain"] is None
    assert "no expert ever had more than 90%" in hedge_sentences(summary)


def test_the_sentences_about_hedge():
    summary = hedge_summary(hand_made(), ["lr=0.1", "lr=1"], "test_accuracy")
    assert hedge_sentences(summary) == (
        "Hedge over 2 experts: its expected loss averages 0.237 over 3 rounds, that of the best expert in hindsight, "
        "lr=0.1, 0.100; the regret is 0.41 in all (within its bound, 2.5).\n"
        "At the end lr=0.1 leads with 95.0% of the weight; 90% was first exceeded in round 3.\n"
        "Weighted test accuracy, averaged over the rounds: 83.5%."
    )
    assert "(above its bound, 0.2)" in hedge_sentences(summary | {"bound": 0.2})
    assert "in all.\n" in hedge_sentences(summary | {"bound": None})


# ---- the terminal ---------------------------------------------------------------------------------------------------


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
        "mine  round 3/4  leader 000  expected accuracy 97.0%  regret 0.41 (bound 2.5)",
        "expert  configuration  round  accuracy   loss  weight             state  ",
        "000     lr=0.1             3     70.0%  0.300  █████████▌  95.0%  running",
        "001     [red]              3     70.0%  0.300  ▌            5.0%  died   ",
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
    assert lines[0].strip() == "mine  5/30 rounds of 3 trials, best 0.200 (c)"
    assert [line.split() for line in lines[1:]] == [
        ["trial", "configuration", "round", "accuracy", "loss", "state"],
        ["002", "c", "3", "60.0%", "0.200", "running"],
        ["001", "b", "2", "50.0%", "0.300", "running"],
        ["000", "a", "0", "-", "-", "waiting"],
    ]


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
    assert lines[1] == "mine: 10/100 rounds of 2 trials, best 90.0% (lr=1)"
    assert lines[-1] == "mine: 100/100 rounds of 2 trials, best 90.0% (lr=1)"
    assert len(lines) == 11
    assert "\x1b" not in out.getvalue()


def test_a_sweep_that_stopped_early_ends_with_how_far_it_came():
    out = io.StringIO()
    with SearchTable("mine", 100, ["a"], Console(file=out)) as table:
        for record in records([NAN] * 14):
            table.trial(0, record)
    assert out.getvalue().splitlines()[1:] == [
        "mine: 10/100 rounds of 1 trials, best nan (a)", "mine: 14/100 rounds of 1 trials, best nan (a)",
    ]  # fmt: skip


def test_elsewhere_hedge_is_a_plain_line_for_every_tenth_of_its_rounds():
    out = io.StringIO()
    experts = [f"lr={i}" for i in range(4)]
    with SearchTable("mine", 100, experts, Console(file=out)) as table:
        for record in hedge_records(4, 100):
            for index in range(4):
                table.trial(index, records([0.5] * 100)[record["round"] - 1])
            table.hedge(record)
    lines = out.getvalue().splitlines()
    assert lines[1] == "mine: round 1/100  expected accuracy 62.5%  regret 0.375 (bound 0.89)  leader lr=0 (25.0%)"
    assert lines[-1].startswith("mine: round 100/100  expected accuracy 100.0%  regret")
    assert lines[-1].endswith("leader lr=0 (100.0%)")
    assert len(lines) == 12
    assert "\x1b" not in out.getvalue()


def test_the_closing_tables_show_the_trials_the_best_and_hedge():
    out = io.StringIO()
    targets = [0.6, 0.99]
    rows, best = sweep_rows(trials(), "test_accuracy", "max", targets), best_per_metric(trials(), targets)
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy")
    closing_tables(rows, summary, best, Console(file=out, width=160), limit=4)
    text = out.getvalue()
    assert "8 (8.0×)" in text
    assert "8+" in text
    assert "not reached" in text
    assert "... and 1 more" in text
    assert "90% was first exceeded in round 3" in text
    assert "rounds to" not in text


def test_the_closing_tables_of_a_search_in_which_nothing_worked():
    out = io.StringIO()
    dead = [Trial("000", {"task.model.layers": ["[bold]"]}, [], "died")]
    closing_tables(sweep_rows(dead, "test_accuracy", "max", []), None, best_per_metric(dead, []), Console(file=out))
    assert "died" in out.getvalue()
    assert "[bold]" in out.getvalue()
    assert "Best by metric" not in out.getvalue()


# ---- figures --------------------------------------------------------------------------------------------------------


def check(written: list, names: set[str]) -> list[str]:
    """All are there, as PNG and well-formed SVG; returns the texts of the SVG files."""
    assert {path.name for path in written} == {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    return [path.read_text() for path in written if path.suffix == ".svg"]


@pytest.mark.parametrize(
    ("experts", "rounds", "dead"), [(3, 1, None), (3, 20, 1), (7, 20, None), (24, 20, 4), (1, 3, None)]
)
def test_hedges_figures_are_drawn_for_few_and_for_many_experts(experts, rounds, dead, tmp_path):
    hedge = hedge_records(experts, rounds, dead=dead)
    labels = [f"lr={i}" for i in range(experts)]
    for draw, name in ((draw_weights, "hedge_weights"), (draw_losses, "hedge_losses")):
        (svg,) = check(draw(hedge, labels, tmp_path / "figures"), {name})
        # matplotlib writes a text as a comment beside its outlines.
        assert "<!-- lr=0 -->" in svg
        assert ("<!-- 18 others -->" in svg) == (experts == 24)
        assert ("<!-- lr=6 -->" in svg) == (experts == 7)
    check(draw_regret(hedge, tmp_path / "figures"), {"hedge_regret"})


@pytest.mark.parametrize("known", ["none", "late"])
def test_a_bound_is_left_out_where_there_is_none(known, tmp_path):
    hedge = hedge_records(3, 10)
    for record in hedge[: 10 if known == "none" else 5]:
        record["bound"] = None
    (svg,) = check(draw_regret(hedge, tmp_path), {"hedge_regret"})
    assert ("<!-- bound: " in svg) == (known == "late")


def test_parallel_coordinates_of_conditional_categorical_and_logarithmic_keys(tmp_path):
    found = [
        *trials(),
        Trial("005", {"algorithm.lr": 0.1, "algorithm.name": "fedprox", "x.on": True}, records([0.3])),
        Trial("006", {"algorithm.lr": 0.1, "algorithm.name": "a$b", "x.on": False}, records([0.4])),
    ]
    (svg,) = check(draw_parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})
    for text in ("lr", "mu", "name", "fedprox", "true", "-", "test accuracy", "90.0%", "best: lr=0.1 mu=1, 90.0%"):
        assert f"<!-- {text} -->" in svg
    check(draw_parallel(found, "test_loss", "min", tmp_path), {"parallel_coordinates"})


@pytest.mark.parametrize("count", [3, 24])
def test_parallel_coordinates_of_few_and_of_many_trials(count, tmp_path):
    found = [Trial(f"{i:03d}", {"a.lr": 10.0**-i, "a.mu": i, "a.one": 1}, records([i / count])) for i in range(count)]
    check(draw_parallel(found, "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_parallel_coordinates_of_a_sweep_in_which_nothing_worked(tmp_path):
    check(draw_parallel(trials()[2:4], "test_accuracy", "max", tmp_path), {"parallel_coordinates"})


def test_the_curves_of_the_best_trials(tmp_path):
    by_round, _ = check(draw_trials(trials(), tmp_path, [0.5], limit=2), {"curves_by_round", "curves_by_traffic"})
    assert "<!-- lr=0.1 mu=1 -->" in by_round
    assert "<!-- lr=1 -->" in by_round
    assert "lr=0.01" not in by_round
    long = [Trial("007", {"algorithm.a_long_name_of_a_key": 0.123}, records([0.5]))]
    by_round, _ = check(draw_trials(long, tmp_path, []), {"curves_by_round", "curves_by_traffic"})
    assert "<!-- 007 -->" in by_round
