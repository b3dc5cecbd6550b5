"""Promotion: the blocks are those of a plain reference, all work is used, and the regret in work is bounded."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from ray.tune.experiment import Trial

from hedgerow.searchspaces.hedge.promotion import Promotion, WorkBlock
from hedgerow.searchspaces.hedge.promotion_scheduler import PromotionScheduler
from hedgerow.searchspaces.spaces.smoothing import smoothed


def curves(seed: int, experts: int = 12, reports: int = 30) -> np.ndarray:
    """Losses (experts, reports) in [0, 1] that fall at different rates, with noise; multiples of 1/64, so that
    there are ties and all sums are exact.
    """
    draw = np.random.default_rng(seed)
    time, final, rate = (
        np.arange(1, reports + 1),
        draw.uniform(0.1, 0.6, (experts, 1)),
        draw.uniform(1, 15, (experts, 1)),
    )
    noisy = final + (0.95 - final) * np.exp(-time / rate) + 0.03 * draw.standard_normal((experts, reports))
    return np.round(64 * np.clip(noisy, 0, 1)) / 64


def run(losses: np.ndarray, work: float = math.inf, slots: int = 1, order: int = 0, **settings) -> tuple:
    """Blocks in the order of their starts and the state; with several slots, a random one of the experts reports."""
    rule, draw = Promotion(*losses.shape, **settings), np.random.default_rng(order)
    blocks: list[WorkBlock] = []
    while work > 0:
        while len(rule.running) < slots and (block := rule.decide()):
            rule.start(block)
            blocks.append(block)
        if not rule.running:
            break
        expert = int(draw.choice(list(rule.running)))
        rule.report(expert, losses[expert, len(rule.losses[expert])])
        work -= 1
    return blocks, rule


def reference(losses: np.ndarray, grace: int, reduction: int, smooth: float) -> list[WorkBlock]:
    """Blocks of one slot, by the words of the rule: sets of the experts that completed a rung and that went on."""
    experts, reports = losses.shape
    rungs = [min(reports, grace)]
    while rungs[-1] < reports:
        rungs.append(min(reports, rungs[-1] * reduction))
    done, went_on = [set() for _ in rungs], [set() for _ in rungs]
    ran, blocks = np.zeros(experts, int), []

    def place(i: int) -> tuple:
        window = losses[i, ran[i] - max(1, math.ceil(round(smooth * ran[i], 9))) : ran[i]]
        return window.mean(), losses[i, : ran[i]].mean(), i

    def go(i: int, rung: int) -> None:
        blocks.append(WorkBlock(i, rungs[rung]))
        ran[i] = rungs[rung]
        done[rung].add(i)
        if rung:
            went_on[rung - 1].add(i)

    while (ran < reports).any():
        due = [k for k in range(len(rungs) - 1) if len(done[k]) // reduction > len(went_on[k])]
        if due:
            go(min(done[due[-1]] - went_on[due[-1]], key=place), due[-1] + 1)
        elif (ran == 0).any():
            go(int(ran.argmin()), 0)
        else:
            best = min((i for i in range(experts) if ran[i] < reports), key=place)
            go(best, rungs.index(ran[best]) + 1)
    return blocks


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.grid(keep=6)
def test_the_blocks_are_those_of_a_plain_reference_and_use_all_the_work(seed):
    losses = curves(seed)
    for grace, reduction, smooth in product((1, 2, 5), (2, 3, 20), (0.0, 0.25, 0.5, 1.0)):
        blocks, rule = run(losses, grace=grace, reduction=reduction, smooth=smooth)
        assert blocks == reference(losses, grace, reduction, smooth)
        assert [len(each) for each in rule.losses] == [30] * 12
        # The choice is that of a grid with the same smoothing.
        last = losses[:, -max(1, math.ceil(smooth * 30)) :].mean(1).round(9)
        assert last[rule.best] == last.min()
        if reduction == 20:
            assert blocks[:12] == [WorkBlock(i, grace) for i in range(12)]


@pytest.mark.parametrize("slots", [1, 2, 5, 12])
def test_no_expert_is_promoted_before_enough_others_have_passed_its_rung(slots):
    for seed in range(20):
        losses = curves(seed)
        rule, draw = Promotion(*losses.shape), np.random.default_rng(seed)
        while True:
            while len(rule.running) < slots and (block := rule.decide()):
                fresh = [i for i in range(12) if not rule.losses[i] and i not in rule.running]
                ran = len(rule.losses[block.expert])
                assert block.until == next(rung for rung in rule.rungs if rung > ran)
                passed = sum(len(each) >= ran for each in rule.losses)
                # Only once all have begun, an expert may go on without a promotion.
                assert not ran or not fresh or passed >= 3
                rule.start(block)
            if not rule.running:
                break
            expert = int(draw.choice(list(rule.running)))
            rule.report(expert, losses[expert, len(rule.losses[expert])])
        assert {len(each) for each in rule.losses} == {30}


def test_the_decisions_depend_on_the_reports_alone():
    losses = curves(3)
    whole, _ = run(losses)
    seen, order = [0] * 12, []
    for block in whole:
        order += [(block.expert, losses[block.expert, i]) for i in range(seen[block.expert], block.until)]
        seen[block.expert] = block.until
    for cut in range(0, len(order), 7):
        rule = Promotion(*losses.shape)
        for expert, loss in order[:cut]:
            if expert not in rule.running:
                rule.start(rule.next_block(expert))
            rule.report(expert, loss)
        again = list(rule.running)
        while rule.running or (block := rule.decide()):
            if not rule.running:
                rule.start(block)
                again.append(block.expert)
            (expert,) = rule.running
            rule.report(expert, losses[expert, len(rule.losses[expert])])
        assert again == [block.expert for block in whole[len(whole) - len(again) :]]
        assert [len(each) for each in rule.losses] == [30] * 12


def test_ties_go_to_the_lower_loss_then_to_the_better_mean_then_to_the_lower_number():
    def first(losses: list[list[float]], ties: list[float]) -> int | None:
        rule = Promotion(len(losses), 8, grace=4)
        for expert, each in enumerate(losses):
            rule.start(WorkBlock(expert, 4))
            for loss in each:
                rule.report(expert, loss, ties[expert])
        return rule.best

    assert first([[0.5, 0.5, 0.4, 0.4]] * 3, [2.0, 1.0, 1.0]) == 1
    assert first([[0.5, 0.5, 0.4, 0.4], [0.5, 0.4, 0.4, 0.4], [0.5, 0.4, 0.4, 0.4]], [1.0] * 3) == 1
    assert first([[0.5, 0.5, 0.4, 0.4], [0.9, 0.9, 0.3, 0.3]], [math.nan, 9.0]) == 1
    assert first([[0.5, 0.5, 0.4, math.nan], [0.9, 0.9, 0.6, 0.6]], [1.0, 1.0]) == 1


def test_an_expert_that_failed_gets_no_more_work_and_the_others_get_theirs():
    losses = curves(1)
    rule = Promotion(*losses.shape)
    while (block := rule.decide()) is not None:
        rule.start(block)
        if block.expert == 4:
            rule.end(4, failed=True)
        while block.expert in rule.running:
            rule.report(block.expert, losses[block.expert, len(rule.losses[block.expert])])
    assert [len(each) for each in rule.losses] == [0 if i == 4 else 30 for i in range(12)]


@pytest.mark.parametrize("seed", range(20))
def test_the_regret_in_work_is_bounded_against_any_sequence_of_experts_as_they_were_scheduled(seed):
    losses, draw = curves(seed, experts=6, reports=20), np.random.default_rng(seed)
    rule, share = Promotion(6, 20, smooth=0.5, gamma=0.3, share=0.02), 0.02
    scores, suffered = [], []
    # Any allocation, also one that depends on the weights.
    while left := [i for i in range(6) if len(rule.losses[i]) < 20]:
        expert = max(left, key=lambda i: rule.weights.probs()[i]) if draw.random() < 0.5 else int(draw.choice(left))
        rule.start(WorkBlock(expert, len(rule.losses[expert]) + 1))
        weights = rule.weights.probs()
        rule.report(expert, losses[expert, len(rule.losses[expert])])
        now = np.array([rule.score(i) if each else math.nan for i, each in enumerate(rule.losses)])
        scores.append(now)
        suffered.append(np.nansum(weights * now) / weights[rule.known].sum())
    total, eta = len(scores), -math.log(0.3)
    assert rule.weights.total == pytest.approx(sum(suffered), abs=1e-9)
    for switches in range(4):
        for _ in range(50):
            edges = [0, *np.sort(draw.choice(np.arange(1, total), switches, replace=False)), total]
            rival = 0.0
            for start, end in pairwise(edges):
                known = np.flatnonzero(np.isfinite(scores[start]))
                sums = np.sum(scores[start:end], 0)[known]
                rival += sums.min() if draw.random() < 0.5 else float(draw.choice(sums))
            path = (switches + 1) * math.log(6) - switches * math.log(share)
            path -= (total - switches - 1) * math.log(1 - share)
            assert sum(suffered) - rival <= path / eta + eta * total / 8 + 1e-9


def test_smoothing_takes_the_mean_of_the_last_share_of_the_values():
    values = [0.1, 0.2, 0.4, 0.8]
    assert [smoothed(values, share) for share in (0.0, 0.25, 0.26, 0.5, 1.0)] == pytest.approx(
        [0.8, 0.8, 0.6, 0.6, 0.375]
    )
    assert smoothed([0.0] * 27 + [3.0] * 3, 0.1) == 3.0
    # In floating point, 0.07 * 100 is more than 7.
    assert smoothed([0.0] * 93 + [3.0] * 7, 0.07) == 3.0
    assert smoothed([math.inf, 0.5], 0.5) == 0.5
    assert math.isnan(smoothed([math.nan, 0.5], 1.0))


def test_a_permanent_failure_frees_the_slot_although_restarts_are_left():
    rule = Promotion(2, 4)
    scheduler = PromotionScheduler(rule, 1, "validation_loss", "min", (0.0, 1.0))
    trials = [Trial("x", config={"number": i}, stub=True, max_failures=3) for i in range(2)]
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    assert scheduler.choose_trial_to_run(None) is trials[0]
    scheduler.on_trial_error(None, trials[0])
    assert rule.ended == {0}
    assert scheduler.choose_trial_to_run(None) is trials[1]


def test_losses_outside_the_range_are_reported_once_at_the_end():
    said: list[str] = []
    scheduler = PromotionScheduler(Promotion(1, 2), 1, "validation_loss", "min", (0.0, 1.0), warn=said.append)
    trial = Trial("x", config={"number": 0}, stub=True)
    scheduler.on_trial_add(None, trial)
    scheduler.choose_trial_to_run(None)
    scheduler.on_trial_result(None, trial, {"round": 1, "validation_loss": 2.3})
    scheduler.on_trial_complete(None, trial, {"round": 2, "validation_loss": 0.5})
    assert len(said) == 1
    assert "50.0 % of the reported values of validation_loss were outside the range [0, 1]" in said[0]
