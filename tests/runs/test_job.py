"""`--job`: a command that starts again reads its finished runs, resumes the others, and runs what is missing."""

import json
import subprocess
from contextlib import contextmanager

import pytest
import yaml
from command_line import hedgerow
from paths import SUPPORT
from preloaded import PreloadedPython
from ray_runs import small
from searches import plan

from hedgerow.platform.runs import run_command, runner
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.tracking.run_folder import RunFolder, names_in_job
from hedgerow.searchspaces.results.finished_search import FinishedSearch

SETTINGS = {"resources__executor": "inline", "algorithm": {"name": "fedavg", "batch_size": 8}}


@pytest.fixture
def interrupted_at(monkeypatch):
    """Function that lets the next command be interrupted at a round, counted over all of its runs; 0: not at all."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def set_round(number):
        seen = []

        def show(record):
            seen.append(record)
            if len(seen) == number:
                raise KeyboardInterrupt

        @contextmanager
        def display(experiment, in_series):
            yield show

        monkeypatch.setattr(run_command, "progress_of", display)

    return set_round


def records(folder):
    return [{**record, "seconds": 0} for record in FinishedRun.read(RunFolder(folder)).records]


@pytest.mark.exhaustive("processes")
def test_files_and_seeds_continue_where_the_job_was_stopped(tmp_path, interrupted_at):
    files = []
    for name, seeds in (("one", None), ("several", [3, 1]), ("last", None)):
        values = small(tmp_path / "runs", **SETTINGS, rounds=4).model_dump(mode="json") | {"name": name}
        if seeds:
            values["seeds"] = seeds
            del values["seed"]
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(values))
    interrupted_at(0)
    calm = hedgerow("run", *files, "--job", "calm")
    assert calm.exit_code == 0, calm.output
    # In the third round of the second seed.
    interrupted_at(4 + 4 + 3)
    assert hedgerow("run", *files, "--job", "77").exit_code == 130
    runs = tmp_path / "runs"
    names = ["one-77", "several-77-seed3", "several-77-seed1", "last-77"]
    assert {path.name for path in runs.glob("*-77*")} == set(names[:3])
    assert json.loads((runs / names[2] / "run.json").read_text())["status"] == "interrupted"
    before = [(runs / name / "run.json").read_text() for name in names[:2]]
    interrupted_at(0)
    for _ in range(2):
        # The second time, everything is finished.
        again = hedgerow("run", *files, "--job", "77", "--json")
        assert again.exit_code == 0, again.output
        entries = json.loads(again.stdout)["runs"]
        assert [entry["folder"] for entry in entries] == [str(runs / name) for name in names]
        for name in names:
            assert records(runs / name) == records(runs / name.replace("77", "calm"))
    assert [(runs / name / "run.json").read_text() for name in names[:2]] == before


def test_a_job_that_has_other_settings_than_its_run_says_so(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(small(tmp_path / "runs", **SETTINGS, rounds=1).model_dump(mode="json")))
    words, other = ("run", file, "--job", "5", "--json"), ("--set", "algorithm.lr=0.5", "--set", "rounds=2")
    first, same, changed = hedgerow(*words), hedgerow(*words, "--set", "resources.actors=3"), hedgerow(*words, *other)
    assert [one.exit_code for one in (first, same, changed)] == [0, 0, 0], changed.output
    assert "keeps" not in first.stderr + same.stderr
    assert (
        f"warning: {tmp_path / 'runs' / 'small-5'} keeps its own settings, and this command has others: "
        "rounds (1 -> 2), algorithm.lr (0.1 -> 0.5); start a new run for them"
    ) in changed.stderr
    assert json.loads(changed.stdout)["runs"][0]["summary"] == json.loads(first.stdout)["runs"][0]["summary"]


def test_experiments_of_one_name_have_different_folders(tmp_path):
    one, other = small(tmp_path), small(tmp_path, name="other")
    assert names_in_job([one, other, one, one], "5") == ["small-5", "other-5", "small-5-2", "small-5-3"]


@pytest.mark.parametrize("job", ["a/b", "..", ".", "", "-1", "a b"])
def test_a_job_is_part_of_the_name_of_a_folder(job, tmp_path):
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(small(tmp_path).model_dump(mode="json")))
    refused = hedgerow("run", tmp_path / "file.yaml", f"--job={job}")
    assert refused.exit_code == 2
    assert "is not an identifier" in refused.output
    assert not list(tmp_path.glob("small-*"))


STOPPED = """
import sys
from pathlib import Path

from hedgerow.searchspaces.tune.search_runner import search
from hedgerow.searchspaces.spaces.search_file import load_search


class Stop:
    labels = [""] * 4
    trial = state = staticmethod(lambda *arguments: None)

    def hedge(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


search(load_search(Path(sys.argv[1])), show=Stop(), name=sys.argv[2])
"""
"""Interrupts a search after two of its rounds."""


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_search_continues_where_the_job_was_stopped(tmp_path):
    file, run = tmp_path / "file.yaml", tmp_path / "runs" / "small-8"
    file.write_text(plan(tmp_path / "runs", rounds=6).dump())
    stopped = PreloadedPython(["-c", STOPPED, file, run.name], cwd=SUPPORT, stderr=subprocess.DEVNULL)
    assert stopped.wait(200) != 0
    assert RunFolder(run).record()["status"] == "interrupted"
    for _ in range(2):
        done = hedgerow("search", file, "--job", "8")
        assert done.exit_code == 0, done.output
    assert list((tmp_path / "runs").glob("small-*")) == [run]
    assert [len(trial.records) for trial in FinishedSearch.read(RunFolder(run)).trials] == [6] * 4


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_table_is_not_run_again(tmp_path):
    words = ["moml/small/digits", "--methods", "TOE", "--set", "rounds=4", "--set", "task.partition.tasks=4",
             "--set", "search.space={algorithm.lr: [0.01, 0.1]}", "--set", "tracking.enabled=false",
             "--set", "task.model.hidden=[8]", "--output", tmp_path, "--job", "9"]  # fmt: skip
    outputs = [hedgerow("table", *words, "--json") for _ in range(2)]
    assert [output.exit_code for output in outputs] == [0, 0], outputs[0].output
    first, second = (json.loads(output.stdout) for output in outputs)
    assert first["rows"] == second["rows"]
    assert len(list(tmp_path.glob("*-9/run.json"))) == 1
