"""`--json` of whole commands, each in a process of its own: one document as in the reference, and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from command_line import GOOD
from paths import ROOT
from preloaded import PreloadedPython
from searches import plan
from tracked_runs import small

from hedgerow.cli import main
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.run_folder import RunFolder

ROW = re.compile(r"^\| (`[^|]+`) \| (.+?) \|$", re.MULTILINE)
SPACE = "search: {kind: hedge, space: {algorithm.lr: [0.05, 0.1]}}\n"
TABLE = ["moml/small/digits", "--methods", "TOE", "--set", "rounds=4", "--set", "task.partition.tasks=4",
         "--set", "search.space={algorithm.lr: [0.01, 0.1]}", "--set", "tracking.enabled=false",
         "--set", "task.model.hidden=[8]"]  # fmt: skip

STOPPED = """
import sys
from pathlib import Path

from hedgerow.searchspaces.tune.search_runner import search
from hedgerow.searchspaces.spaces.search_file import load_search


class Stop:
    labels = ["", ""]
    trial = state = staticmethod(lambda *arguments: None)

    def hedge(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


search(load_search(Path(sys.argv[1])), show=Stop())
"""
"""Interrupts a search after two of its rounds."""


def promised() -> dict[str, tuple[list[str], list[str]]]:
    """What the reference says of each document: its keys, and those of each entry of its list."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    found = {}
    for commands, told in ROW.findall(text[text.index("its document") :]):
        outer, _, inner = told.replace(")", "(").partition("(")
        inner, _, rest = inner.partition("(")
        words = lambda part: re.findall(r"`(\w+)`", part)  # noqa: E731
        found |= {name: (words(outer) + words(rest), words(inner)) for name in re.findall(r"`([^`]+)`", commands)}
    return found


PROMISED = promised()


def hedgerow(*arguments: object, **env: str) -> subprocess.CompletedProcess:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = ["-m", "hedgerow", *arguments, "--json"]
    with PreloadedPython(words, env=os.environ | env, text=True, **pipes) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def document(command: str, *arguments: object, **env: str) -> Any:
    """What a command leaves on standard output, all of it, as the reference promises it for `command`."""
    done = hedgerow(*arguments, **env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    keys, inner = PROMISED[command]
    assert list(found) == keys
    if inner:
        assert found[keys[0]]
        assert all(list(entry) == inner for entry in found[keys[0]])
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A user's folder with two experiments; MLflow records them, as it does by default."""
    folder = tmp_path_factory.mktemp("here")
    text = GOOD.replace("rounds: 3", "rounds: 2").replace("tracking: {enabled: false}\n", "")
    (folder / "good.yaml").write_text(text)
    (folder / "other.yaml").write_text(text.replace("name: good", "name: other").replace("lr: 0.1", "lr: 0.05"))
    (folder / "search.yaml").write_text(text.replace("{executor: inline}", "{}") + SPACE)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def ran(here):
    return document("run", "run", "good.yaml", "other.yaml")["runs"]


@pytest.fixture(scope="module")
def cluster(ray_here) -> dict[str, str]:
    """Where a command finds the Ray of the tests."""
    return {"RAY_ADDRESS": ray_here.get_runtime_context().gcs_address}


def test_every_command_that_has_a_document_is_in_the_reference():
    def names(group: click.Group, before: str = "") -> list[str]:
        found = []
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                found += names(command, f"{name} ")
            elif any(parameter.name == "as_json" for parameter in command.params):
                found.append(before + name)
        return found

    told = {" ".join(re.findall(r"(?<!\S)[a-z]+", name)) for name in PROMISED}
    assert told == set(names(main))


@pytest.mark.exhaustive("processes")
def test_runs(here, ran):
    assert [one["name"] for one in ran] == ["good", "other"]
    for one in ran:
        record = RunFolder(here / one["folder"]).record()
        assert one["summary"] == record["summary"]
        assert (one["copy"], one["warning"]) == (None, None)
        assert all((here / figure).is_file() for figure in one["figures"])


@pytest.mark.exhaustive("processes")
def test_a_report_and_a_comparison(here, ran):
    folders = [one["folder"] for one in ran]
    said = document("report", "report", *folders)
    assert (said["report"], said["runs"], said["warnings"]) == ("report.html", folders, [])
    assert (here / "report.html").read_text().startswith("<!doctype html>")
    said = document("compare", "compare", *folders)
    values = [group["quantities"]["test accuracy"]["values"] for group in said["groups"]]
    assert values == [[one["summary"]["test_accuracy"]] for one in ran]


@pytest.mark.exhaustive("processes")
def test_what_is_new(here):
    for kind, files in (("experiment", ["mine.yaml"]), ("algorithm", ["mine.py", "test_mine.py"])):
        said = document(f"new {kind}", "new", kind, "mine")
        assert said["files"] == files
        assert all((here / file).is_file() for file in files)
        assert said["next"]


@pytest.mark.exhaustive("processes")
def test_a_run_that_is_resumed(here, tmp_path):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(tmp_path), show=stop)
    (folder,) = tmp_path.glob("tracked-*")
    (said,) = document("resume RUN", "resume", folder)["runs"]
    assert said["folder"] == str(folder)
    assert said["summary"]["rounds"] == 5
    assert said["summary"] == RunFolder(folder).record()["summary"]
    again = hedgerow("resume", folder)
    assert (again.returncode, again.stdout) == (2, "")
    assert "is finished: there is nothing to resume" in again.stderr


@pytest.mark.exhaustive("processes")
def test_a_search_that_starts_ray_itself(here):
    (said,) = document("search", "search", "search.yaml")["searches"]
    assert sorted(row["algorithm.lr"] for row in said["trials"]) == [0.05, 0.1]
    assert said["summary"] == RunFolder(here / said["folder"]).record()["summary"]
    assert said["summary"]["rounds"] == 2
    assert said["warning"] is None


@pytest.mark.exhaustive("processes")
def test_a_search_that_is_resumed(here, cluster, tmp_path):
    settings = {"algorithm": {"name": "fedavg"}, "search__space": {"algorithm.lr": [0.01, 0.3]}}
    (tmp_path / "search.yaml").write_text(plan(tmp_path, **settings).dump())
    # In a process of its own, with which its trials end.
    stopped = [sys.executable, "-c", STOPPED, str(tmp_path / "search.yaml")]
    done = subprocess.run(stopped, env=os.environ | cluster, capture_output=True, text=True, timeout=400)
    assert "errors.Interrupted" in done.stderr, done.stderr
    (folder,) = tmp_path.glob("small-*")
    (said,) = document("resume SEARCH", "resume", folder, **cluster)["searches"]
    assert said["folder"] == str(folder)
    assert said["summary"]["rounds"] == 6
    assert len(said["trials"]) == 2


@pytest.mark.exhaustive("processes")
def test_a_table(here, cluster):
    said = document("table NAME", "table", *TABLE, **cluster)
    assert (said["table"], said["not_run"]) == ("moml/small", [])
    assert [row["method"] for row in said["rows"]] == ["TOE"]
    assert (here / said["folder"] / "table.json").is_file()
    assert document("table NAME", "table", "moml/small/digits", "--report")["rows"] == said["rows"]
    (file,) = document("table NAME --show", "table", *TABLE, "--show")["files"]
    assert file["rounds"] == 4
    tables = document("table", "table", "moml")["tables"]
    assert "moml/small" in [table["name"] for table in tables]
