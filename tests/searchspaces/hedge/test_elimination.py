"""Elimination on a stream: no expert that could still win is stopped, and regret against a stopped one is bounded."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.elimination import FIRST_ROUND, Elimination
from hedgerow.searchspaces.hedge.weights import AdaHedge, AnytimeHedge, Hedge

RHOS = (0.0, 0.02, 0.05, 0.2, 1.0)


def play(losses: np.ndarray, comeback: float | None, hedge: Hedge | None = None, **settings):
    """Records of a stream with losses (rounds, experts), and the buffer."""
    total, experts = losses.shape
    hedge = hedge or Hedge.tuned(experts, total)
    scale_free = isinstance(hedge, AdaHedge)
    elimination = None if comeback is None else Elimination(comeback, total, in_range=not scale_free)
    records: list[dict] = []
    range = None if scale_free else (0, 1)
    buffer = HedgeRounds(
        *(hedge, "loss", "min", range), on_round=records.append, elimination=elimination, **settings
    )  # fmt: skip
    for round, row in enumerate(losses, 1):
        buffer.accept((expert, round, {"loss": loss}) for expert, loss in enumerate(row))
        buffer.settle()
    return records, buffer


def streams(seed: int, total: int = 80, experts: int = 6) -> dict[str, np.ndarray]:
    """Losses (rounds, experts) in [0, 1]: drawn, switching, alternating, graded, and against the leader."""
    draw = np.random.default_rng(seed)
    drawn = draw.random((total, experts))
    switching = np.where(np.arange(total)[:, None] // (total // 2) == np.arange(experts) % 2, 0.2, 0.8) * drawn
    alternating = (np.arange(total)[:, None] + np.arange(experts)) % 2 * 1.0
    graded = np.clip(np.linspace(0.2, 0.6, experts) + 0.1 * draw.standard_normal((total, experts)), 0, 1)
    greedy = np.zeros((total, experts))
    for round in range(total):
        greedy[round, greedy[:round].sum(0).argmin()] = 1.0
    return {"drawn": drawn, "switching": switching, "alternating": alternating, "graded": graded, "greedy": greedy}


def late_bloomer(total: int, experts: int = 24) -> np.ndarray:
    """One expert is the worst at first and the best at the end."""
    time = np.arange(total)[:, None]
    levels = np.linspace(0.25, 0.5, experts)[None]
    losses = levels + 0.3 * np.exp(-time / (0.05 * total))
    losses[:, -1:] = 0.05 + 0.8 * np.exp(-time / (0.12 * total))
    return np.clip(losses, 0, 1)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.grid(keep=10)
def test_the_bound_holds_against_every_expert_with_the_losses_that_it_would_have_had(seed):
    for losses, rho in product(streams(seed).values(), RHOS):
        records, buffer = play(losses, rho)
        total, experts = losses.shape
        suffered = sum(record["hedge_loss"] for record in records)
        # The bound of the tuned rate, in closed form.
        bound = np.sqrt(total * np.log(experts) / 2)
        stops = buffer.elimination.stopped
        for expert in range(experts):
            left = total - stops.get(expert, total)
            assert suffered - losses[:, expert].sum() <= bound + (1 - rho) * left + 1e-9
        assert records[-1]["price"] == pytest.approx(max([(1 - rho) * (total - t) for t in stops.values()], default=0))
        assert records[-1]["awake"] == experts - len(stops)
        if rho == 1:
            assert losses.sum(0).min() == pytest.approx(
                min(losses[:, i].sum() for i in range(experts) if i not in stops)
            )


@pytest.mark.parametrize("rate", ["fixed", "anytime"])
def test_survivors_have_the_weights_of_hedge_among_them(rate):
    losses = streams(3)["graded"]
    experts = losses.shape[1]
    records, buffer = play(losses, 0.05, Hedge(experts, 0.3) if rate == "fixed" else AnytimeHedge(experts))
    stops = buffer.elimination.stopped
    assert len(stops) >= 2
    for record in records:
        done = record["round"] - 1
        kept = np.array([stops.get(expert, np.inf) > done for expert in range(experts)])
        eta = -np.log(0.3) if rate == "fixed" else np.sqrt(8 * np.log(experts) / record["round"])
        weights = np.where(kept, np.exp(-eta * losses[:done].sum(0)), 0)
        assert np.abs(weights / weights.sum() - record["weights"]).max() < 1e-12


def test_without_a_range_the_largest_spread_is_the_unit():
    losses = 100 * streams(3)["graded"]
    records, buffer = play(losses, 0.05, AdaHedge(losses.shape[1]))
    stops, total = buffer.elimination.stopped, len(losses)
    assert stops
    for expert, round in stops.items():
        # The spread of the experts that were awake.
        kept = [[i for i in range(losses.shape[1]) if stops.get(i, total) > t] for t in range(round)]
        spread = max(float(np.ptp(losses[t, kept[t]])) for t in range(round))
        gaps = losses[:round].sum(0) - losses[:round, kept[-1]].sum(0).min()
        assert gaps[expert] >= 0.05 * spread * (total - round) - 1e-9
    assert records[-1]["price"] > 100


def test_without_a_stop_the_records_are_those_of_hedge():
    losses = np.full((30, 4), 0.5)
    records, buffer = play(losses, 0.05)
    assert not buffer.elimination.stopped
    expected, _ = play(losses, None)
    assert [{key: r[key] for key in expected[0]} for r in records] == expected


def test_no_expert_is_stopped_in_the_first_rounds_or_after_the_last_and_the_leader_never_is():
    losses = np.tile([0.0, 1.0], (30, 1))
    _, buffer = play(losses, 0.0)
    assert buffer.elimination.stopped == {1: FIRST_ROUND}
    assert not play(losses[:FIRST_ROUND], 0.0)[1].elimination.stopped
    assert not play(np.zeros((30, 2)) + 0.3, 1.0)[1].elimination.stopped


def late_bloomer_played(total: int, comeback: float | None) -> tuple[float, float, list[int]]:
    """Regret of Hedge against the best expert, the fraction of expert rounds that ran, and the stopped experts."""
    losses = late_bloomer(total)
    records, buffer = play(losses, comeback, Hedge(24, 0.1))
    ran = sum(record.get("awake", 24) for record in records) / losses.size
    stopped = [] if comeback is None else list(buffer.elimination.stopped)
    return sum(record["hedge_loss"] for record in records) - losses.sum(0).min(), ran, stopped


def test_a_late_bloomer_survives_at_a_third_of_the_work():
    regret, ran, stopped = late_bloomer_played(100, 0.05)
    assert 23 not in stopped
    assert regret <= late_bloomer_played(100, None)[0] + 1e-9 < 2.0
    assert ran < 0.4


@pytest.mark.exhaustive("convergence")
def test_the_table_of_the_docs():
    table = {
        None: (1.53, 1.0),
        1.0: (1.53, 0.83),
        0.2: (1.53, 0.57),
        0.05: (1.53, 0.35),
        0.02: (48.8, 0.22),
        0.0: (48.1, 0.06),
    }
    for comeback, (regret, ran) in table.items():
        found = late_bloomer_played(400, comeback)
        assert found[:2] == (pytest.approx(regret, abs=0.05), pytest.approx(ran, abs=0.01))
        assert (23 in found[2]) == (comeback is not None and comeback < 0.05)


class Kept:
    """Deployment that keeps what it is given."""

    def __init__(self, policy: str):
        self.policy, self.deployed = policy, []

    def is_due(self, round: int) -> bool:
        return True

    def deploy(self, round: int, weights: dict[int, float]) -> None:
        self.deployed.append((round, weights))

    def mixture(self, round: int, weights: dict[int, float]) -> None:
        return None

    def forget(self, round: int, experts: int) -> None:
        pass


@pytest.mark.parametrize("policy", ["leader", "sample", "mixture"])
def test_a_stopped_expert_is_not_deployed(policy):
    kept = Kept(policy)
    records, buffer = play(streams(3)["graded"], 0.05, Hedge(6, 0.9), deployment=kept)
    stops = buffer.elimination.stopped
    assert stops
    for (round, weights), after in zip(kept.deployed, records[1:], strict=False):
        assert all(stops.get(expert, np.inf) > round for expert in weights)
        if policy == "mixture":
            assert [weights.get(i, 0.0) for i in range(6)] == pytest.approx(after["weights"], abs=1e-12)
        else:
            assert list(weights) == [after["deployed"][policy]["expert"]]


def test_an_expert_that_fails_after_its_stop_stays_stopped():
    losses = np.tile([0.2, 0.2, 1.0], (20, 1))
    buffer = HedgeRounds(
        *(Hedge(3), "loss", "min", (0, 1)), elimination=Elimination(0.0, 20), on_round=(records := []).append
    )
    buffer.accept((expert, round + 1, {"loss": losses[round, expert]}) for round in range(20) for expert in range(3))
    buffer.retire(2, penalised=True)
    assert [record["hedge_loss"] for record in records[10:]] == pytest.approx([0.2] * 10)


def test_the_decision_is_the_same_in_any_order_of_reports_and_from_a_cut_journal(tmp_path: Path):
    losses = streams(5)["graded"]
    expected, buffer = play(losses, 0.05, journal=tmp_path / "whole")
    total, experts = losses.shape
    order = [(expert, round) for expert in reversed(range(experts)) for round in range(total)]

    def opened(name: str) -> tuple[list[dict], HedgeRounds]:
        records: list[dict] = []
        settings = {"journal": tmp_path / name, "elimination": Elimination(0.05, total)}
        hedge = Hedge.tuned(experts, total)
        return records, HedgeRounds(hedge, "loss", "min", (0, 1), on_round=records.append, **settings)

    records, ahead = opened("ahead")
    for expert, round in order:
        ahead.report(expert, round + 1, {"loss": losses[round, expert]})
        if round + 1 == total:
            ahead.retire(expert, penalised=False)
    assert records == expected
    for name in ("whole", "ahead"):
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        for cut in (1, len(lines) // 3, len(lines) - 5, len(lines)):
            (tmp_path / "cut").write_bytes(b"".join(lines[:cut]))
            again, resumed = opened("cut")
            for expert, round in order:
                resumed.report(expert, round + 1, {"loss": losses[round, expert]})
            assert again == expected
            assert resumed.elimination.stopped == buffer.elimination.stopped
