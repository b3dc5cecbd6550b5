"""Test score of a winner that ended before its last round."""

import shutil
from contextlib import suppress

import pytest
from searches import plan

from hedgerow.platform.runs import runner
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.tune.winner_score import score_winner

SETTINGS = {
    "algorithm": {"name": "scaffold", "batch_size": 8},
    "evaluation": {"clients": 5},
    "checkpoints": {"every": 2},
}


def stopped(tmp_path, rounds: int) -> FinishedSearch:
    """A search by ASHA whose only trial ended after some rounds."""
    spec = plan(tmp_path / "search", **SETTINGS, search={"kind": "asha", "space": {"algorithm.lr": [0.3]}})
    with new_run(spec.experiment, None, spec.dump()) as (folder, _):
        folder.update(kind="search")

    def stop(record: dict) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    (overrides,) = spec.configurations
    with suppress(KeyboardInterrupt):
        run(spec.trial({**overrides, "resources.executor": "inline", "output": str(tmp_path / "alone")}), show=stop)
    (alone,) = (tmp_path / "alone").iterdir()
    trial = RunFolder(folder.path / "experts" / "000")
    shutil.copytree(alone, trial.path)
    trial.update(overrides=overrides, status="stopped")
    return FinishedSearch.read(folder)


@pytest.mark.parametrize(("rounds", "scored"), [(4, 4), (5, 4)])
def test_it_is_that_of_its_last_checkpoint(tmp_path, monkeypatch, rounds, scored):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    finished = stopped(tmp_path, rounds)
    assert finished.spec.experiment.evaluation.test == "end"
    assert finished.test_score == {}
    assert score_winner(finished, build_data(finished.spec.experiment, None)) == []
    inline = {"resources.executor": "inline", "output": str(tmp_path / "whole"), "evaluation.test": "every"}
    whole = run(finished.spec.trial({**finished.best.overrides, **inline})).records[scored - 1]
    assert finished.test_score == {name: whole[name] for name in ("test_accuracy", "test_loss")}
    assert finished.summary["winner_test_accuracy"] == whole["test_accuracy"]
    assert f"(trial 000, checkpoint of round {scored}): validation accuracy" in finished.selection_lines[-1]


def test_without_a_checkpoint_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    finished = stopped(tmp_path, 1)
    shutil.rmtree(finished.folder.path / "experts" / "000" / "checkpoints", ignore_errors=True)
    assert score_winner(finished, build_data(finished.spec.experiment, None)) == [
        "trial 000, the winner, has no test score: it ended before its first checkpoint"
    ]
    assert finished.test_score == {}
