"""Barrier of lock-step rounds: all trials run the same rounds between two reports, and none runs ahead of another."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hedgerow.searchspaces.tune.round_barrier import RoundBarrier
from hedgerow.searchspaces.tune.trainable import FederatedTrainable

SOON, LATE = 0.05, 60.0


def barriers(folder: Path, *packs: list[int]) -> list[RoundBarrier]:
    """A barrier for each pack of experts."""
    RoundBarrier.create(folder / "file", sum(map(len, packs)))
    return [RoundBarrier(folder / "file", pack) for pack in packs]


def test_a_trial_alone_runs_on_until_its_time_is_up(tmp_path):
    (alone,) = barriers(tmp_path, [0, 1])
    until = time.monotonic() + SOON
    rounds = 1
    while alone.passes(rounds, until):
        rounds += 1
    assert rounds > 1
    assert time.monotonic() >= until


def test_a_round_that_takes_longer_is_reported_alone(tmp_path):
    (alone,) = barriers(tmp_path, [0])
    assert not alone.passes(1, time.monotonic())


@pytest.mark.parametrize("seed", range(3))
def test_trials_are_never_more_than_a_round_apart_and_report_the_same_rounds(tmp_path, seed):
    every, ran, ends = 40, [], {}

    def trial(number: int, barrier: RoundBarrier) -> list[int]:
        """Runs rounds until one is to be reported, or all have run."""
        draw = random.Random(100 * seed + number)
        # Only the first trial's time is ever up.
        until = time.monotonic() + (SOON if number == 0 else LATE)
        for round in range(1, every + 1):
            time.sleep(draw.random() / 200)
            ran.append((number, round))
            if round < every and not barrier.passes(round, until):
                return round
        barrier.leave()
        return every

    packs = barriers(tmp_path, [0, 2], [1], [3, 4])
    with ThreadPoolExecutor(3) as threads:
        ends = set(threads.map(trial, range(3), packs))
    assert len(ends) == 1
    last = dict.fromkeys(range(3), 0)
    for number, round in ran:
        assert round == last[number] + 1
        assert round <= min(last.values()) + 1
        last[number] = round
    assert set(last.values()) == ends


def test_a_trial_that_waits_in_vain_reports_and_then_so_does_the_one_it_waited_for(tmp_path):
    first, second = barriers(tmp_path, [0], [1])
    assert not first.passes(1, time.monotonic() + SOON)
    assert not second.passes(1, time.monotonic() + LATE)
    # Both were continued: neither report counts for the next round.
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda one: one.passes(2, time.monotonic() + LATE), (first, second)))


def test_a_trial_that_ended_is_not_waited_for(tmp_path):
    first, _, _ = barriers(tmp_path, [0], [1, 2], [3])
    RoundBarrier(tmp_path / "file", [1, 2]).leave()
    assert not first.passes(1, time.monotonic() + SOON)
    # The search records it for a trial whose process died.
    RoundBarrier(tmp_path / "file", [3]).leave()
    assert first.passes(2, time.monotonic() + LATE)


def test_a_trial_that_resumes_further_ahead_is_caught_up_with_in_one_report(tmp_path):
    behind, ahead = barriers(tmp_path, [0], [1])
    ahead.reports(4)
    assert [behind.passes(round, time.monotonic() + LATE) for round in (2, 3, 4)] == [True, True, False]


def test_a_pack_whose_experts_were_saved_in_different_rounds_continues():
    servers = [SimpleNamespace(history=[{}] * rounds) for rounds in (4, 2)]
    trial = SimpleNamespace(
        coordinator=SimpleNamespace(servers=servers, round=2, done=False),
        members=[SimpleNamespace(reported=2), SimpleNamespace(reported=2)],
        shared=SimpleNamespace(search=SimpleNamespace(kept=True)),
        barrier=None,
        _next_report=lambda round: round + 1,
        _run_to=(rounds := []).append,
    )
    FederatedTrainable._run_new_rounds(trial, stopped=False)
    assert rounds == [3]
