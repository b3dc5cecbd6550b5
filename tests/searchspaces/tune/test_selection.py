"""Searches select by validation samples; test samples score the winner."""

from dataclasses import replace

import pytest
from searches import plan

from hedgerow.platform.runtime.factory import build_data
from hedgerow.searchspaces.results.finished_search import TEST_NOTE, FinishedSearch
from hedgerow.searchspaces.spaces.search_file import parse_search
from hedgerow.searchspaces.tune.search_command import search_output
from hedgerow.searchspaces.tune.search_runner import check_search, resume_search, search

SPACE = {"algorithm.lr": [0.3, 1e-5]}


@pytest.fixture(scope="module")
def finished(ray_here, tmp_path_factory) -> FinishedSearch:
    """A grid on data whose test labels are wrong: what learns is worse on them than what does not."""
    settings = {"rounds": 4, "algorithm": {"name": "fedavg", "batch_size": 8, "epochs": 4}, "evaluation": {}}
    spec = plan(tmp_path_factory.mktemp("runs"), **settings, search={"kind": "grid", "space": SPACE, "concurrency": 1})
    dataset, partition = build_data(parse_search(spec.resolved).experiment.model_copy(), None)
    untouched = replace(partition, train_sizes=partition.train_sizes + partition.selection_sizes, selection_sizes=None)
    wrong = replace(dataset, y_test=(dataset.y_test + 1) % 10)
    data = check_search(spec, None, (wrong, untouched))
    assert data[1].selection_sizes.sum() == partition.selection_sizes.sum()
    return search(spec, data=data, own=True)


def last(finished, metric):
    return [trial.records[-1][metric] for trial in finished.trials]


def test_validation_samples_select_where_test_samples_disagree(finished):
    by_validation, by_test = last(finished, "validation_accuracy"), last(finished, "test_accuracy")
    assert by_validation[0] > by_validation[1] + 0.2
    assert by_test[0] < by_test[1]
    assert finished.best.name == "000"
    assert [row["trial"] for row in finished.rows] == ["000", "001"]
    assert {row["metric"] for row in finished.best_rows} == {
        "smoothed_validation_accuracy",
        "smoothed_validation_loss",
    }
    assert "test_accuracy" not in finished.rows[0]
    assert finished.test_score["test_accuracy"] == by_test[0]


def test_the_test_score_of_the_winner_is_shown_once(finished):
    summary = finished.folder.record()["summary"]
    assert summary["winner_test_accuracy"] == last(finished, "test_accuracy")[0]
    assert summary["winner_test_loss"] == last(finished, "test_loss")[0]
    text = (finished.folder.path / "results.md").read_text()
    assert text.count("Winner: lr=0.3 (trial 000): validation accuracy ") == 1
    assert "Validation samples: 10.0 % of each client's training samples (task.validation)." in text
    assert TEST_NOTE not in text
    assert "fraction: 0.1" in finished.folder.experiment.read_text()
    # Before the last round, nothing was scored on test samples.
    assert not [key for trial in finished.trials for record in trial.records[:-1] for key in record if "test" in key]
    values = finished.spec.resolved
    values["evaluation"]["test"] = "every"
    sentence = "Test samples scored every evaluation of the trials (evaluation.test: every) and selected nothing."
    assert sentence in replace(finished, spec=parse_search(values)).selection_lines
    assert sentence not in finished.selection_lines


def test_a_selection_by_test_samples_says_so(finished, capsys):
    values = finished.spec.resolved
    values["search"] |= {"metric": "test_accuracy", "allow_test_selection": True, "smooth": 0.0}
    values["evaluation"]["test"] = "every"
    same = replace(finished, spec=parse_search(values))
    assert same.best.name == "001"
    assert TEST_NOTE in same._repr_html_()
    search_output(same).render()
    shown = capsys.readouterr().out
    assert TEST_NOTE in shown
    assert "Winner: lr=1e-05 (trial 001): test accuracy" in shown


@pytest.mark.usefixtures("ray_here")
@pytest.mark.exhaustive("processes")
def test_hedge_weighs_by_validation_and_a_search_by_test_samples_can_be_resumed(tmp_path):
    settings = {"rounds": 2, "algorithm": {"name": "fedavg", "batch_size": 8}}
    old = search(
        plan(tmp_path, **settings, search={"space": SPACE, "metric": "test_accuracy", "allow_test_selection": True})
    )
    old.folder.update(status="interrupted")
    resumed = resume_search(str(old.folder.path))
    assert resumed.hedge == old.hedge
    assert resumed.test_selection_warning == TEST_NOTE
    new = search(plan(tmp_path, **settings, search={"space": SPACE}))
    for record in new.hedge:
        expert = [trial.records[record["round"] - 1]["validation_accuracy"] for trial in new.trials]
        assert record["losses"] == pytest.approx([1 - value for value in expert])
