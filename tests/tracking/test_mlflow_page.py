"""What MLflow's own page has to show of a table's line: names, nesting, tags, descriptions; and how it shows it."""

import os
import signal
import subprocess
import time
import urllib.request
from itertools import pairwise

import pytest
from mlflow.tracking import MlflowClient
from processes import free_port
from searches import plan

from hedgerow.platform.common.numbers import percent
from hedgerow.platform.tracking.mlflow_store import default_uri
from hedgerow.platform.ui.mlflow_server import PAGE_SETTINGS, page_command
from hedgerow.searchspaces.tune.search_runner import search

# `make test` looks at the runs and metrics of a search in MLflow in tune/test_search.py.
pytestmark = pytest.mark.exhaustive("processes")

TABLE = {"line": "feddyn/T0/digits", "headings": ["Slow", "Fast"], "changed": [], "grid": False}
SPACE = {"algorithm.lr": [0.01, 0.3]}


@pytest.fixture(scope="module")
def finished(ray_here, tmp_path_factory):
    """A line of a table: a search over two methods, with MLflow."""
    settings = {"tracking__enabled": True, "evaluation__test": "every", "search__space": SPACE}
    chosen = plan(tmp_path_factory.mktemp("runs"), **settings)
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
    wanted = {
        "algorithm": "toys.Stateful",
        "dataset": "digits",
        "partition": "dirichlet",
        "model": "mlp",
        "clients": "12",
    }
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
    assert "**toys.Stateful** learns `mlp` on `digits`: 12 clients by `dirichlet`, 50 % of them" in text
    assert "| model | hidden = [8] |" in text
    accuracy = finished.trials[1].records[-1]["test_accuracy"]
    assert f"| test accuracy | {percent(accuracy)} |" in text
    text = runs[finished.folder.name].data.tags["mlflow.note.content"]
    assert "Search `hedge` over `algorithm.lr`, by `validation_accuracy`." in text
    assert "Hedge over 2 experts: its mean expected loss is" in text
    assert f"| 001 (winner) | 0.3 | {percent(finished.hedge[-1]['next_weights'][1])} |" in text


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(finished):
    """MLflow's own server on the store of the search, as `hedgerow ui` starts it."""
    port = free_port()
    command = page_command(default_uri(finished.folder.path.parent), port)
    alone = {"MLFLOW_DISABLE_TELEMETRY": "true", **PAGE_SETTINGS}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # With a group of its own, so that its worker ends with it.
    with subprocess.Popen(command, env=os.environ | alone, start_new_session=True, **quiet) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            while not answers(f"{address}/health"):
                assert process.poll() is None, "the server ended before it answered"
                time.sleep(0.2)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def page(finished, browser, server):
    """A tab of the browser; on a busy machine all takes its time."""
    context = browser.new_context(viewport={"width": 1600, "height": 1200})
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


def test_the_page_of_a_run_shows_its_name_description_tags_metrics_and_charts(page, server, finished, runs):
    info, last = runs["001 Fast"].info, finished.trials[1].records[-1]
    home = f"{server}/#/experiments/{info.experiment_id}/runs/{info.run_id}"
    page.goto(home)
    page.get_by_role("heading", name="001 Fast").wait_for()
    page.get_by_role("row", name=f"test accuracy {percent(last['test_accuracy'])}", exact=True).wait_for()
    said = " ".join(page.get_by_role("main").inner_text().split())
    assert "toys.Stateful learns mlp on digits: 12 clients by dirichlet, 50 % of them" in said
    for tag, value in (("algorithm", "toys.Stateful"), ("dataset", "digits"), ("clients", "12"), ("seed", "0")):
        assert f"{tag} : {value}" in said
    # The metrics of a run with a logged model have a column of models.
    page.get_by_role("row", name=f"test/accuracy {last['test_accuracy']}").wait_for()
    page.goto(f"{home}/model-metrics")
    page.get_by_role("heading", name="accuracy", exact=True).first.wait_for()
    line = page.locator("svg path.js-line").first
    line.wait_for(state="attached")
    assert line.evaluate("e => e.getTotalLength()") > 100


def test_the_list_of_runs_nests_trials_beneath_their_search_and_it_beneath_its_table(page, server, finished, runs):
    page.goto(f"{server}/#/experiments/{runs['001 Fast'].info.experiment_id}/runs")
    chain = ["feddyn/T0", finished.folder.name, "001 Fast"]
    for parent, child in pairwise(chain):
        page.get_by_role("link", name=parent, exact=True).wait_for()
        assert not page.get_by_role("link", name=child, exact=True).count()
        page.get_by_role("gridcell").filter(has_text=parent).get_by_role("button").first.click()
        page.get_by_role("link", name=child, exact=True).wait_for()
    indents = [page.get_by_role("link", name=name, exact=True).bounding_box()["x"] for name in chain]
    assert indents == sorted(set(indents))
    page.get_by_role("link", name="001 Fast", exact=True).click()
    page.get_by_role("heading", name="001 Fast").wait_for()
    page.get_by_role("link", name=finished.folder.name, exact=True).click()
    page.get_by_role("heading", name=finished.folder.name).wait_for()
    page.get_by_text("Search hedge over algorithm.lr, by validation_accuracy.").wait_for()


def test_the_list_of_runs_opens_with_algorithm_data_set_and_test_accuracy(page, server, finished, runs):
    page.goto(f"{server}/#/experiments/{runs['001 Fast'].info.experiment_id}/runs?viewStateShareKey=hedgerow")
    page.get_by_role("link", name="feddyn/T0", exact=True).wait_for()
    page.get_by_role("columnheader", name="test_accuracy").first.wait_for()
    heads = [" ".join(head.inner_text().split()) for head in page.get_by_role("columnheader").all()]
    assert {"algorithm", "dataset", "test_accuracy"} <= set(heads)
    assert "Source" not in heads
    assert not page.get_by_text("Error loading shared view state").count()
