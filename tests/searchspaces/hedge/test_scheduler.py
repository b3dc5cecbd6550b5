"""Hedge on Ray Tune: the weights of a sequential run, whatever the number of slots and whichever trial dies."""

import json
import os
import signal
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import ray
import trainables
from internals import scheduler_of
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from ray import tune
from ray.tune.error import TuneError
from ray.tune.schedulers import TrialScheduler
from reservations import free_reservations
from trainables import Scripted, loss_of

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.sealed_json import seal
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.elimination import Elimination
from hedgerow.searchspaces.hedge.scheduler import JOURNAL, HedgeHooks, HedgeScheduler, TrialRules
from hedgerow.searchspaces.hedge.weights import Hedge
from hedgerow.searchspaces.tune.search_runner import TUNE_SETTINGS

# The workers cannot import the tests' modules.
ray.cloudpickle.register_pickle_by_value(trainables)

ROUNDS = 12
EXPERTS = 5
RULES = [field.name for field in fields(TrialRules)]
SAVED = 3
"""Rounds between two checkpoints of a trial."""
SUMS = [sum(loss_of(expert, round) for round in range(1, ROUNDS + 1)) for expert in range(EXPERTS)]
"""The cumulative losses of an undisturbed search."""


def sequential(experts: int = EXPERTS, rounds: int = ROUNDS) -> list[dict]:
    """One expert after the other in this process: what every search must equal."""
    records: list[dict] = []
    buffer = HedgeRounds(Hedge(experts, 0.1), "loss", "min", range=(0, 1), on_round=records.append)
    for expert in range(experts):
        for round in range(1, rounds + 1):
            buffer.report(expert, round, {"loss": loss_of(expert, round)})
    return records


class Told:
    """Collects the scheduler's records, and how far apart the experts were. Tune pickles what it is given."""

    def __init__(self):
        self.records: list[dict] = []

    def __call__(self, record: dict) -> None:
        self.records.append(record)


class Interruption(tune.Callback):
    """Ends the search after so many results, while the file `armed` exists: by Ctrl-C, or by an error.

    After Ctrl-C Tune writes a last snapshot, after an error it writes none. saves: only after a result after which Tune
    saves the trial.
    """

    def __init__(self, armed: Path, after: int, by: str, saves: bool = False):
        self.armed, self.after, self.by, self.saves = armed, after, by, saves

    def on_trial_result(self, **info: Any) -> None:
        self.after -= 1
        if self.after <= 0 and self.armed.exists() and not (self.saves and info["result"]["round"] % SAVED):
            self.armed.unlink()
            if self.by == "error":
                raise RuntimeError("interrupted")
            os.kill(os.getpid(), signal.SIGINT)


def search(
    folder: Path,
    special: dict[int, dict] | None = None,
    failures: int = 1,
    experts: int = EXPERTS,
    cpus: int = 2,
    run: dict[str, Any] | None = None,
    **settings: Any,
):
    """A search over scripted experts: the scheduler, its records, and Tune's results.

    special: further configuration of some of them. cpus: of each, of four in all: two at a time, since processes are
    slow to start. run: further arguments of Tune's RunConfig.
    """
    told = Told()
    rules = TrialRules(**{key: settings.pop(key) for key in RULES if key in settings})
    hooks = HedgeHooks(on_round=told)
    settings = {"metric": "loss", "mode": "min", "range": (0, 1)} | settings
    scheduler = HedgeScheduler(rules=rules, hooks=hooks, **settings)
    configs = [
        {"expert": i, "rounds": ROUNDS, "log": str(folder / "log"), **(special or {}).get(i, {})}
        for i in range(experts)
    ]
    tuner = tune.Tuner(
        tune.with_resources(Scripted, {"cpu": cpus}),
        param_space={"script": tune.grid_search(configs)},
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(
            name="tune",
            failure_config=tune.FailureConfig(max_failures=failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=SAVED, num_to_keep=1),
            verbose=0,
            **{"storage_path": str(folder)} | (run or {}),
        ),
    )
    results = tuner.fit()
    return scheduler, told.records, results


def restored(folder: Path, filesystem: Any = None) -> tune.Tuner:
    trainable = tune.with_resources(Scripted, {"cpu": 2})
    return tune.Tuner.restore(str(folder / "tune"), trainable, storage_filesystem=filesystem)


def with_another_configuration(line: str) -> str:
    """A line of a journal, where the expert has another configuration."""
    values = json.loads(line)
    return seal(values | {"configuration": f"f{values['configuration']}"}) if "configuration" in values else line


def refuses(folder: Path, message: str) -> None:
    """A restored search ends with this error."""
    with pytest.raises(UserError, match=message):
        restored(folder).fit()


def finish(tuner: tune.Tuner) -> HedgeScheduler:
    """Run a restored search to its end; returns its scheduler, which Tune made anew."""
    # After an error, or where stopping takes long, Tune's actors hold their CPUs until its controller is collected.
    free_reservations()
    assert not tuner.fit().errors
    return scheduler_of(tuner)


def spread(log: Path, experts: int = EXPERTS) -> int:
    """The most rounds that one expert was ahead of another, by the order in which rounds were run."""
    done: Counter[int] = Counter(dict.fromkeys(range(experts), 0))
    widest = 0
    for line in log.read_text().splitlines():
        expert, round = map(int, line.split())
        done[expert] = max(done[expert], round)
        widest = max(widest, max(done.values()) - min(done.values()))
    return widest


@pytest.mark.usefixtures("every_cpu")
class TestHedgeScheduler:
    @pytest.mark.grid(keep=1)
    @pytest.mark.parametrize("slots", [1, 2])
    def test_experts_take_turns_and_the_weights_are_those_of_a_sequential_run(self, tmp_path, slots):
        scheduler, records, _ = search(tmp_path, cpus=4 // slots, ahead=3)
        assert records == sequential()
        assert spread(tmp_path / "log") <= 3 + 1
        assert scheduler.rounds.hedge.rounds == ROUNDS

    @pytest.mark.exhaustive("processes")
    def test_the_last_two_on_one_slot_take_turns_too(self, tmp_path):
        _, records, _ = search(tmp_path, experts=2, cpus=4, ahead=2)
        assert records == sequential(2)
        assert spread(tmp_path / "log", experts=2) <= 2 + 1

    @pytest.mark.exhaustive("processes")
    def test_twenty_four_experts_on_two_slots_come_to_the_end(self, tmp_path):
        _, records, _ = search(tmp_path, experts=24, cpus=2, ahead=6)
        assert records == sequential(24)

    @pytest.mark.exhaustive("processes")
    def test_with_room_for_all_no_expert_waits(self, tmp_path):
        _, records, _ = search(tmp_path, experts=4, cpus=1, ahead=1)
        assert records == sequential(4)
        order = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
        assert Counter(order) == {str(expert): ROUNDS for expert in range(4)}

    def test_lock_step_holds_for_all_experts_with_room_for_all(self, tmp_path):
        _, records, _ = search(tmp_path, experts=3, cpus=1, ahead=0)
        assert records == sequential(3)
        assert spread(tmp_path / "log", experts=3) == 1

    @pytest.mark.exhaustive("processes")
    def test_lock_step_holds_for_experts_that_take_turns(self, tmp_path):
        _, records, _ = search(tmp_path, experts=3, cpus=2, ahead=0)
        assert records == sequential(3)
        assert spread(tmp_path / "log", experts=3) == 1

    @pytest.mark.exhaustive("processes")
    def test_strict_experts_wait_although_all_fit(self, tmp_path):
        _, records, _ = search(tmp_path, experts=3, cpus=1, ahead=2, strict=True)
        assert records == sequential(3)
        assert spread(tmp_path / "log", experts=3) <= 2 + 1

    @pytest.mark.exhaustive("kills")
    def test_no_expert_waits_for_one_whose_process_could_not_be_reset(self, tmp_path):
        """Tune ends such a trial without a callback."""
        _, records, results = search(tmp_path, {1: {"no_reset": True}}, experts=2, failures=0, cpus=4, ahead=1)
        assert len(results.errors) == 1
        assert [record["losses"][1] for record in records] == [1.0] * ROUNDS

    @pytest.mark.exhaustive("kills")
    def test_an_expert_whose_process_dies_goes_on_from_its_checkpoint(self, tmp_path):
        death = tmp_path / "death"
        death.touch()
        _, records, _ = search(tmp_path, {1: {"kill_file": str(death), "kill_at": 8}}, ahead=3)
        assert not death.exists()
        assert records == sequential()

    @pytest.mark.exhaustive("kills")
    def test_an_expert_that_is_broken_for_good_pays_the_worst_loss(self, tmp_path):
        _, records, results = search(tmp_path, {2: {"raise_at": 5}}, failures=0, ahead=3)
        assert len(results.errors) == 1
        assert [record["losses"][2] for record in records[4:]] == [1.0] * (ROUNDS - 4)
        assert records[:4] == sequential()[:4]

    @pytest.mark.exhaustive("processes")
    def test_skipped_it_sleeps(self, tmp_path):
        _, records, _ = search(tmp_path, {2: {"raise_at": 5}}, failures=0, missing="skip", ahead=3)
        assert [record["losses"][2] for record in records[4:]] == [None] * (ROUNDS - 4)
        assert [record["weights"][2] for record in records[4:]] == pytest.approx(
            [records[4]["weights"][2]] * 8, abs=1e-12
        )

    def test_experts_below_the_weight_are_pruned(self, tmp_path):
        _, records, _ = search(tmp_path, {2: {"loss": 1.0}}, experts=3, prune=0.05, ahead=1, cpus=4)
        rounds = sum(line.startswith("2 ") for line in (tmp_path / "log").read_text().splitlines())
        # It stops as soon as its weight is known to be below, at most the report later that is under way.
        below = next(record["round"] for record in records if record["weights"][2] < 0.05)
        assert below - 1 <= rounds <= below + 1
        assert len(records) == ROUNDS
        assert records[-1]["losses"][2] is None
        assert 0 < records[-1]["weights"][2] < 0.05

    @pytest.mark.parametrize("cpus", [1, 4])
    def test_an_expert_that_cannot_come_back_is_stopped(self, tmp_path, cpus):
        losses = {expert: {"loss": loss} for expert, loss in enumerate((0.5, 0.5, 1.0))}
        settings = {"elimination": Elimination(0.05, ROUNDS), "ahead": 1, "strict": True, "cpus": cpus}
        _, records, results = search(tmp_path, losses, experts=3, **settings)
        lines = (tmp_path / "log").read_text().splitlines()
        # After round 10 its loss is far above 0.05 * 2 more than the leader's; where all fit, a round may be under way.
        assert records[9]["awake"] == 2
        assert max(int(line[2:]) for line in lines if line.startswith("2 ")) in (10, 11)
        assert [sum(line.startswith(f"{expert} ") for line in lines) for expert in (0, 1)] == [ROUNDS] * 2
        assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
        assert records[-1]["weights"][2] == 0
        assert records[-1]["losses"][2] is None
        assert records[-1]["price"] == pytest.approx(0.95 * 2)
        assert not results.errors

    def test_a_loss_that_is_no_number_ends_the_search_with_one_sentence(self, tmp_path):
        with pytest.raises(TuneError, match="expert 0 reported loss = 'high' in round 2, which is not a number"):
            search(tmp_path, {0: {"text_at": 2}}, experts=1)

    def test_percentages_end_the_search_at_the_first_report(self, tmp_path):
        with pytest.raises(TuneError, match=r"expert 0 reported loss = 50 in round 1, but .* instead of a percentage"):
            search(tmp_path, {0: {"loss": 50.0}}, experts=1, mode="max", range=None)

    @pytest.mark.exhaustive("processes")
    def test_losses_outside_the_range_are_warned_about_and_without_one_they_move_the_weights(self, tmp_path, caplog):
        # Cross-entropies of ten classes.
        special = {0: {"loss": 2.3}, 1: {"loss": 2.1}}
        scheduler, _, _ = search(tmp_path, special, experts=2, cpus=1, range=(0, 1))
        assert scheduler.rounds.hedge.probs().tolist() == [0.5, 0.5]
        assert "100.0 % of the reported values of loss were outside the range [0, 1]" in caplog.text
        caplog.clear()
        scheduler, _, _ = search(tmp_path, special, experts=2, cpus=1, range=None)
        assert scheduler.rounds.hedge.probs()[1] > 0.99
        assert "range" not in caplog.text


@pytest.fixture
def tunes_own_settings(monkeypatch):
    """Without what a search of Hedgerow's own may have set in this process."""
    for name in TUNE_SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("every_cpu", "tunes_own_settings")
class TestRestore:
    """`Tuner.restore`, without a `journal=`."""

    def test_after_ctrl_c_the_weights_are_those_of_an_undisturbed_search(self, tmp_path):
        (armed := tmp_path / "armed").touch()
        stop = Interruption(armed, 25, "ctrl-c")
        interrupted, first, _ = search(tmp_path, ahead=3, run={"callbacks": [stop]})
        assert not armed.exists()
        assert 0 < len(first) < ROUNDS
        assert interrupted.rounds.hedge.rounds == len(first)
        journal = tmp_path / "tune" / JOURNAL
        # Any other journal in its place is refused, and so is none.
        own = journal.read_bytes()
        journal.unlink()
        refuses(tmp_path, r"the reports of expert . end before round .*, which its trial has passed")
        others = HedgeRounds(Hedge(EXPERTS + 1, 0.1), "loss", "min", range=(0, 1), journal=journal.with_suffix(".b"))
        others.report(EXPERTS, 1, {"loss": 0.5})
        journal.write_bytes(journal.with_suffix(".b").read_bytes())
        refuses(tmp_path, "is not a journal of this search: trial .* is not in it")
        journal.write_bytes(own.replace(b'"configuration": "', b'"configuration": "f', 1))
        refuses(tmp_path, r"hedge\.jsonl:\d+ is damaged \(it does not match its checksum\)")
        # Also one that is intact.
        journal.write_text("".join(with_another_configuration(line) + "\n" for line in own.decode().splitlines()))
        refuses(tmp_path, r"not a journal of this search: expert . has another configuration in it")
        journal.write_bytes(own)
        scheduler = finish(restored(tmp_path))
        assert scheduler.rounds.on_round.records == sequential()
        expected = HedgeRounds(Hedge(EXPERTS, 0.1), "loss", "min", range=(0, 1), journal=journal).hedge
        assert scheduler.rounds.hedge.probs() == pytest.approx(expected.probs(), abs=1e-12)
        assert scheduler.rounds.hedge.losses == pytest.approx([SUMS[i] for i in range(EXPERTS)], abs=1e-12)

    @pytest.mark.exhaustive("kills")
    def test_a_trial_that_waited_while_it_was_saved_continues_after_its_next_checkpoint(self, tmp_path):
        (armed := tmp_path / "armed").touch()
        # Of two experts in lock-step, the first to report a round waits.
        stop = Interruption(armed, 5, "ctrl-c", saves=True)
        search(tmp_path, experts=2, ahead=0, run={"callbacks": [stop]})
        (snapshot,) = (tmp_path / "tune").glob("experiment_state-*.json")
        kept = json.loads(snapshot.read_text())["runner_data"]["_cached_trial_decisions"]
        assert list(kept.values()) == [TrialScheduler.NOOP]
        assert finish(restored(tmp_path)).rounds.on_round.records == sequential(2)

    @pytest.mark.exhaustive("kills")
    def test_an_expert_that_had_ended_is_not_waited_for_without_a_line_in_the_journal(self, tmp_path):
        (armed := tmp_path / "armed").touch()
        stop = Interruption(armed, 12, "ctrl-c")
        search(tmp_path, {0: {"rounds": 3}}, experts=2, ahead=0, run={"callbacks": [stop]})
        journal = tmp_path / "tune" / JOURNAL
        lines = journal.read_text().splitlines(keepends=True)
        assert sum('"retired"' in line for line in lines) == 1
        journal.write_text("".join(line for line in lines if '"retired"' not in line))
        scheduler = finish(restored(tmp_path))
        assert [record["round"] for record in scheduler.rounds.on_round.records] == list(range(1, ROUNDS + 1))
        assert scheduler.rounds.retired == {0: False, 1: False}

    @pytest.mark.exhaustive("kills")
    @pytest.mark.grid(keep=1)
    @pytest.mark.parametrize("place", ["local", "remote"])
    def test_a_journal_that_is_ahead_of_tunes_snapshot_counts_no_round_twice(self, tmp_path, place):
        (armed := tmp_path / "armed").touch()
        folder, run = tmp_path, {"callbacks": [Interruption(armed, 11, "error")]}
        if place == "remote":
            # A folder that is no local one to Tune.
            filesystem = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
            folder, run = Path("there"), {"storage_path": "there", "storage_filesystem": filesystem, **run}
        with pytest.raises(TuneError, match="interrupted"):
            search(tmp_path, experts=2, run=run)
        scheduler = finish(restored(folder, run.get("storage_filesystem")))
        assert scheduler.rounds.on_round.records == sequential(2)

    @pytest.mark.exhaustive("processes")
    def test_a_new_search_in_the_folder_of_an_old_one_begins_at_equal_weights(self, tmp_path):
        search(tmp_path, experts=2, special={0: {"loss": 0.9}})
        _, records, _ = search(tmp_path, experts=2)
        assert records == sequential(2)
