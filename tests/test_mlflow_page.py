"""What MLflow's own page has to show of a table's line: names, nesting, tags, descriptions."""

import pytest
from mlflow.tracking import MlflowClient
from test_search import plan

from hedgerow.platform.mlflow_store import default_uri
from hedgerow.searchspaces.runner import search

TABLE = {"line": "feddyn/T0/digits", "headings": ["Slow", "Fast"], "changed": [], "grid": False}
SPACE = {"algorithm.lr": [0.01, 0.3]}


@pytest.fixture(scope="module")
def finished(ray_here, tmp_path_factory):
    """A line of a table: a search over two methods, with MLflow."""
    chosen = plan(tmp_path_factory.mktemp("runs"), tracking__enabled=True, search__space=SPACE)
    return search(chosen, note={"table": TABLE})


@pytest.fixture(scope="module")
def runs(finished):
    """The store's runs by name."""
    client = MlflowClient(default_uri(finished.folder.path.parent))
    found = client.search_runs([client.get_experiment_by_name("hedgerow").experiment_id])
    return {run.info.run_name: run for run in found}


def test_lines_lie_beneath_their_table_and_trials_beneath_their_line(finished, runs):
    line = finished.folder.name
    assert set(runs) == {"feddyn/T0", line, "000 Slow", "001 Fast"}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    assert parents["feddyn/T0"] is None
    assert parents[line] == runs["feddyn/T0"].info.run_id
    assert parents["000 Slow"] == parents["001 Fast"] == runs[line].info.run_id
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_tags_name_what_one_looks_for(finished, runs):
    wanted = {"algorithm": "toys.Stateful", "data": "digits", "partition": "dirichlet", "model": "mlp", "clients": "12"}
    for name in (finished.folder.name, "000 Slow", "001 Fast"):
        told = runs[name].data.tags
        assert wanted.items() <= told.items()
        assert told["seed"] == "0"
        assert told["mlflow.source.name"]
        (used,) = runs[name].inputs.dataset_inputs
        assert used.dataset.name == "digits"
    digests = {runs[name].inputs.dataset_inputs[0].dataset.digest for name in ("000 Slow", "001 Fast")}
    assert len(digests) == 1


def test_a_description_says_what_is_learnt_how_and_with_what_result(finished, runs):
    text = runs["001 Fast"].data.tags["mlflow.note.content"]
    assert "**toys.Stateful** learns `mlp` on `digits`: 12 clients by `dirichlet`, 50% of them" in text
    assert "| model | hidden = [8] |" in text
    accuracy = finished.trials[1].records[-1]["test_accuracy"]
    assert f"| accuracy | {accuracy:.1%} |" in text
    text = runs[finished.folder.name].data.tags["mlflow.note.content"]
    assert "Search `hedge` over `algorithm.lr`, by `test_accuracy`." in text
    assert "Hedge over 2 experts: its expected loss averages" in text
    assert f"| 001 | 0.3 | {finished.hedge[-1]['weights'][1]:.1%} |" in text
