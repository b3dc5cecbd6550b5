"""The store of MLflow: its creation, its place, deleted entries, and the times of runs."""

import json
import multiprocessing
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime

import pytest
import sqlalchemy
from command_line import hedgerow
from mlflow.tracking import MlflowClient
from tracked_runs import small

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.run_in_mlflow import push
from hedgerow.platform.runs.runner import resume, run
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.mlflow_store import default_uri, experiment_id, open_client


def record_a_run(output, barrier=None):
    """Record an empty run in the store of an output folder."""
    if barrier:
        barrier.wait()
    client = open_client(default_uri(output))
    client.create_run(experiment_id(client, small(output)))


def end_after(statements, output):
    """Create the store of an output folder in a process that ends after this number of SQL statements."""
    executed = []

    def count(*arguments):
        executed.append(arguments)
        if len(executed) == statements:
            os._exit(9)

    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", count)
    record_a_run(output)


def rows(output, query):
    with closing(sqlite3.connect(output / "hedgerow.db")) as store:
        return store.execute(query).fetchall()


@pytest.mark.exhaustive("processes")
def test_processes_that_start_at_once_share_one_new_store(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier = context.Barrier(4)
    processes = [context.Process(target=record_a_run, args=(tmp_path, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert rows(tmp_path, "select count(*) from experiments where name = 'hedgerow'") == [(1,)]
    assert rows(tmp_path, "select count(*) from runs") == [(4,)]


@pytest.mark.parametrize("statements", [40, 1, 120])
@pytest.mark.grid(keep=1)
def test_a_process_that_ends_while_it_creates_the_store_leaves_none_behind(statements, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=end_after, args=(statements, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 9
    record_a_run(tmp_path)
    assert rows(tmp_path, "select count(*) from runs") == [(1,)]


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("name", ["a#b & c", "a%20b", "a?b", "%"])
def test_the_store_is_in_the_output_folder_whatever_its_name(name, tmp_path):
    record_a_run(tmp_path / name / "runs")
    assert rows(tmp_path / name / "runs", "select count(*) from runs") == [(1,)]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_artifacts_and_the_model_are_next_to_a_store_whatever_its_folder_is_named(tmp_path):
    output = tmp_path / "a%20b?c"
    recorded = run(small(output))
    assert recorded.warning is None
    assert (output / "mlartifacts" / recorded.folder.record()["mlflow_run_id"] / "artifacts" / "run.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_a_deleted_experiment_ends_in_a_sentence_and_a_restored_one_is_used_again(tmp_path):
    wanted, client = small(tmp_path), open_client(default_uri(tmp_path))
    first = experiment_id(client, wanted)
    client.delete_experiment(first)
    with pytest.raises(UserError, match=rf"is deleted; restore it by `mlflow experiments restore -x {first}`"):
        experiment_id(client, wanted)
    client.restore_experiment(first)
    assert experiment_id(client, wanted) == first


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    return run(small(tmp_path_factory.mktemp("runs"), enabled=False)).folder


def pushed(folder):
    """MLflow's entry of a run after a push, and the times of its metrics."""
    assert push(str(folder)) == []
    client, run_id = MlflowClient(default_uri(folder.path.parent)), folder.record()["mlflow_run_id"]
    return client.get_run(run_id), [m.timestamp for m in client.get_metric_history(run_id, "train/loss")]


def milliseconds(text):
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_run_that_is_pushed_later_has_its_own_times(untracked):
    created, finished = "2020-02-03T04:05:06+00:00", "2020-02-03T05:05:06+00:00"
    untracked.update(created=created, finished=finished)
    entry, times = pushed(untracked)
    assert (entry.info.start_time, entry.info.end_time) == (milliseconds(created), milliseconds(finished))
    assert len(times) == 5
    assert times == sorted(times)
    assert milliseconds(created) < times[0]
    assert times[-1] < milliseconds(finished)


def test_a_run_that_was_deleted_in_mlflow_is_recorded_anew_and_an_interrupted_one_ends_with_its_last_round(untracked):
    entry, _ = pushed(untracked)
    MlflowClient(default_uri(untracked.path.parent)).delete_run(entry.info.run_id)
    untracked.update(status="interrupted", finished="")
    os.utime(untracked.metrics, (1_600_000_000, 1_600_000_000))
    again, times = pushed(untracked)
    assert again.info.run_id != entry.info.run_id
    assert (again.info.status, again.info.end_time, len(times)) == ("KILLED", 1_600_000_000_000, 5)


def test_a_run_in_progress_is_not_pushed_as_one_that_has_ended(untracked):
    status = untracked.status
    untracked.update(status="running")
    before = (untracked.path / "run.json").read_bytes()
    with RunLock(untracked.path):
        refused = hedgerow("push", untracked)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{untracked} is being run by process {os.getpid()}" in refused.stderr
    assert (untracked.path / "run.json").read_bytes() == before
    untracked.update(status=status)


def test_a_run_that_continues_with_an_edited_file_has_its_settings_and_rounds_and_a_copy_leaves_the_original(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)
    experiment = small(tmp_path)
    experiment = experiment.model_copy(
        update={"checkpoints": experiment.checkpoints.model_copy(update={"every": 1, "keep": 4})}
    )

    def stop(record):
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(experiment, show=stop)
    (folder,) = tmp_path.glob("tracked-*")
    client = MlflowClient(default_uri(tmp_path))
    before = json.loads((folder / "run.json").read_text())["mlflow_run_id"]
    assert len(client.get_metric_history(before, "train/loss")) == 3
    # A run that was killed: MLflow has a round that no checkpoint has.
    for round in (3, 4):
        shutil.rmtree(folder / "checkpoints" / f"round-0000000{round}")
    copied = shutil.copytree(folder, tmp_path / "copied")
    for edited, rate in ((copied, "0.4"), (folder, "0.8")):
        file = edited / "experiment.yaml"
        file.write_text(file.read_text().replace("lr: 0.2", f"lr: {rate}"))
        resume(str(edited), changed=True)
        losses = [json.loads(line)["train_loss"] for line in (edited / "metrics.jsonl").read_text().splitlines()]
        (entry,) = client.search_runs(["1"], f"run_name = '{edited.name}'")
        history = client.get_metric_history(entry.info.run_id, "train/loss")
        assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == list(enumerate(losses, 1))
        assert (len(losses), entry.data.params["algorithm.lr"], entry.info.status) == (5, rate, "FINISHED")
        assert client.get_run(before).info.lifecycle_stage == ("active" if edited is copied else "deleted")
