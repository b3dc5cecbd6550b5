"""Output that cannot be written ends in one sentence that names the place, before any work."""

import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tracked_runs import small

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.mlflow_store import open_client

HOPELESS = "/proc/self/nowhere"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """An experiment file in the working directory, whose runs are stored in `runs`."""
    monkeypatch.chdir(tmp_path)
    Path("file.yaml").write_text(yaml.safe_dump(small("runs", enabled=False).model_dump(mode="json")))
    return "file.yaml"


def refusal(*arguments) -> str:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", [("run",), ("partition",), ("run", "--job", "7"), ("run", "--seeds", "1,2")])
def test_an_output_folder_that_is_a_link_to_nowhere_is_named(command, file, tmp_path):
    Path("runs").symlink_to("absent/disk")
    name, *options = command
    assert f"({tmp_path}/runs is a link to absent/disk, which does not exist)" in refusal(name, file, *options)


def test_an_output_folder_that_is_a_file_is_named(file, tmp_path):
    Path("runs").touch()
    assert refusal("run", file) == f"hedgerow: output: cannot write {tmp_path}/runs (File exists); choose another place"


@pytest.mark.parametrize("command", [("partition", "file.yaml"), ("demo",), ("schema",)])
def test_an_output_option_that_cannot_be_written_is_named(command, file):
    assert refusal(*command, "-o", HOPELESS).startswith(f"hedgerow: --output: cannot write {HOPELESS} (")


@pytest.fixture(scope="module")
def read_only(tmp_path_factory):
    """Folder of an interrupted and of a finished run, on a file system that is mounted read-only."""
    folder = tmp_path_factory.mktemp("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        for name in ("interrupted", "finished"):
            run(small(folder, enabled=False), name=name).folder.update(status=name)
        (folder / "mlflow.db").write_text("a database")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_run_on_a_read_only_file_system_is_not_resumed(read_only):
    assert refusal("resume", read_only / "interrupted") == (
        f"hedgerow: {read_only}/interrupted cannot be written (Read-only file system); make it writable, or copy it "
        "and use the copy"
    )


def test_a_run_on_a_read_only_file_system_is_pushed_in_vain_and_at_once(read_only):
    done = CliRunner().invoke(main, ["push", str(read_only / "finished")])
    assert done.exit_code == 2
    assert f"cannot write {read_only}/hedgerow.db (Read-only file system)" in done.stderr


def test_a_store_that_is_read_only_is_named(read_only):
    with pytest.raises(UserError, match=rf"^MLflow: cannot write {read_only}/mlflow\.db \(it is read-only\)"):
        open_client(f"sqlite:///{read_only}/mlflow.db")


def test_a_page_in_a_read_only_folder_is_refused_and_one_elsewhere_is_written(read_only, tmp_path):
    place = read_only / "finished" / "report.html"
    assert f"cannot write {place} (Read-only file system)" in refusal("report", place.parent)
    assert "Read-only file system; " in refusal("watch", "--page", place.parent)
    assert CliRunner().invoke(main, ["report", str(place.parent), "-o", str(tmp_path / "x.html")]).exit_code == 0
