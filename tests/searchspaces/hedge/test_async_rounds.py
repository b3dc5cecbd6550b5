"""Hedge's rounds from reports in any order: the weights of a round never depend on who reported when."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.weights import AdaHedge, Hedge, make_hedge
from hedgerow.searchspaces.results.trials import Trial, choice

LOSSES = np.array([[0.1, 0.5, 0.9], [0.2, 0.4, 0.9], [0.3, 0.3, 0.8], [0.0, 0.6, 1.0]])
"""The hand trace of hedge.md, section 7, check 1: a row per round, a column per expert."""


def rounds(n: int = 3, **settings) -> tuple[HedgeRounds, list[dict]]:
    records: list[dict] = []
    settings = {"metric": "loss", "mode": "min", "range": (0, 1), "on_round": records.append} | settings
    return HedgeRounds(Hedge(n, 0.1), **settings), records


def feed(buffer: HedgeRounds, order: list[tuple[int, int]], losses: np.ndarray = LOSSES) -> None:
    for round, expert in order:
        buffer.report(expert, round + 1, {"loss": losses[round, expert]})


IN_ORDER = [(round, expert) for round in range(4) for expert in range(3)]
ONE_BY_ONE = [(round, expert) for expert in (2, 0, 1) for round in range(4)]


def test_the_hand_trace_uses_the_weights_from_before_the_losses():
    buffer, records = rounds()
    feed(buffer, IN_ORDER)
    assert [r["hedge_loss"] for r in records] == pytest.approx([0.5, 0.322423, 0.312326, 0.127430], abs=1e-6)
    assert records[0]["weights"] == pytest.approx([1 / 3] * 3)
    assert records[3]["weights"] == pytest.approx([0.792903, 0.199168, 0.007929], abs=1e-6)
    assert records[3]["cumulative_loss"] == pytest.approx(1.262179, abs=1e-6)
    assert records[3]["regret"] == pytest.approx(1.262179 - 0.6, abs=1e-6)
    assert [r["leader"] for r in records] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("accuracies", "weights"),
    [
        # One round: gamma ** loss, normalised. Then three; the leader is the worst in the last one.
        ([[0.3, 0.6, 0.95]], [0.134, 0.267, 0.599]),
        ([[0.9, 0.85], [0.9, 0.85], [0.2, 0.95]], [0.183, 0.817]),
    ],
)
def test_the_losses_of_the_last_round_decide_on_the_winner(accuracies, weights):
    buffer, records = rounds(len(weights), metric="validation_accuracy", mode="max", range=None)
    for number, row in enumerate(accuracies, 1):
        for expert, accuracy in enumerate(row):
            buffer.report(expert, number, {"validation_accuracy": accuracy})
    assert records[-1]["next_weights"] == pytest.approx(weights, abs=1e-3)
    trials = [
        Trial(f"{expert:03d}", {}, [{"round": 1, "validation_accuracy": accuracy}])
        for expert, accuracy in enumerate(accuracies[-1])
    ]
    winner = choice(trials, "validation_accuracy", "max", records)
    assert winner is trials[int(np.argmax(weights))]


def test_an_expert_that_skips_a_round_sleeps_in_it():
    buffer, records = rounds(2, metric="validation_accuracy", mode="max", range=None)
    for number in range(1, 5):
        buffer.report(0, number, {"validation_accuracy": 1.0} if number % 2 == 0 else {})
        buffer.report(1, number, {"validation_accuracy": 0.6})
    assert [record["losses"][0] for record in records] == [None, 0.0, None, 0.0]
    # Twice a loss of 0.4 more than the first one has.
    share = 1 / (1 + 0.1**0.8)
    assert records[-1]["next_weights"] == pytest.approx([share, 1 - share], abs=1e-9)


def shuffled(seed: int) -> list[tuple[int, int]]:
    """An order in which every expert reports its own rounds in sequence, as trials do."""
    queues = {expert: list(range(4)) for expert in range(3)}
    draw = random.Random(seed)
    order = []
    while any(queues.values()):
        expert = draw.choice([e for e, q in queues.items() if q])
        order.append((queues[expert].pop(0), expert))
    return order


@pytest.mark.parametrize("order", [ONE_BY_ONE, *(shuffled(seed) for seed in range(20))], ids=str)
def test_the_records_are_the_same_bits_in_whatever_order_experts_report(order):
    buffer, records = rounds()
    feed(buffer, order)
    reference, expected = rounds()
    feed(reference, IN_ORDER)
    assert records == expected


@pytest.mark.parametrize("rate", ["fixed", "adahedge", "fixed_share", "exp3"])
@pytest.mark.parametrize("seed", range(5))
def test_reports_of_several_rounds_together_have_the_same_bits(tmp_path, rate, seed):
    losses, draw = np.random.default_rng(seed).random((20, 3)), random.Random(seed)

    def begin(**settings) -> tuple[HedgeRounds, list[dict]]:
        records: list[dict] = []
        hedge = make_hedge(rate, 3, rounds=20, seed=seed)
        range = None if rate == "adahedge" else (0, 1)
        return HedgeRounds(hedge, "loss", "min", range, on_round=records.append, **settings), records

    one_by_one, expected = begin()
    feed(one_by_one, [(round, expert) for round in range(20) for expert in range(3)], losses)
    together, records = begin(journal=tmp_path / "journal")
    round = 0
    while round < 20:
        until = min(20, round + draw.randint(1, 6))
        for expert in draw.sample(range(3), 3):
            together.accept((expert, r + 1, {"loss": losses[r, expert]}) for r in range(round, until))
            assert len(records) == round
            assert together.ahead(expert) in (0, until - round)
        together.settle()
        round = until
        assert len(records) == round
    assert records == expected
    assert together.weights.tolist() == one_by_one.weights.tolist()
    # A report that was not settled before the crash is in the journal.
    _, again = begin(journal=tmp_path / "journal")
    assert again == expected


def test_an_expert_that_retires_is_awake_in_the_rounds_that_it_completed_before():
    def end(settles: bool) -> list[dict]:
        buffer, records = rounds(2)
        # Expert 1 has no loss in round 1.
        buffer.accept([(0, 1, {"loss": 0.5}), (1, 2, {"loss": 0.25}), (0, 2, {"loss": 0.5})])
        if settles:
            buffer.settle()
        buffer.retire(1, penalised=False)
        return records

    assert end(settles=False) == end(settles=True)
    assert [record["losses"] for record in end(settles=False)] == [[0.5, None], [0.5, 0.25]]


def test_reports_before_an_invalid_one_are_kept(tmp_path):
    buffer, records = rounds(2, journal=tmp_path / "journal")
    with pytest.raises(UserError, match="expert 1 reported loss = 'high' in round 2"):
        buffer.accept([(0, 1, {"loss": 0.5}), (1, 1, {"loss": 0.25}), (1, 2, {"loss": "high"})])
    buffer.settle()
    _, again = rounds(2, journal=tmp_path / "journal")
    assert again == records
    assert len(records) == 1


def test_a_round_waits_for_its_last_expert():
    buffer, records = rounds()
    feed(buffer, [(0, 0), (1, 0), (0, 1)])
    assert records == []
    assert buffer.ahead(0) == 2
    feed(buffer, [(0, 2)])
    assert [r["round"] for r in records] == [1]
    assert buffer.ahead(0) == 1


def test_what_was_reported_before_is_passed_over():
    buffer, records = rounds()
    feed(buffer, [*IN_ORDER[:6], *IN_ORDER])
    assert [r["round"] for r in records] == [1, 2, 3, 4]


def test_rounds_without_the_metric_are_no_rounds_of_hedge():
    buffer, records = rounds(1)
    for round in range(1, 7):
        buffer.report(0, round, {"loss": 0.5} if round % 2 == 0 else {"train_loss": 1.0})
    assert [r["round"] for r in records] == [2, 4, 6]


def test_an_accuracy_to_be_maximised_is_the_loss_one_minus_it():
    buffer, records = rounds(2, metric="accuracy", mode="max", range=None, averaged=("other",))
    buffer.report(0, 1, {"accuracy": 0.75, "other": 4.0})
    buffer.report(1, 1, {"accuracy": 0.25, "other": 8.0})
    assert records[0]["losses"] == [0.25, 0.75]
    assert records[0]["expected"] == {"accuracy": 0.5, "other": 6.0}


@pytest.mark.parametrize(
    ("metric", "mode"), [("validation_cost", "min"), ("validation_gain", "max"), ("validation_accuracy", "max")]
)
def test_the_deployed_policies_have_their_accuracy_and_loss_whatever_metric_is_weighed(metric, mode):
    reports = [
        {"validation_cost": 3.0, "validation_gain": 7.0, "validation_accuracy": 0.7, "validation_loss": 1.5},
        {"validation_cost": 2.0, "validation_gain": 4.0, "validation_accuracy": 0.4, "validation_loss": 0.5},
    ]
    bounds = None if metric == "validation_accuracy" else (0, 10)
    buffer, records = rounds(2, metric=metric, mode=mode, range=bounds, averaged=list(reports[0]))
    for round in (1, 2):
        for expert, report in enumerate(reports):
            buffer.report(expert, round, report)
    best = 1 if mode == "min" else 0
    scores = {"accuracy": [0.7, 0.4][best], "loss": [1.5, 0.5][best]}
    assert records[1]["deployed"]["leader"] == {"expert": best, **scores}


def test_a_cross_entropy_is_clipped_and_scaled():
    buffer, records = rounds(2, range=(0, 4.0))
    buffer.report(0, 1, {"loss": 1.0})
    buffer.report(1, 1, {"loss": 9.0})
    assert records[0]["losses"] == [0.25, 1.0]


def test_one_round_that_outweighs_all_others_is_a_warning():
    for first, says in ((1e30, "the values of loss in round 1 were 1e+30 apart, more than in all"), (4.0, None)):
        buffer = HedgeRounds(AdaHedge(2), "loss", "min")
        for round in range(1, 12):
            assert buffer.warning is None or round > 10
            for expert, loss in enumerate((1.0, 2.0) if round > 1 else (first, 1.0)):
                buffer.report(expert, round, {"loss": loss})
        assert (buffer.warning or "None").startswith(str(says))


def test_a_range_may_begin_anywhere_and_clips_on_both_sides():
    buffer, records = rounds(3, range=(-2.0, 2.0))
    for expert, loss in enumerate((-1.0, -5.0, 2.5)):
        buffer.report(expert, 1, {"loss": loss})
    assert records[0]["losses"] == [0.25, 0.0, 1.0]


def test_more_than_one_per_cent_of_clipped_reports_is_a_warning_with_the_share():
    buffer, _ = rounds(1, range=(0, 1))
    for round in range(1, 100):
        buffer.report(0, round, {"loss": 0.5})
    # A report that is not finite is the worst loss, but nothing was clipped.
    buffer.report(0, 100, {"loss": math.nan})
    buffer.report(0, 101, {"loss": 2.0})
    assert buffer.warning is None
    buffer.report(0, 102, {"loss": 2.0})
    assert buffer.warning is not None
    assert buffer.warning.startswith("2.0 % of the reported values of loss were outside the range [0, 1]")


def test_a_unit_of_raw_loss_has_the_gamma_of_the_range():
    raw = 4.0 * np.array(LOSSES)
    buffer, _ = rounds(3, range=(0, 4.0))
    buffer.hedge = Hedge(3, 0.1**4.0)
    feed(buffer, IN_ORDER, raw)
    # The thesis's literal form: gamma = 0.1 to the power of the cross-entropy.
    direct = 0.1 ** raw.sum(0)
    assert buffer.hedge.probs() == pytest.approx(direct / direct.sum(), abs=1e-12)


class TestWithoutARange:
    """Losses of any size, weighed by AdaHedge."""

    def scale_free(self, n: int = 3, **settings) -> tuple[HedgeRounds, list[dict]]:
        records: list[dict] = []
        return HedgeRounds(AdaHedge(n), "loss", "min", on_round=records.append, **settings), records

    def test_the_cross_entropies_of_ten_classes_move_the_weights(self):
        buffer, records = self.scale_free()
        # All begin at ln 10 = 2.3 and fall, the first fastest.
        for round in range(1, 21):
            for expert, speed in enumerate((0.03, 0.02, 0.01)):
                buffer.report(expert, round, {"loss": math.log(10) - speed * round})
        assert records[0]["losses"] == pytest.approx([2.272585, 2.282585, 2.292585])
        assert records[-1]["weights"][0] > 0.9
        assert 0 <= records[-1]["regret"] <= records[-1]["bound"]

    def test_the_weights_do_not_depend_on_unit_and_origin_and_the_regret_is_in_the_unit(self):
        (plain, _), (scaled, _) = self.scale_free(), self.scale_free()
        feed(plain, IN_ORDER)
        feed(scaled, IN_ORDER, 1000 * LOSSES - 50)
        assert scaled.hedge.probs() == pytest.approx(plain.hedge.probs(), abs=1e-9)
        assert scaled.hedge.regret == pytest.approx(1000 * plain.hedge.regret)
        assert scaled.hedge.bound() == pytest.approx(1000 * plain.hedge.bound())

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_loss_that_is_not_finite_is_the_largest_so_far(self, bad):
        buffer, records = self.scale_free(2)
        for round, losses in enumerate([(bad, bad), (7.0, 2.0), (bad, 3.0)], 1):
            for expert, loss in enumerate(losses):
                buffer.report(expert, round, {"loss": loss})
        assert records[0]["losses"] == [1.0, 1.0]
        assert records[1]["weights"] == [0.5, 0.5]
        assert records[2]["losses"] == [7.0, 3.0]

    def test_an_expert_that_died_pays_the_largest_loss_so_far(self):
        buffer, records = self.scale_free(2)
        buffer.report(0, 1, {"loss": 9.0})
        buffer.report(1, 1, {"loss": 4.0})
        buffer.retire(1, penalised=True)
        buffer.report(0, 2, {"loss": 3.0})
        assert records[1]["losses"] == [3.0, 9.0]


@pytest.mark.parametrize("value", [50.0, 1.01, -0.2])
def test_what_is_no_accuracy_is_refused_at_the_first_report(value):
    buffer, records = rounds(2, metric="accuracy", mode="max", range=None)
    buffer.report(0, 1, {"accuracy": 1 + 1e-9})
    with pytest.raises(UserError) as caught:
        buffer.report(1, 1, {"accuracy": value})
    assert f"expert 1 reported accuracy = {value:g} in round 1" in str(caught.value)
    assert "must be an accuracy between 0 and 1; report a fraction instead of a percentage" in str(caught.value)
    buffer.report(1, 1, {"accuracy": 0.5})
    assert records[0]["losses"] == [0.0, 0.5]


def test_rewards_with_a_range_are_the_losses_of_the_same_distances_from_the_best():
    rewards, records = rounds(mode="max", range=(-200, 0))
    losses, expected = rounds(range=(0, 200))
    for round, expert in IN_ORDER:
        loss = 250 * LOSSES[round, expert]
        rewards.report(expert, round + 1, {"loss": -loss})
        losses.report(expert, round + 1, {"loss": loss})
    assert [record["losses"] for record in records] == [record["losses"] for record in expected]
    assert rewards.weights.tolist() == losses.weights.tolist()
    assert rewards.warning is not None
    assert "were outside the range [-200, 0]" in rewards.warning


@pytest.mark.parametrize(
    ("hedge", "settings", "message"),
    [
        (Hedge(2, 0.1), {"mode": "min"}, "a loss without a range needs the scale-free rule"),
        (Hedge(2, 0.1), {"mode": "max", "range": (1, 0)}, "two finite numbers [low, high] with low < high, not [1, 0]"),
        (Hedge(2, 0.1), {"mode": "min", "range": (1, 0)}, "two finite numbers [low, high] with low < high, not [1, 0]"),
        (Hedge(2, 0.1), {"mode": "min", "range": (0, math.inf)}, "two finite numbers"),
    ],
)
def test_a_range_that_does_not_go_with_the_rule_is_one_sentence(hedge, settings, message):
    with pytest.raises(UserError) as caught:
        HedgeRounds(hedge, "loss", **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_the_worst_loss_and_is_left_out_of_the_mean(bad):
    buffer, records = rounds(2)
    buffer.report(0, 1, {"loss": bad})
    buffer.report(1, 1, {"loss": 0.5})
    assert records[0]["losses"] == [1.0, 0.5]
    assert records[0]["expected"] == {"loss": 0.5}


def test_an_expert_that_died_pays_the_worst_loss_from_then_on():
    buffer, records = rounds()
    feed(buffer, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])
    buffer.retire(2, penalised=True)
    assert records[1]["losses"] == [0.2, 0.4, 1.0]
    reference, expected = rounds()
    worst = LOSSES.copy()
    worst[1, 2] = 1.0
    feed(reference, IN_ORDER[:6], worst)
    assert records[1]["weights"] == expected[1]["weights"]
    assert buffer.hedge.probs().tolist() == reference.hedge.probs().tolist()


def test_skipped_it_sleeps_and_keeps_its_weight():
    buffer, records = rounds(missing="skip")
    feed(buffer, IN_ORDER[:3])
    before = buffer.hedge.probs()
    buffer.retire(2, penalised=True)
    feed(buffer, [(1, 0), (1, 1)])
    assert records[1]["losses"] == [0.2, 0.4, None]
    share = before[:2] / before[:2].sum()
    assert records[1]["hedge_loss"] == pytest.approx(share @ [0.2, 0.4])
    after = buffer.hedge.probs()
    assert after[2] == pytest.approx(before[2], abs=1e-12)
    assert after[0] / after[1] == pytest.approx(before[0] / before[1] * 0.1 ** (0.2 - 0.4))


def test_the_records_of_experts_that_ended_are_those_of_specialists():
    """Expert 2 ends after round 2, and expert 0 after round 5 of 8; weights and regret in NumPy."""
    losses, ends = np.random.default_rng(5).random((8, 3)), {2: 2, 0: 5}
    buffer, records = rounds()
    p, eta, regrets = np.full(3, 1 / 3), math.log(10), np.zeros(3)
    for t in range(8):
        awake = [expert for expert in range(3) if t < ends.get(expert, 8)]
        feed(buffer, [(t, expert) for expert in awake], losses)
        for expert in awake:
            if ends.get(expert) == t + 1:
                buffer.retire(expert, penalised=False)
        record = records[t]
        assert record["weights"] == pytest.approx(p.tolist(), abs=1e-12)
        assert [value is not None for value in record["losses"]] == [expert in awake for expert in range(3)]
        mass = p[awake].sum()
        suffered = (p * losses[t])[awake].sum() / mass
        assert record["hedge_loss"] == pytest.approx(suffered, abs=1e-12)
        regrets[awake] += suffered - losses[t, awake]
        assert record["regret"] == pytest.approx(regrets.max(), abs=1e-12)
        moved = p[awake] * np.exp(-eta * losses[t, awake])
        p[awake] = moved * mass / moved.sum()


@pytest.mark.parametrize("cut", range(13))
def test_a_journal_continues_at_any_line_as_if_nothing_had_happened(tmp_path, cut):
    whole, expected = rounds()
    feed(whole, ONE_BY_ONE)
    journal = tmp_path / "losses.jsonl"
    first, _ = rounds(journal=journal)
    feed(first, ONE_BY_ONE[:cut])
    # The crash tore the line that was being written.
    with journal.open("a") as file:
        file.write('{"expert": 1, "rou')
    again, records = rounds(journal=journal)
    feed(again, ONE_BY_ONE)
    assert records == expected
    _, records = rounds(journal=journal)
    assert records == expected


@pytest.mark.parametrize("rate", ["exp3", "exp3_ix"])
@pytest.mark.parametrize("cut", [0, 2, 7, 11])
def test_the_draws_and_weights_of_a_bandit_continue_from_the_journal(tmp_path, rate, cut):
    def bandit(journal: Path | None) -> tuple[HedgeRounds, list[dict]]:
        records: list[dict] = []
        hedge = make_hedge(rate, 3, rounds=4, seed=5)
        return HedgeRounds(hedge, "loss", "min", (0, 1), journal=journal, on_round=records.append), records

    whole, expected = bandit(None)
    feed(whole, IN_ORDER)
    journal = tmp_path / "losses.jsonl"
    feed(bandit(journal)[0], ONE_BY_ONE[:cut])
    again, records = bandit(journal)
    feed(again, ONE_BY_ONE)
    assert records == expected
    assert again.hedge.probs().tolist() == whole.hedge.probs().tolist()
    for record in records:
        assert record["hedge_loss"] == record["losses"][record["played"]]


def test_the_death_of_an_expert_is_in_the_journal(tmp_path):
    first, before = rounds(journal=tmp_path / "losses.jsonl")
    feed(first, IN_ORDER[:3])
    first.retire(2, penalised=True)
    feed(first, [(1, 0), (1, 1)])
    _, after = rounds(journal=tmp_path / "losses.jsonl")
    assert after == before
    assert len(after) == 2


def kept_by(folder, **settings) -> Path:
    """The journal of a search of three experts, after two rounds."""
    journal = folder / "losses.jsonl"
    buffer, _ = rounds(journal=journal, **settings)
    buffer.enter(0, "lr 0.1")
    feed(buffer, IN_ORDER[:6])
    return journal


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"n": 2}, "`experts` is 3 in it and 2 here"),
        ({"n": 5}, "`experts` is 3 in it and 5 here"),
        ({"metric": "error"}, "`metric` is loss in it and error here"),
        ({"mode": "max", "range": None}, "`mode` is min in it and max here"),
        ({"range": (0, 2.5)}, r"`range` is [0, 1] in it and [0, 2.5] here"),
    ],
)
def test_a_journal_of_another_search_is_refused_and_stays_as_it_is(tmp_path, other, why):
    journal = kept_by(tmp_path)
    before = journal.read_bytes()
    with pytest.raises(UserError) as caught:
        rounds(journal=journal, **other)
    assert f"{journal} is not a journal of this search: {why}; restore the right file" in str(caught.value)
    assert journal.read_bytes() == before


def test_a_journal_of_other_configurations_is_refused(tmp_path):
    buffer, _ = rounds(journal=kept_by(tmp_path))
    buffer.enter(0, "lr 0.1")
    buffer.enter(1, "lr 0.2")
    again, _ = rounds(journal=tmp_path / "losses.jsonl")
    with pytest.raises(UserError, match="not a journal of this search: expert 1 has another configuration in it"):
        again.enter(1, "lr 0.3")


@pytest.mark.parametrize(
    "line", ["{", "null", "[]", '"round"', '{"expert": 9, "round": 3, "loss": 0.1}', '{"round": 3}']
)
def test_a_damaged_line_within_a_journal_is_one_sentence(tmp_path, line):
    journal = kept_by(tmp_path)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:4], line, *lines[5:], ""]))
    with pytest.raises(
        UserError, match=r"losses\.jsonl(:5 is damaged| is not a journal of this search: it contains a report of)"
    ):
        rounds(journal=journal)


def test_a_journal_without_the_line_that_describes_its_search_is_refused(tmp_path):
    journal = kept_by(tmp_path)
    _head, *reports = journal.read_text().splitlines()
    journal.write_text("\n".join([*reports, ""]))
    with pytest.raises(UserError, match="not a journal of this search: `experts` is None in it and "):
        rounds(journal=journal)


def test_an_expert_that_retired_reports_no_more():
    buffer, records = rounds(2)
    for expert in (0, 1):
        buffer.report(expert, 1, {"loss": 0.5})
    buffer.retire(1, penalised=True)
    buffer.report(0, 2, {"loss": 0.5})
    buffer.report(1, 2, {"loss": 0.0})
    assert [record["losses"] for record in records] == [[0.5, 0.5], [0.5, 1.0]]


@pytest.mark.parametrize("value", ["high", None, True, [0.5]])
def test_a_loss_that_is_no_number_is_one_sentence(value):
    buffer, _ = rounds()
    with pytest.raises(UserError) as caught:
        buffer.report(1, 7, {"loss": value})
    assert f"expert 1 reported loss = {value!r} in round 7, which is not a number" in str(caught.value)
