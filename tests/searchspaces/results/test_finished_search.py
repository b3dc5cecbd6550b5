"""What a search leaves behind: labels, rows, tables, and what is said about Hedge."""

import csv
import math

import pytest
from made_up import hand_made, records, trials

from hedgerow.platform.common.table import Table
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.finished_search import read_trials
from hedgerow.searchspaces.results.search_table import hedge_sentences
from hedgerow.searchspaces.results.trials import (
    Trial,
    best_per_metric,
    choice,
    expert_folder,
    hedge_summary,
    ranked,
    short_label,
    short_names,
    sweep_rows,
    trial_labels,
    trial_table,
)

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


def test_the_thousandth_trial_follows_all_others(tmp_path):
    numbers = [2, 100, 101, 999, 1000, 1001]
    for number in numbers:
        folder = expert_folder(tmp_path, number)
        folder.path.mkdir(parents=True)
        folder.update(overrides={}, status="finished")
    # Hedge's records name experts by their number.
    assert [int(trial.name) for trial in read_trials(RunFolder(tmp_path))] == numbers


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_a_sweeps_rows_are_sorted_by_the_final_metric_with_diverged_and_dead_trials_last():
    rows = sweep_rows(trials(), "test_accuracy", "max", [0.6, 0.85])
    assert [row["trial"] for row in rows] == ["000", "001", "004", "002", "003"]
    assert rows[0] == {
        "trial": "000", "algorithm.lr": 0.1, "algorithm.mu": 1.0, "test_accuracy": 0.9, "best_test_accuracy": 0.9,
        "transmissions": 8, "rounds_to_0.6": 4, "transmissions_to_0.6": 8, "ratio_to_0.6": 8.0,
        "rounds_to_0.85": 4, "transmissions_to_0.85": 8, "ratio_to_0.85": 1.0, "status": "finished",
    }  # fmt: skip
    assert rows[1] == {
        "trial": "001", "algorithm.lr": 1.0, "algorithm.mu": None, "test_accuracy": 0.7, "best_test_accuracy": 0.8,
        "transmissions": 4, "rounds_to_0.6": 1, "transmissions_to_0.6": 1, "ratio_to_0.6": 1.0,
        "rounds_to_0.85": None, "transmissions_to_0.85": None, "ratio_to_0.85": None, "status": "finished",
    }  # fmt: skip
    assert math.isnan(rows[3]["test_accuracy"])
    assert rows[3]["best_test_accuracy"] == 0.3
    dead = {"trial": "003", "algorithm.lr": 100.0, "status": "died"}
    assert rows[4] == dict.fromkeys(rows[0]) | dead


def test_a_loss_is_better_when_it_is_smaller():
    rows = sweep_rows(trials(), "test_loss", "min", [])
    assert [row["trial"] for row in rows] == ["000", "001", "004", "002", "003"]
    assert rows[1]["best_test_loss"] == pytest.approx(0.2)


@pytest.mark.parametrize("metric", ["validation_accuracy", "test_accuracy"])
def test_equals_are_ordered_by_their_validation_loss_or_else_by_the_loss_of_the_metric(metric):
    losses, own = [0.9, 0.2, 0.5, math.nan], metric.replace("accuracy", "loss")
    for name in ("validation_loss", own):
        last = [{metric: 0.8, "transmissions": 1, name: loss} for loss in losses]
        better = {metric: 0.81, "transmissions": 1, name: 5.0}
        equal = [Trial(f"{i:03d}", {}, [record]) for i, record in enumerate([*last, better])]
        assert [trial.name for trial in ranked(equal, metric, "max")] == ["004", "001", "002", "000", "003"]
        (best,) = [row for row in best_per_metric(equal[:4], []) if row["metric"] == metric]
        assert best["trial"] == "001"


def test_trials_are_ranked_by_the_mean_of_their_last_evaluations():
    curves = {
        "000": [0.1, 0.5, 0.6, 0.9],
        "001": [0.2, 0.8, 0.8, 0.8],
        "002": [0.8, 0.8, 0.8, 0.8],
        "003": [0.9, 0.7, math.nan, 0.9],
    }
    found = [
        Trial(
            name, {}, [{"round": i, "validation_accuracy": value, "transmissions": i} for i, value in enumerate(curve)]
        )
        for name, curve in curves.items()
    ]
    for trial in found:
        # A round without an evaluation.
        trial.records.insert(2, {"round": 9, "transmissions": 1})

    def order(smooth: float) -> list[str]:
        return [trial.name for trial in ranked(found, "validation_accuracy", "max", smooth)]

    # With equal scores, the mean over all rounds decides.
    assert order(0.5) == ["002", "001", "000", "003"]
    assert order(0.0)[:2] == ["000", "003"]
    rows = sweep_rows(found, "validation_accuracy", "max", [], smooth=0.5)
    assert [row["trial"] for row in rows] == order(0.5)
    assert [row["smoothed_validation_accuracy"] for row in rows[:3]] == pytest.approx([0.8, 0.8, 0.75])
    assert rows[2]["validation_accuracy"] == 0.9
    assert choice(found, "validation_accuracy", "max", [], 0.5).name == "002"
    assert choice(found, "validation_accuracy", "max", []).name == "000"
    (best,) = best_per_metric(found[:2], [], smooth=0.5)
    assert (best["metric"], best["trial"], best["value"]) == ("smoothed_validation_accuracy", "001", pytest.approx(0.8))
    # The value that decides is shown, not the last one, which is 0.9.
    (best,) = best_per_metric(found[:1], [], smooth=0.5)
    assert (best["trial"], best["value"]) == ("000", pytest.approx(0.75))
    assert trial_table([best]).texts[0]["metric"] == "smoothed validation accuracy"


def test_trials_that_failed_or_diverged_come_after_the_others_and_are_the_best_by_no_metric():
    found = [
        Trial("000", {"lr": 1}, records([0.9]), "failed"),
        Trial("001", {"lr": 2}, records([0.8]), "finished", "the run diverged"),
        Trial("002", {"lr": 3}, records([0.5])),
        Trial("003", {"lr": 4}, records([0.4]), "stopped"),
    ]
    assert [trial.name for trial in ranked(found, "test_accuracy", "max")] == ["002", "003", "000", "001"]
    rows = best_per_metric(found, [0.4])
    assert {row["trial"] for row in rows} == {"002"}
    assert [trial.can_win("test_accuracy") for trial in found] == [False, False, True, True]


def test_equals_without_a_loss_keep_their_order():
    equal = [Trial(name, {}, records([0.5])) for name in ("000", "001", "002")]
    assert [trial.name for trial in ranked(equal, "test_accuracy", "max")] == ["000", "001", "002"]


def test_hedges_last_weights_go_with_their_experts_wherever_those_are_sorted():
    found = trials()[:3]
    hedge = [{"next_weights": [0.5, 0.3, 0.2]}, {"next_weights": [0.1, 0.7, 0.2]}]
    rows = sweep_rows(found[::-1], "test_accuracy", "max", [], hedge)
    assert [(row["trial"], row["weight"]) for row in rows] == [("000", 0.1), ("001", 0.7), ("002", 0.2)]


def test_an_algorithm_that_transmits_nothing_has_no_ratio():
    (row,) = sweep_rows([Trial("000", {}, records([0.9], cost=0))], "test_accuracy", "max", [0.5])
    assert (row["transmissions_to_0.5"], row["ratio_to_0.5"]) == (0, None)
    assert trial_table([row]).texts[0]["transmissions to 50 %"] == "0"


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
    assert rows[0]["ratio_to_0.6"] == 8.0


def test_the_best_by_a_metric_of_ones_own_has_the_direction_that_the_task_declares():
    costs = {"000": 3.0, "001": 1.5, "002": 2.0}
    found = [
        Trial(name, {}, [{"round": 1, "transmissions": 1, "validation_cost": cost, "validation_gain": cost}])
        for name, cost in costs.items()
    ]
    rows = best_per_metric(found, [], modes={"cost": "min", "gain": "max"})
    assert {row["metric"]: row["trial"] for row in rows} == {"validation_cost": "001", "validation_gain": "000"}


def test_a_metric_that_no_trial_has_is_left_out():
    assert [row["metric"] for row in best_per_metric(trials()[1:2], [])] == ["test_accuracy", "test_loss"]
    assert best_per_metric([Trial("000", {}, [], "died")], [0.5]) == [
        {"metric": "transmissions_to_0.5", "trial": None, "configuration": None, "value": None}
    ]


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_csv_file_reads_back(tmp_path):
    rows = sweep_rows(trials(), "test_accuracy", "max", [0.85])
    rows[0]["algorithm.mu"] = 1 / 3
    Table(rows).csv(tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open(newline="") as file:
        back = list(csv.DictReader(file))
    assert list(back[0]) == list(rows[0])
    assert [row["trial"] for row in back] == ["000", "001", "004", "002", "003"]
    assert float(back[0]["algorithm.mu"]) == 1 / 3
    assert back[1]["transmissions_to_0.85"] == ""
    assert back[3]["test_accuracy"] == "nan"


def test_a_csv_file_of_rows_with_different_columns_has_them_all(tmp_path):
    Table(best_per_metric(trials(), [0.99])).csv(tmp_path / "best.csv")
    lines = (tmp_path / "best.csv").read_text().splitlines()
    assert lines[-1].startswith("transmissions_to_0.99,,,,")


def test_markdown_has_percentages_ratios_and_marks_of_what_was_not_reached():
    found = trials()
    rows = sweep_rows([found[0], found[3], found[4]], "test_accuracy", "max", [0.5])
    assert trial_table(rows).markdown() == (
        "| trial | lr | mu | test accuracy | best test accuracy | transmissions | rounds to 50 % | "
        "transmissions to 50 % | status |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| 000 | 0.1 | 1 | 90.0 % | 90.0 % | 8 | 3 | 6 (1.0 × the cheapest) | finished |\n"
        "| 004 | 0.01 | - | 20.0 % | 20.0 % | 4 | - | 4+ | finished |\n"
        "| 003 | 100 | - | - | - | - | - | - | died |\n"
    )
    found[4].records = records([0.1] * 20)
    assert (
        "| 20+ (>3.3 × the cheapest) |" in trial_table(sweep_rows(found[::4], "test_accuracy", "max", [0.5])).markdown()
    )


def test_the_rows_of_the_winner_are_marked():
    table = trial_table(sweep_rows(trials(), "test_accuracy", "max", []), winner="001")
    assert (table.cells["trial"][:2], table.marked) == (["000", "001 (winner)"], [1])


def test_markdown_of_the_best_formats_each_value_as_its_metric():
    lines = trial_table(best_per_metric(trials(), [0.6, 0.99])).markdown().splitlines()
    assert lines[2].startswith("| test accuracy | 000 | lr=0.1 mu=1 | 90.0 % | 8 | 4 | 8 (8.0 × the cheapest) |")
    assert lines[3].startswith("| test loss | 000 | lr=0.1 mu=1 | 0.100 |")
    assert lines[6].startswith("| transmissions to 60 % | 001 | lr=1 | 1 | 4 | 1 | 1 (1.0 × the cheapest) |")
    assert lines[7].startswith("| transmissions to 99 % | - | - | not reached |")


def test_markdown_escapes_pipes_and_line_ends():
    assert (
        Table([{"trial": "a|b", "note": "two\nlines"}]).markdown()
        == "| trial | note |\n| --- | --- |\n| a\\|b | two lines |\n"
    )
    assert trial_table([]).markdown() == ""


# ---- Hedge ----------------------------------------------------------------------------------------------------------


def test_hedges_summary_averages_over_the_rounds():
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy")
    assert summary == {
        "metric": "test_accuracy", "rounds": 3, "experts": 2, "hedge_loss": pytest.approx(0.71 / 3), "best": "a",
        "best_loss": pytest.approx(0.1), "regret": pytest.approx(0.41), "bound": 2.5, "leader": "a",
        "leader_weight": 0.95, "certain": 3, "expected": pytest.approx((0.7 + 0.97) / 2), "leader_metric": None,
        "best_metric": None, "price": None, "stopped": 0,
    }  # fmt: skip


def test_the_leaders_and_the_best_experts_metric_come_from_the_experts_records():
    experts = [Trial("000", {}, records([0.8, 0.9, 1.0])), Trial("001", {}, records([0.6, 0.5]))]
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy", experts)
    assert summary["leader_metric"] == pytest.approx((0.8 + 0.5 + 1.0) / 3)
    assert summary["best_metric"] == pytest.approx(0.9)


def test_an_expert_that_failed_does_not_lead_at_the_end():
    experts = [Trial("000", {}, records([0.8, 0.9]), "failed"), Trial("001", {}, records([0.6, 0.5, 0.5]))]
    summary = hedge_summary(hand_made(), ["a", "b"], "test_accuracy", experts)
    assert (summary["leader"], summary["leader_weight"]) == ("b", 0.05)
    experts[1].status = "failed"
    assert hedge_summary(hand_made(), ["a", "b"], "test_accuracy", experts)["leader"] == "a"


def test_a_search_that_never_made_up_its_mind_says_so():
    experts, (first, last) = [Trial(f"{i:03d}", {}, records([0.8, 0.9])) for i in range(2)], hand_made()[:2]
    # Only the weights after the last round, in which no expert reports any more, are above 90 %.
    rounds = [first, last | {"next_weights": [0.95, 0.05]}]
    summary = hedge_summary(rounds, ["a", "b"], "test_accuracy", experts)
    assert summary["certain"] is None
    assert "At the end a leads with 95.0 % of the weight; no weight exceeded 90 % before." in hedge_sentences(summary)


def test_stopped_experts_are_counted_with_their_price():
    stopped = [{**record, "awake": 1, "price": 1.9} for record in hand_made()]
    summary = hedge_summary(stopped, ["a", "b"], "test_accuracy")
    assert "(within its bound, 2.500)" in hedge_sentences(summary)
    assert "1 of 2 experts were stopped. Against one of them the bound is at most 1.900 higher" in hedge_sentences(
        summary
    )


def test_the_sentences_about_hedge():
    summary = hedge_summary(hand_made(), ["lr=0.1", "lr=1"], "test_accuracy")
    assert hedge_sentences(summary) == (
        "Hedge over 2 experts: its mean expected loss is 0.237 over 3 rounds; the best expert in hindsight, "
        "lr=0.1, has 0.100; the total regret is 0.410 (within its bound, 2.500).\n"
        "At the end lr=0.1 leads with 95.0 % of the weight; 90 % was first exceeded in round 3.\n"
        "Expected test accuracy, averaged over the rounds: 83.5 %."
    )
    assert "(above its bound, 0.200)" in hedge_sentences(summary | {"bound": 0.2})
    assert "regret is 0.410.\n" in hedge_sentences(summary | {"bound": None})
