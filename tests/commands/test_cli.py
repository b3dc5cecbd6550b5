"""The command line: every mistake ends in one clear sentence and exit code 2, before any work; good files run."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version

import pytest
from bad_files import BAD_FILES
from click.testing import CliRunner
from command_line import GOOD, refuse

from hedgerow.cli import main
from hedgerow.platform.tracking.tracker import RunLog

# What only shows when the data are there: what is replaced, by what, and what the sentence must say.
UNFIT = [
    ("{name: digits}", "{name: mnist}", "mnist is not in"),
    ("{name: digits}", "{name: image_folder, path: nowhere}", "task.data.path: there is no"),
    ("clients: 100", "clients: 100000", "100000 clients are more than the 1438 samples"),
    ("clients: 100", "clients: 100, samples_per_client: 50", "need 5000, but the data set has 1438"),
    ("kind: dirichlet, clients: 100, alpha: 0.3", "kind: labels, clients: 9, labels_per_client: 11", "11 is more than"),
    ("name: mlp, hidden: [20]", "name: cnn", "too small for cnn"),
    ("name: mlp, hidden: [20]", "name: char_lstm", "char_lstm takes token sequences"),
    ("name: mlp, hidden: [20]", "name: nopackage.Net", "no module named 'nopackage'"),
    ("name: mlp, hidden: [20]", "name: torch.nn.Lineer", "has no 'Lineer'; did you mean 'Linear'?"),
    ("name: mlp, hidden: [20]", "name: torch.nn.Linear", "task.model.args: torch.nn.Linear cannot be built from them"),
    (
        "name: mlp, hidden: [20]",
        "name: json.JSONDecoder",
        "is not a model of yours, because it is defined in 'json.decoder'",
    ),
    (
        "rounds: 3",
        "rounds: 3\nclients_per_round: 101",
        "101 clients per round exceed the population of 100",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), UNFIT, ids=[new for _, new, _ in UNFIT])
def test_what_does_not_fit_the_data_is_refused(old, new, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert old in GOOD
    assert expected in refuse(GOOD.replace(old, new, 1), tmp_path)


# Each of them is read in tests/config.
@pytest.mark.grid(keep=20)
@pytest.mark.parametrize(("text", "fragments"), [bad[1:] for bad in BAD_FILES], ids=[bad[0] for bad in BAD_FILES])
def test_a_bad_file_ends_in_exit_code_2(text, fragments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refuse(text, tmp_path)
    assert all(fragment in line for fragment in fragments), line


def test_there_are_at_least_forty_bad_files():
    assert len(BAD_FILES) >= 40


def test_a_bad_override_names_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refuse(GOOD, tmp_path, "--set", "algorithm.lrr=3")
    assert "--set algorithm.lrr=3: algorithm.lrr is not a key here; did you mean 'lr'?" in line


def test_a_bad_second_file_is_told_before_the_first_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("lr:", "lrr:"))
    result = CliRunner().invoke(main, ["run", "good.yaml", "bad.yaml"])
    assert result.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_two_experiments_are_run_compared_and_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(GOOD)
    other = GOOD.replace("name: good", "name: other").replace("fedavg,", "fedprox, mu: 0.1,")
    (tmp_path / "b.yaml").write_text(other.replace("targets: [0.01, 0.99]", "targets: [0.02]"))
    result = CliRunner().invoke(main, ["run", "a.yaml", "b.yaml", "--json"], catch_exceptions=False)
    # Both are measured against the targets of both files.
    reached = [{"rounds": 1, "transmissions": 1.0}] * 2
    assert [run["summary"]["to_target"] for run in json.loads(result.stdout)["runs"]] == [
        dict(zip(("0.01", "0.99", "0.02"), (reached[0], None, reached[0]), strict=True))
    ] * 2
    shutil.rmtree(tmp_path / "runs")
    result = CliRunner().invoke(main, ["run", "a.yaml", "b.yaml"], catch_exceptions=False)
    assert result.exit_code == 0
    for words in ("good: round 3/3", "other: round 3/3", "Results", "transmissions", "3+"):
        assert words in result.output
    (folder,) = (tmp_path / "runs").glob("good-*")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["plans"]["train/clients"] == {"mode": "vmap", "chunk": 5, "compiled": False}
    assert record["summary"]["to_target"]["0.01"] == {"rounds": 1, "transmissions": 1.0}
    assert record["summary"]["to_target"]["0.99"] is None
    assert [r["round"] for r in RunLog(folder / "metrics.jsonl").read()] == [1, 2, 3]
    for figures in (folder / "figures", tmp_path / "runs" / "comparison"):
        assert {f.name for f in figures.iterdir()} == {
            f"curves_by_{axis}.{ending}" for axis in ("round", "traffic") for ending in ("png", "svg")
        }


def test_the_recorded_file_runs_again_to_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(GOOD)
    assert CliRunner().invoke(main, ["run", "a.yaml"]).exit_code == 0
    (first,) = (tmp_path / "runs").iterdir()
    assert CliRunner().invoke(main, ["run", str(first / "experiment.yaml"), "--set", "output=again"]).exit_code == 0
    (second,) = (tmp_path / "again").iterdir()
    runs = [RunLog(folder / "metrics.jsonl").read() for folder in (first, second)]
    for mine, theirs in zip(*runs, strict=True):
        assert {k: v for k, v in mine.items() if k != "seconds"} == {k: v for k, v in theirs.items() if k != "seconds"}


def test_the_partition_is_printed_and_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(GOOD)
    result = CliRunner().invoke(main, ["partition", "a.yaml", "-o", "picture"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "largest class" in result.output
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_a_line_appears_before_the_slow_imports(tmp_path):
    ours, theirs = pty.openpty()
    # A file that is missing: what follows the line is the refusal.
    command = [sys.executable, "-X", "importtime", "-m", "hedgerow", "run", str(tmp_path / "missing.yaml")]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        # Linux ends a terminal without writers by an error.
        with suppress(OSError):
            while part := os.read(ours, 65536):
                said += part
        assert process.wait() == 2
    os.close(ours)
    before, line, after = said.decode().partition(
        f"hedgerow {version('hedgerow')}: reading {tmp_path / 'missing.yaml'} ..."
    )
    assert line
    for slow in ("torch", "numpy", "ray", "mlflow"):
        assert not re.search(rf"\| +{slow}\r?$", before, re.M)
    assert re.search(r"\| +torch\r?$", after, re.M)
