"""Comparisons over seeds: closed forms of the statistics, and what may be said of how many seeds."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import records

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import MeanStd, number
from hedgerow.platform.config.loader import set_value
from hedgerow.platform.runs.comparison import compare
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.seed_groups import differing_settings, group_by_seed
from hedgerow.platform.runs.statistics import holm, paired, sign_flips
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.reports.page.layout import best_groups
from hedgerow.reports.sections.report_data import ReportData
from hedgerow.reports.sections.targets import targets


def test_the_deviation_is_a_samples_and_one_value_has_none():
    assert MeanStd.of([1.0, 2.0, 3.0]) == MeanStd(2.0, 1.0, 3)
    assert MeanStd.of([5.0]) == MeanStd(5.0, None, 1)
    assert MeanStd.known([1.0, 2.0, 3.0]) == MeanStd(2.0, 1.0, 3)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_the_mean_is_unknown_if_a_value_is(missing):
    assert MeanStd.known([1.0, missing, 3.0]) is None


def test_two_pairs_follow_cauchy_and_three_have_a_closed_form_too():
    two = paired([1.0, 3.0])
    # Student's t with one degree of freedom is Cauchy's distribution: t = 2 / (sqrt 2 / sqrt 2) = 2.
    assert two.p == pytest.approx(1 - 2 / math.pi * math.atan(2))
    assert two.high == pytest.approx(2 + math.tan(math.pi * 0.475))
    three = paired([1.0, 2.0, 3.0])
    # With two degrees P(|T| < t) = t / sqrt(t^2 + 2); here t^2 = 12, and it is 0.95 at t = 0.95 sqrt(2 / (1 - 0.95^2)).
    assert three.p == pytest.approx(1 - math.sqrt(12 / 14))
    margin = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    assert (three.low, three.high) == pytest.approx((2 - margin, 2 + margin))
    assert (three.mean, three.n, three.least) == (2.0, 3, 0.25)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.5, 0.5, 0.5], 2 / 8),
        ([0.0, 0.0], 1.0),
        ([math.log(10 / 12)] * 2, 2 / 4),
        # Equal but for rounding: five points of accuracy, and one sample of ten thousand.
        ([0.75 - 0.70, 0.80 - 0.75], 2 / 4),
        ([0.9001 - 0.9, 0.8001 - 0.8, 0.7001 - 0.7], 2 / 8),
    ],
)
def test_equal_differences_are_as_sure_as_their_signs_and_have_no_interval(differences, p):
    found = paired(differences)
    assert (found.p, found.low, found.high, found.flips) == (p, None, None, p)
    assert found.mean == pytest.approx(differences[0])


def test_sign_flips_count_all_patterns():
    # Of the eight sums of ±1 ±2 ±3 two are as far from 0 as 6, four as far as 4 = -1 + 2 + 3.
    assert sign_flips([1, 2, 3]) == 2 / 8
    assert sign_flips([-1, 2, 3]) == 4 / 8
    assert sign_flips([1, 1, -1]) == 1.0
    assert sign_flips([1.0] * 10) == 2 / 2**10


def test_many_pairs_are_drawn_and_no_p_is_0():
    assert 0 < sign_flips([1.0] * 30) < 0.001
    rng = np.random.default_rng(0)
    noise = rng.normal(size=30)
    # For normal differences both tests say nearly the same.
    assert sign_flips(noise) == pytest.approx(paired(noise).p, abs=0.03)


@settings(max_examples=50)
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=8), st.floats(0.5, 2))
def test_neither_sign_nor_scale_changes_a_p(differences, scale):
    one, other = paired(differences), paired([-scale * d for d in differences])
    assert one.flips == pytest.approx(other.flips)
    assert one.p == pytest.approx(other.p, abs=1e-6)
    assert one.flips >= one.least


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    # The two smallest of six.
    assert holm([0.01, 0.02], of=6) == pytest.approx([0.06, 0.1])


# ---- experiments -----------------------------------------------------------------------------------------------------


def made(
    name: str, seed: int, accuracies: list[float | None], /, cost: float = 1.0, folder: str = "", **settings
) -> Run:
    values = {
        "name": name, "seed": seed, "rounds": len(accuracies), "output": f"runs{seed}",
        "task": {"data": {"name": "digits"}, "partition": {"kind": "iid"}},
        "algorithm": {"name": "fedavg", "lr": 0.1, **settings},
        "evaluation": {"targets": [0.5], "target_metric": "test_accuracy"},
    }  # fmt: skip
    record = {"created": folder or f"2026-{seed:02d}", "status": "finished"}
    return Run(RunFolder(Path(folder or f"{name}-{seed}")), record, values, records(accuracies, cost))


def of(found, quantity: str, a: str, b: str):
    (pair,) = (
        p for p in found.pairs
        if (p.quantity.name, found.groups[p.a].label, found.groups[p.b].label) == (quantity, a, b)
    )  # fmt: skip
    return pair


def test_runs_are_of_one_experiment_whatever_their_names_seeds_and_places():
    runs = [made("a", 1, [0.1]), made("b", 0, [0.2], lr=0.2), made("a-again", 0, [0.3])]
    groups, notes = group_by_seed(runs)
    assert [group.seeds for group in groups] == [[0, 1], [0]]
    assert [group.label for group in groups] == ["a-again", "b"]
    assert not notes
    assert differing_settings(groups) == [{"key": "algorithm.lr", "a-again": 0.1, "b": 0.2}]


def test_of_runs_that_repeat_a_seed_the_last_counts():
    groups, (note,) = group_by_seed([made("a", 0, [0.9], folder="new"), made("a", 0, [0.1], folder="middle")])
    assert groups[0].runs[0].folder.path == Path("new")
    assert note.startswith("new repeats middle")


def test_lines_of_a_report_are_those_of_the_best_means_over_seeds():
    # The first seed alone orders the experiments the other way round.
    runs = [made(f"e{i}", seed, [0.5 + (0.02 * i if seed else -0.01 * i)], lr=i) for i in range(9) for seed in (0, 1)]
    best = best_groups(group_by_seed(runs)[0], ReportData())
    assert [group.label for group in best] == [f"e{i}" for i in range(2, 9)]
    diverged = replace(runs[-1], record=runs[-1].record | {"diverged": ["its loss is nan"]})
    best = best_groups(group_by_seed([*runs[:-1], diverged])[0], ReportData())
    assert [group.label for group in best] == [f"e{i}" for i in range(1, 8)]


def unfinished(run: Run, rounds: int) -> Run:
    """The same run on its way to so many rounds."""
    return replace(run, record=run.record | {"status": "interrupted"}, values=run.values | {"rounds": rounds})


def test_a_finished_run_of_a_seed_counts_before_a_later_one_that_is_not():
    done = made("a", 0, [0.1, 0.9], folder="2025")
    for later in (done, unfinished(done, 2)):
        later = replace(later, folder=RunFolder(Path("later")), record=later.record | {"created": "2026"})
        for runs in ([done, later], [later, done]):
            groups, (note,) = group_by_seed(runs)
            assert groups[0].runs == [later if later.is_finished else done]
            assert note.startswith("later repeats 2025 with the same seed")
    assert note.endswith("is not finished: only the earlier run is shown.")


def test_a_run_that_has_not_ended_is_not_compared_as_if_it_had():
    better = [made("b", seed, [0.4, 0.8 + seed / 100], lr=0.2) for seed in range(4)]
    worse = [made("a", seed, [0.4, 0.5]) for seed in range(4)]
    assert of(compare(group_by_seed(worse + better)[0]), "test accuracy", "a", "b").says == "b is better"
    rounds = [replace(run, values=run.values | {"rounds": 100}) for run in better]
    found = compare(group_by_seed([*worse, unfinished(better[0], 100), *rounds[1:]])[0])
    pairs = [pair for pair in found.pairs if (pair.a, pair.b) == (0, 1)]
    assert {(pair.says, pair.p) for pair in pairs} == {("not finished: no conclusion possible", None)}
    assert "b-0 has 2 of 100 rounds." in found.notes
    assert "The experiments differ in more than the method: rounds." in found.notes


def test_the_best_of_many_is_one_that_has_ended():
    runs = [made(f"e{i}", seed, [i / 10, (i + 1) / 10], lr=i + 1) for i in range(8) for seed in (0, 1)]
    runs[15] = unfinished(runs[15], 2)
    found = compare(group_by_seed(runs)[0])
    last = [pair for pair in found.pairs if pair.quantity.name == "test accuracy"]
    assert {pair.a for pair in last} == {6}
    assert [pair.says for pair in last if pair.b == 7] == ["not finished: no conclusion possible"]


@pytest.mark.parametrize(
    "key", ["task.model.hidden", "task.public.samples", "clients_per_round", "evaluation.every", "simulation.times"]
)
def test_what_differs_beside_the_method_is_told(key):
    one, other = made("a", 0, [0.1]), made("b", 0, [0.1])
    set_value(other.values, {}, tuple(key.split(".")), 8, "")
    (note,) = (note for note in compare(group_by_seed([one, other])[0]).notes if "method" in note)
    assert note == f"The experiments differ in more than the method: {key}."


def test_experiments_of_one_name_are_told_apart_by_method_then_by_setting():
    runs = [made("x", 0, [0.1], name="fedavg"), made("x", 0, [0.1], name="feddyn", alpha=0.1),
            made("x", 0, [0.1], name="feddyn", alpha=1.0), made("y", 0, [0.1], lr=0.3)]  # fmt: skip
    assert [group.label for group in group_by_seed(runs)[0]] == [
        "x fedavg",
        "x feddyn alpha=0.1",
        "x feddyn alpha=1",
        "y",
    ]
    assert [group.label for group in group_by_seed(runs[1:3])[0]] == ["alpha=0.1", "alpha=1"]


def test_pairs_are_of_the_same_seed_whatever_their_order():
    better = [made("b", seed, [0.4, 0.6 + seed / 100 + d], lr=0.2) for seed, d in ((2, 0.11), (0, 0.09), (1, 0.1))]
    worse = [made("a", seed, [0.4, 0.6 + seed / 100]) for seed in (1, 2, 0, 7)]
    found = compare(group_by_seed(worse + better)[0])
    pair = of(found, "test accuracy", "a", "b")
    assert pair.seeds == [0, 1, 2]
    assert pair.difference.mean == pytest.approx(0.1)
    # Deviation 0.01 of three: t = 0.1 / (0.01 / sqrt 3), and p in closed form.
    t2 = 300.0
    assert pair.p == pytest.approx(1 - math.sqrt(t2 / (t2 + 2)), rel=1e-3)
    assert (pair.says, pair.matters) == ("b is better", True)
    assert pair.text() == "+10.00 [+7.52, +12.48] points"
    assert found.table.texts[1]["test accuracy"] == "71.0 ± 2.0 %"


def test_transmissions_are_compared_as_ratios():
    dear = [made("dear", seed, [0.1, 0.6], cost=2.0 * (1 + seed), lr=0.2) for seed in range(3)]
    cheap = [made("cheap", seed, [0.1, 0.6], cost=1.0 + seed) for seed in range(3)]
    found = compare(group_by_seed(cheap + dear)[0])
    pair = of(found, "transmissions to 50 %", "cheap", "dear")
    assert (pair.text(), pair.p, pair.says) == ("2.00 × A", 2 / 8, "no difference shown")
    assert number(pair.quantity.cell(pair.a)) == "4 ± 2"
    dear[0] = made("dear", 0, [0.1, 0.6], cost=2.01, lr=0.2)
    pair = of(compare(group_by_seed(cheap + dear)[0]), "transmissions to 50 %", "cheap", "dear")
    assert pair.text() == "2.00 × A [1.99, 2.02]"
    assert pair.says == "cheap needs fewer"


def test_a_target_that_is_reached_before_the_first_transmission_has_no_ratio():
    runs = [made(name, seed, [0.6, 0.6], lr=lr) for name, lr in (("a", 0.1), ("b", 0.2)) for seed in range(3)]
    # No client was available in the first round of one seed.
    runs[1].records[0]["transmissions"] = 0.0
    pair = of(compare(group_by_seed(runs)[0]), "transmissions to 50 %", "a", "b")
    assert (pair.text(), pair.difference) == ("-", None)
    assert pair.says == "reached before the first transmission with some seed: no conclusion possible"
    assert number(pair.quantity.cell(pair.a)) == "0.6667 ± 0.5774"


def test_a_seed_that_misses_a_target_counts_with_what_it_spent_and_runs_without_the_metric_do_not():
    reached = {"cheap": [[0.1, 0.6], [0.1, 0.6], [0.1, 0.2, 0.6]], "dear": [[0.6], [0.6], [0.1] * 5]}
    runs = [
        made(name, seed, accuracies, cost, lr=cost)
        for cost, (name, each) in enumerate(reached.items(), start=1)
        for seed, accuracies in enumerate(each)
    ]
    runs = [replace(run, values=run.values | {"rounds": 5}) for run in [*runs, made("unmeasured", 0, [None] * 5, lr=3)]]
    groups = group_by_seed(runs)[0]
    (table,) = targets(groups)
    cheap, dear, unmeasured = table.texts
    # (2 + 2 + 3) / 3 rounds; at least (1 + 1 + 5) / 3, of two transmissions each: twice as many.
    assert (cheap["reached"], cheap["rounds"], cheap["ratio"]) == ("3 of 3", "2.333 ± 0.577", "1.0 × the cheapest")
    assert dear == {
        "experiment": "dear", "reached": "2 of 3", "rounds": "2.333+", "transmissions": "4.667+",
        "ratio": ">2.0 × the cheapest",
    }  # fmt: skip
    assert unmeasured == {"experiment": "unmeasured"} | dict.fromkeys(list(dear)[1:], "-")
    # Targets ended the runs.
    assert "Runs ended after 1 to 5 rounds: their last scores are of different rounds." in compare(groups).notes


def test_a_target_of_an_own_metric_is_reached_in_the_direction_of_its_mode():
    runs = [made(name, seed, [0.5] * 3, lr=lr) for name, lr in (("a", 0.1), ("b", 0.2)) for seed in (0, 1)]
    for run in runs:
        run.values["task"]["metrics"] = [{"name": "mine.distance", "mode": "min", "args": {}}]
        for record, value in zip(run.records, (0.9, 0.6, 0.4), strict=True):
            record["test_distance"] = value
    found = compare(group_by_seed(runs)[0], "test_distance", [0.6])
    assert [quantity.values[0] for quantity in found.quantities] == [
        {0: 0.4, 1: 0.4},
        {0: 0.4, 1: 0.4},
        {0: 2.0, 1: 2.0},
    ]


def test_of_a_metric_without_a_direction_none_is_better():
    runs = [made(name, seed, [0.5, 0.6], lr=lr) for name, lr in (("a", 0.1), ("b", 0.2)) for seed in range(3)]
    for run in runs:
        for record in run.records:
            record["seconds"] = record["round"] * (2.0 if run.name == "b" else 1.0) + 0.01 * run.seed * (
                run.name == "b"
            )
    groups = group_by_seed(runs)[0]
    (pair,) = compare(groups, "seconds").pairs
    assert (pair.quantity.name, pair.says) == ("time", "b has more")
    with pytest.raises(UserError, match="--target: whether more or less of seconds is better is not known"):
        compare(groups, "seconds", [1.0])
    many = [made("x", seed, [0.5], lr=lr) for lr in range(1, 8) for seed in (0, 1)]
    for run in many:
        run.records[0]["seconds"] = float(run.values["algorithm"]["lr"])
    found = compare(group_by_seed(many)[0], "seconds")
    assert {found.groups[pair.a].label for pair in found.pairs} == {"lr=7"}
    assert "More than 6 experiments: each is compared only with the one with the largest mean." in found.notes


def test_equal_differences_matter_from_six_seeds_on():
    runs = [made(name, seed, [end], lr=lr) for name, lr, end in (("a", 1, 0.5), ("b", 2, 0.75)) for seed in range(6)]
    five, six = (of(compare(group_by_seed(some)[0]), "test accuracy", "a", "b") for some in (runs[1:], runs))
    assert (five.p, five.says, five.text()) == (2 / 32, "no difference shown", "+25.00 points")
    assert (six.p, six.says) == (2 / 64, "b is better")
    json.dumps(compare(group_by_seed(runs)[0]).as_dict(), allow_nan=False)


def test_what_few_seeds_do_not_allow_is_said():
    one = compare(group_by_seed([made("a", 0, [0.1]), made("b", 0, [0.9], lr=1)])[0])
    assert of(one, "test accuracy", "a", "b").says == "one seed: no conclusion possible"
    assert any("One seed" in note for note in one.notes)
    apart = compare(group_by_seed([made("a", 0, [0.1]), made("b", 1, [0.9], lr=1)])[0])
    assert of(apart, "test accuracy", "a", "b").says == "no seed in common: no conclusion possible"
    some = [made("a", seed, [0.6]) for seed in (0, 1)] + [made("b", seed, [0.45 + 0.1 * seed], lr=1) for seed in (0, 1)]
    found = compare(group_by_seed(some)[0])
    assert of(found, "transmissions to 50 %", "a", "b").says == "not reached with every seed: no conclusion possible"
    assert found.table.texts[1]["transmissions to 50 %"] == "1 of 2 seeds reach it"
    assert of(found, "test accuracy", "a", "b").says == "no difference shown"


def test_a_run_that_diverged_hides_no_mean_behind_the_others():
    runs = [made("a", s, [0.5]) for s in (0, 1)] + [made("b", s, [0.5 if s else math.nan], lr=1) for s in (0, 1)]
    found = compare(group_by_seed(runs)[0])
    assert of(found, "test accuracy", "a", "b").says == "not every seed has a value: no conclusion possible"
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_same_numbers_are_the_same():
    runs = [made(name, seed, [0.5], lr=lr) for name, lr in (("a", 1), ("b", 2)) for seed in (0, 1, 2)]
    assert of(compare(group_by_seed(runs)[0]), "test accuracy", "a", "b").says == "identical numbers"


def test_of_many_experiments_each_is_compared_with_the_best():
    seeds = range(4)
    runs = [made(f"e{i}", seed, [i / 10 + (i + 1) * seed / 1000], lr=i + 1) for i in range(8) for seed in seeds]
    found = compare(group_by_seed(runs)[0])
    first = [pair for pair in found.pairs if pair.quantity.name == "test accuracy"]
    assert [(pair.a, pair.b) for pair in first] == [(7, i) for i in range(7)]
    assert all(pair.says == "e7 is better" for pair in first)
    # Of two seeds all that is left of it is their number.
    few = compare(group_by_seed([run for run in runs if run.seed < 2])[0])
    assert {pair.says for pair in few.pairs if pair.quantity.name == "test accuracy"} == {"no difference shown"}


def test_among_many_equal_experiments_the_best_is_seldom_taken_to_be_better():
    rng, groups, found = np.random.default_rng(0), 8, 0
    for _ in range(300):
        noise = rng.normal(0.5, 0.05, (groups, 4)).clip(0.01, 0.99)
        runs = [made(f"e{i}", seed, [noise[i, seed]], lr=i + 1) for i in range(groups) for seed in range(4)]
        compared = compare(group_by_seed(runs)[0], targets=[])
        found += any(pair.matters for pair in compared.pairs if pair.quantity.name == "test accuracy")
    # 5 % with two standard deviations of so many draws.
    assert found <= 300 * 0.05 + 2 * math.sqrt(300 * 0.05 * 0.95)


def test_a_metric_that_is_not_there_is_refused_by_name():
    groups = group_by_seed([made("a", 0, [0.1]), made("b", 0, [0.9], lr=1)])[0]
    with pytest.raises(UserError, match="none of these runs has 'test_acuracy'; did you mean 'test_accuracy'"):
        compare(groups, "test_acuracy")
    losses = compare(groups, "test_loss", [0.5])
    assert [quantity.name for quantity in losses.quantities] == [
        "test loss", "best test loss", "transmissions to loss 0.5",
    ]  # fmt: skip
