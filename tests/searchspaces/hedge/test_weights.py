"""Hedge and its relatives: every numerical check of hedge.md, section 7, with its reference numbers."""

import json
import math

import numpy as np
import pytest

from hedgerow.searchspaces.hedge.weights import (
    AdaHedge,
    AnytimeHedge,
    Exp3,
    Exp3IX,
    FixedShare,
    FollowTheLeader,
    Hedge,
    make_hedge,
)

RNG = np.random.default_rng(7)
ETA = math.log(10)


def run(hedge: Hedge, losses: np.ndarray) -> np.ndarray:
    """The weights p^1 ... p^{T+1}, (T + 1, N)."""
    weights = [hedge.probs()]
    for row in losses:
        hedge.update(row)
        weights.append(hedge.probs())
    return np.array(weights)


def adversary(hedge: Hedge, rounds: int) -> None:
    """Loss 1 on the heaviest expert, 0 elsewhere."""
    for _ in range(rounds):
        hedge.update(np.arange(hedge.experts) == hedge.leader)


def iid(rounds: int, experts: int) -> np.ndarray:
    return np.random.default_rng((rounds, experts)).random((rounds, experts))


def one_better(rounds: int, experts: int) -> np.ndarray:
    """Losses in [0.2, 1], and one expert 0.2 better."""
    losses = 0.2 + 0.8 * iid(rounds, experts)
    losses[:, experts // 2] -= 0.2
    return losses


# ---- 1 to 3: traces ---------------------------------------------------------------------------------------------


def test_the_hand_trace():
    hedge = Hedge(3, 0.1)
    losses = [(0.1, 0.5, 0.9), (0.2, 0.4, 0.9), (0.3, 0.3, 0.8), (0.0, 0.6, 1.0)]
    expected = [
        (0.333333, 0.333333, 0.333333), (0.642427, 0.255755, 0.101818), (0.779538, 0.195811, 0.024651),
        (0.792903, 0.199168, 0.007929), (0.939765, 0.059295, 0.000940),
    ]  # fmt: skip
    suffered = []
    for row, p in zip(losses, expected[:-1], strict=True):
        assert hedge.probs() == pytest.approx(p, abs=1e-6)
        suffered.append(hedge.update(row))
    assert hedge.probs() == pytest.approx(expected[-1], abs=1e-6)
    assert suffered == pytest.approx([0.5, 0.322423, 0.312326, 0.127430], abs=1e-6)
    assert hedge.total == pytest.approx(1.262179, abs=1e-6)
    assert hedge.losses == pytest.approx([0.6, 1.8, 3.6], abs=1e-12)
    assert hedge.regret == pytest.approx(0.662179, abs=1e-6)


def test_the_weights_are_a_softmax_of_the_cumulative_losses():
    losses = iid(50, 6)
    weights = run(Hedge(6, 0.1), losses)
    scores = np.vstack([np.zeros(6), losses.cumsum(0)])
    closed = np.exp(-ETA * scores) / np.exp(-ETA * scores).sum(1, keepdims=True)
    assert np.abs(weights - closed).max() < 1e-12


def test_two_experts_that_alternate():
    losses = np.tile(np.eye(2), (500, 1))
    hedge = Hedge(2, 0.1)
    weights = run(hedge, losses)
    assert hedge.total == pytest.approx(704.545455, abs=1e-6)
    assert hedge.losses.min() == 500
    assert weights[:3] == pytest.approx(np.array([(0.5, 0.5), (1 / 11, 10 / 11), (0.5, 0.5)]))
    tuned = Hedge.tuned(2, 1000)
    run(tuned, losses)
    assert tuned.regret == pytest.approx(9.3039, abs=1e-4)
    leader = FollowTheLeader(2)
    run(leader, losses)
    assert leader.regret == pytest.approx(250)


# ---- 4 and 11: bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "experts", "eta", "gamma", "h3", "root", "h2"),
    [
        (100, 4, 0.3330, 0.7168, 8.33, 16.65, 29.38), (100, 8, 0.4079, 0.6651, 10.20, 20.39, 29.69),
        (100, 24, 0.5042, 0.6040, 12.61, 25.21, 30.16), (200, 4, 0.2355, 0.7902, 11.77, 23.55, 58.17),
        (200, 8, 0.2884, 0.7495, 14.42, 28.84, 58.47), (200, 24, 0.3565, 0.7001, 17.83, 35.65, 58.94),
        (1000, 4, 0.1053, 0.9000, 26.33, 52.66, 288.43), (1000, 8, 0.1290, 0.8790, 32.24, 64.49, 288.73),
        (1000, 24, 0.1595, 0.8526, 39.86, 79.73, 289.20),
    ],
)  # fmt: skip
def test_the_table_of_tuned_rates(rounds, experts, eta, gamma, h3, root, h2):
    hedge = Hedge.tuned(experts, rounds)
    assert hedge.eta == pytest.approx(eta, abs=6e-5)
    assert math.exp(-hedge.eta) == pytest.approx(gamma, abs=6e-5)
    assert math.log(experts) / hedge.eta + hedge.eta * rounds / 8 == pytest.approx(h3, abs=6e-3)
    assert math.sqrt(2 * rounds * math.log(experts)) == pytest.approx(root, abs=6e-3)
    assert math.log(experts) / ETA + ETA * rounds / 8 == pytest.approx(h2, abs=6e-3)


STREAMS = {"iid": iid, "one better": one_better}
RATES = ["fixed", "tuned", "anytime", "adahedge", "fixed_share"]
BANDITS = ["exp3", "exp3_ix"]


@pytest.mark.grid
@pytest.mark.parametrize("experts", [2, 4, 8, 24])
@pytest.mark.parametrize("rounds", [100, 200, 1000])
@pytest.mark.parametrize("rate", RATES)
def test_no_rate_exceeds_its_bound(rate, rounds, experts):
    for stream in STREAMS.values():
        hedge = make_hedge(rate, experts, rounds=rounds)
        run(hedge, stream(rounds, experts))
        assert hedge.regret <= hedge.bound() + 1e-9
    hedge = make_hedge(rate, experts, rounds=rounds)
    adversary(hedge, rounds)
    assert hedge.regret <= hedge.bound() + 1e-9
    if rate in ("tuned", "anytime"):
        assert hedge.bound() <= math.sqrt(2 * rounds * math.log(experts)) + math.sqrt(math.log(experts) / 8)


def test_the_fixed_gamma_of_the_thesis_is_no_square_root_algorithm():
    hedge = Hedge(8, 0.1)
    adversary(hedge, 1000)
    assert hedge.regret == pytest.approx(137.71, abs=0.01)
    assert hedge.regret > math.sqrt(2 * 1000 * math.log(8))
    best, n = hedge.losses.min(), math.log(8)
    assert (best * ETA + n) / 0.9 - best == pytest.approx(197.11, abs=0.01)
    assert n / ETA + ETA * 1000 / 8 == pytest.approx(288.73, abs=0.01)
    assert hedge.bound() == pytest.approx(197.11, abs=0.01)
    for make, observed in ((Hedge(24, 0.1), 57.72), (Hedge.tuned(24, 1000), 3.91)):
        adversary(make, 1000)
        assert make.regret == pytest.approx(observed, abs=0.01)


def test_the_bounds_of_anytime_hedge_and_of_small_losses():
    hedge = AnytimeHedge(24)
    run(hedge, iid(1000, 24))
    assert hedge.bound() == pytest.approx(80.36, abs=0.01)
    # H1 with its constants, for every expert.
    fixed = Hedge(24, 0.1)
    run(fixed, iid(200, 24))
    assert fixed.total <= 2.558428 * fixed.losses.min() + 1.111111 * math.log(24)


def test_adahedge_pays_at_most_twice_its_gap_and_the_gap_only_grows():
    hedge = AdaHedge(24)
    gaps = [0.0]
    for row in iid(1000, 24):
        hedge.update(row)
        gaps.append(hedge.gap)
        assert hedge.regret <= 2 * hedge.gap + 1e-9
    assert np.diff(gaps).min() >= -1e-12
    spread = math.sqrt(1000 * math.log(24)) + 4 / 3 * math.log(24) + 2
    assert 2 * hedge.gap <= spread


# ---- 5 to 9: properties -----------------------------------------------------------------------------------------


def test_an_expert_that_is_better_in_every_round_takes_all_the_weight():
    losses = np.full((50, 24), 0.5)
    losses[:, 3] = 0.3
    weights = run(Hedge(24, 0.1), losses)
    for t, p in enumerate(weights):
        assert 1 - p[3] <= 23 * 0.1 ** (0.2 * t) + 1e-12
    assert 1 - weights[50][3] == pytest.approx(23e-10, rel=1e-3)


@pytest.mark.parametrize("rate", RATES)
def test_a_constant_on_all_losses_changes_nothing(rate):
    losses = iid(60, 5)
    shifted = losses + RNG.normal(size=(60, 1))
    one, two = make_hedge(rate, 5, rounds=60), make_hedge(rate, 5, rounds=60)
    tolerance = 1e-12 if rate != "adahedge" else 1e-9
    assert np.abs(run(one, losses) - run(two, shifted)).max() <= tolerance


def test_a_scale_is_a_power_of_gamma_and_nothing_to_adahedge():
    losses = iid(60, 5)
    assert np.abs(run(Hedge(5, 0.1), losses) - run(Hedge(5, 0.1 ** (1 / 3)), 3 * losses)).max() <= 1e-12
    assert np.abs(run(AdaHedge(5), losses) - run(AdaHedge(5), 1000 * losses)).max() <= 1e-9


@pytest.mark.parametrize("rate", RATES)
def test_experts_in_another_order_have_their_weights_in_that_order(rate):
    losses, order = iid(40, 6), RNG.permutation(6)
    one = run(make_hedge(rate, 6, rounds=40), losses)
    two = run(make_hedge(rate, 6, rounds=40), losses[:, order])
    assert np.abs(one[:, order] - two).max() <= 1e-12


def test_an_expert_listed_twice_has_twice_the_weight():
    losses = iid(40, 4)
    single, double = run(Hedge(4), losses), run(Hedge(5), np.hstack([losses, losses[:, :1]]))
    assert np.abs(double[:, 0] - double[:, 4]).max() == 0
    odds = (double[:, 0] + double[:, 4]) / double[:, 1]
    assert odds == pytest.approx(2 * single[:, 0] / single[:, 1])


def test_gamma_one_never_moves_equal_losses_change_nothing_and_one_expert_has_all():
    assert np.abs(run(Hedge(4, 1.0), iid(20, 4)) - 0.25).max() == 0
    assert np.abs(run(Hedge(4), np.tile(RNG.random((20, 1)), 4)) - 0.25).max() <= 1e-15
    losses = iid(20, 1)
    for rate in [*RATES, "leader", *BANDITS]:
        hedge = make_hedge(rate, 1, rounds=20)
        assert np.abs(run(hedge, losses) - 1).max() == 0
        assert hedge.total == pytest.approx(losses.sum())
        assert hedge.bound() >= -1e-12


def test_weights_out_of_the_range_of_doubles_come_back():
    hedge = Hedge(2, 0.1)
    for _ in range(1000):
        hedge.update((0.2, 0.9))
    assert hedge.probs().tolist() == [1.0, 0.0]
    assert (hedge.losses[1] - hedge.losses[0]) * ETA == pytest.approx(1611.81, abs=0.01)
    for _ in range(1001):
        hedge.update((0.9, 0.2))
    assert hedge.leader == 1


def test_huge_losses_and_what_is_not_finite():
    hedge = Hedge(3)
    hedge.update((1e6, 0.0, 5e5))
    assert hedge.probs().tolist() == [0.0, 1.0, 0.0]
    one, two = Hedge(3), Hedge(3)
    assert one.update((math.nan, 0.5, math.inf)) == two.update((1.0, 0.5, 1.0))
    assert one.probs().tolist() == two.probs().tolist()


# ---- 10 and 12: switching, drawing ------------------------------------------------------------------------------


def test_fixed_share_follows_a_best_expert_that_changes():
    losses = np.full((400, 4), 0.6)
    losses[:200, 0] = losses[200:, 1] = 0.1
    plain, sharing = Hedge(4, 0.1), FixedShare(4, 0.1, 0.01)
    weights = run(plain, losses)
    shared = run(sharing, losses)
    assert plain.total == pytest.approx(140.6104, abs=1e-4)
    assert weights[-1] == pytest.approx([0.5, 0.5, 0, 0], abs=1e-6)
    assert plain.losses.min() == pytest.approx(140)
    assert sharing.total == pytest.approx(45.5239, abs=1e-4)
    assert shared[205, 1] > 0.5 > shared[204, 1]
    assert shared[1:].min() >= 0.01 / 4 - 1e-12
    assert run(FixedShare(4, 0.1, 0.0), losses) == pytest.approx(weights)


def test_drawn_experts_suffer_what_the_average_does():
    losses = iid(30, 5)
    hedge = Hedge(5, 0.5)
    rng = np.random.default_rng(0)
    drawn = np.zeros(2000)
    for row in losses:
        drawn += row[[hedge.sample(rng) for _ in range(2000)]]
        hedge.update(row)
    assert abs(drawn.mean() - hedge.total) < 4 * drawn.std() / math.sqrt(2000)


# ---- bandits: one expert is observed per round ------------------------------------------------------------------


@pytest.mark.parametrize("exploration", [0.0, 0.3])
def test_the_estimate_of_exp3_is_unbiased_and_that_of_exp3_ix_is_at_most_the_loss(exploration):
    losses = np.array([0.1, 0.7, 1.0, 0.4])
    exp3, implicit = Exp3(4, 30, exploration=exploration), Exp3IX(4, 30, exploration=0.05)
    for hedge in (exp3, implicit):
        run(hedge, iid(10, 4))
    # The expectation over the expert that is drawn, by enumeration.
    p, q = exp3.probs(), implicit.probs()
    assert sum(p[i] * exp3.estimate(losses, i) for i in range(4)) == pytest.approx(losses, abs=1e-12)
    assert sum(q[i] * implicit.estimate(losses, i) for i in range(4)) == pytest.approx(
        losses * q / (q + 0.05), abs=1e-12
    )
    assert [np.flatnonzero(exp3.estimate(losses, i)).tolist() for i in range(4)] == [[0], [1], [2], [3]]


def test_three_rounds_of_exp3_by_hand():
    """N = 2, T = 2: eta = sqrt(2 ln 2 / 4) = 0.588705. Seed 1 draws the experts 1, 0 and 0."""
    hedge, losses = Exp3(2, 2, seed=1), np.array([(0.2, 0.6), (0.5, 0.9), (0.8, 0.4)])
    assert hedge.eta == pytest.approx(0.588705, abs=1e-6)
    assert (hedge.update(losses[0]), hedge.played) == (0.6, 1)
    # 0.6 / (1/2) = 1.2 on expert 1: p = (1, e^(-1.2 eta)) / Z.
    assert hedge.probs() == pytest.approx([0.669615, 0.330385], abs=1e-6)
    assert (hedge.update(losses[1]), hedge.played) == (0.5, 0)
    # 0.5 / 0.669615 = 0.746697 on expert 0.
    assert hedge.probs() == pytest.approx([0.566322, 0.433678], abs=1e-6)
    assert (hedge.update(losses[2]), hedge.played) == (0.8, 0)
    # 0.8 / 0.566322 = 1.412623 more on expert 0.
    assert hedge.probs() == pytest.approx([0.362448, 0.637552], abs=1e-6)
    assert hedge.total == pytest.approx(1.9)
    assert hedge.losses == pytest.approx([1.5, 1.9])


def test_two_rounds_of_mixing_and_of_implicit_exploration_by_hand():
    losses = np.array([0.2, 0.6])
    mixed = Exp3(2, 2, exploration=0.2)
    assert (mixed.update(losses), mixed.played) == (0.6, 1)
    # 0.8 * 0.669615 + 0.1
    assert mixed.probs() == pytest.approx([0.635692, 0.364308], abs=1e-6)
    implicit = Exp3IX(2, 2)
    assert implicit.implicit == pytest.approx(0.294353, abs=1e-6)
    assert (implicit.update(losses), implicit.played) == (0.6, 1)
    # 0.6 / (0.5 + 0.294353) = 0.755332 on expert 1.
    assert implicit.probs() == pytest.approx([0.609371, 0.390629], abs=1e-6)


def switching(rounds: int, experts: int) -> np.ndarray:
    """Each expert is the best for a while, the last one for longest, which misleads a bandit that settles early."""
    losses = np.ones((rounds, experts))
    starts = np.linspace(0, rounds // 2, experts).astype(int)
    for expert, (start, end) in enumerate(zip(starts, [*starts[1:], rounds], strict=True)):
        losses[start:end, expert] = 0.0
    return losses


@pytest.mark.parametrize("stream", [one_better, switching])
@pytest.mark.exhaustive("convergence")
def test_the_regret_of_exp3_is_within_its_bound_on_average(stream):
    for exploration in (0.0, 0.05):
        regrets = []
        for seed in range(20):
            hedge = Exp3(4, 500, seed, exploration)
            run(hedge, stream(500, 4))
            regrets.append(hedge.regret)
        assert np.mean(regrets) <= hedge.bound() < 500
    assert Exp3(4, 500).bound() == 0
    full = Exp3(4, 500)
    full.rounds = 500
    assert full.bound() == pytest.approx(math.sqrt(2 * 500 * 4 * math.log(4)))


def test_the_regret_of_exp3_ix_is_within_its_bound_with_high_probability():
    """Neu 2015, Theorem 1: T = 1000, N = 2, delta = 0.05."""
    above = 0
    for seed in range(20):
        hedge = Exp3IX(2, 1000, seed)
        run(hedge, switching(1000, 2))
        above += hedge.regret > hedge.bound()
    work = 2 * 2 * 1000
    assert hedge.bound() == pytest.approx(
        2 * math.sqrt(work * math.log(2)) + (math.sqrt(work / math.log(2)) + 1) * math.log(40)
    )
    assert above <= 1
    assert Exp3IX(2, 1000, exploration=0.01).bound() == 0


@pytest.mark.parametrize("rate", BANDITS)
def test_the_weights_of_a_bandit_do_not_depend_on_the_losses_that_it_does_not_observe(rate):
    one, two = (make_hedge(rate, 5, rounds=40, seed=3, exploration=0.1) for _ in range(2))
    for row in iid(40, 5):
        one.update(row)
        hidden = 1 - row
        hidden[one.played] = row[one.played]
        two.update(hidden)
        assert two.played == one.played
        assert np.array_equal(one.probs(), two.probs())
    other = make_hedge(rate, 5, rounds=40, seed=4, exploration=0.1)
    assert not np.array_equal(run(other, iid(40, 5))[-1], one.probs())


@pytest.mark.parametrize("rate", BANDITS)
def test_a_bandit_draws_among_the_experts_that_are_awake(rate):
    hedge, awake = make_hedge(rate, 4, rounds=60, seed=1), np.array([True, False, True, False])
    run(hedge, iid(20, 4))
    for row in iid(40, 4):
        before = hedge.probs()
        suffered = hedge.update(row, awake)
        assert hedge.played in (0, 2)
        assert suffered == row[hedge.played]
        assert hedge.probs()[[1, 3]] == pytest.approx(before[[1, 3]], abs=1e-12)


# ---- sleeping experts, states, mistakes -------------------------------------------------------------------------


def specialists(losses, awake, eta):
    """Freund et al. 1997, in probabilities: the weights p^1 ... p^{T+1}, and the losses h_1 ... h_T."""
    weights, suffered = [np.full(losses.shape[1], 1 / losses.shape[1])], []
    for loss, mask in zip(losses, awake, strict=True):
        p = weights[-1].copy()
        mass = p[mask].sum()
        suffered.append((p * loss)[mask].sum() / mass)
        moved = p[mask] * np.exp(-eta * loss[mask])
        p[mask] = moved * mass / moved.sum()
        weights.append(p)
    return np.array(weights), np.array(suffered)


@pytest.mark.parametrize("rate", ["fixed", "tuned"])
def test_experts_that_sleep_now_and_then_are_the_specialists_of_freund(rate):
    losses = iid(30, 4)
    awake = np.random.default_rng(3).random((30, 4)) < 0.6
    awake[:, 0] |= ~awake.any(1)
    hedge = make_hedge(rate, 4, rounds=30)
    weights, suffered = specialists(losses, awake, hedge.eta)
    for t, (loss, mask) in enumerate(zip(losses, awake, strict=True)):
        np.testing.assert_allclose(hedge.probs(), weights[t], atol=1e-12)
        assert hedge.update(np.where(mask, loss, math.nan), mask) == pytest.approx(suffered[t], abs=1e-12)
    np.testing.assert_allclose(hedge.probs(), weights[-1], atol=1e-12)
    # The regret against an expert counts the rounds in which it is awake.
    regrets = ((suffered[:, None] - losses) * awake).sum(0)
    np.testing.assert_allclose(hedge.total - hedge.losses, regrets, atol=1e-10)
    assert hedge.regret == pytest.approx(regrets.max(), abs=1e-10)


def test_experts_whose_weights_underflow_keep_their_ratio_while_the_others_sleep():
    hedge = Hedge(3)
    hedge.update((0.0, 323.0, 323.2))
    share = 10**-0.2
    assert hedge.expected((0.0, 0.0, 1.0), (False, True, True)) == pytest.approx(share / (1 + share))


def test_no_regret_arises_to_an_expert_that_sleeps_and_nobody_awake_changes_nothing():
    hedge = Hedge(2)
    hedge.update((0.5, 0.4))
    before = hedge.total - hedge.losses[1]
    hedge.update((0.9, 0.0), (True, False))
    assert hedge.total - hedge.losses[1] == pytest.approx(before)
    state = hedge.state_dict()
    assert math.isnan(hedge.update((0.1, 0.2), (False, False)))
    assert hedge.state_dict() == state


@pytest.mark.parametrize("rate", [*RATES, "leader", *BANDITS])
def test_the_state_goes_through_json(rate):
    losses = iid(40, 5)
    whole = make_hedge(rate, 5, rounds=40)
    weights = run(whole, losses)
    first = make_hedge(rate, 5, rounds=40)
    run(first, losses[:17])
    second = make_hedge(rate, 5, rounds=40)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert np.array_equal(run(second, losses[17:]), weights[17:])
    assert (second.total, second.rounds, second.regret) == (whole.total, 40, whole.regret)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hedge(0), "at least 1 expert, not 0"),
        (lambda: Hedge(2, 0.0), "gamma must be greater than 0 and at most 1, not 0"),
        (lambda: Hedge(2, 1.5), "not 1.5"),
        (lambda: FixedShare(2, 0.1, 1.0), "share"),
        (lambda: Exp3(2, 10, exploration=1.0), "at least 0 and less than 1, not 1"),
        (lambda: Exp3IX(2, 10, exploration=-0.1), "at least 0, not -0.1"),
        (lambda: Hedge(2).update((0.1, 0.2, 0.3)), "one entry for each of the 2 experts"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
