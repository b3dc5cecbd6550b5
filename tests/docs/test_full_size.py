"""benchmarks/full_size.py: a line of a table stops after its minutes, continues, and is reported."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError

ROOT = Path(__file__).parents[2]
LINE = "feddyn/T2.3/mnist-iid", 0
SMALL = [
    "task.data={name: digits}", "task.model.hidden=[8]", "task.partition.clients=10", "rounds=4",
    "clients_per_round=0.5", "evaluation.targets=[0.99]", "algorithm.batch_size=10", "algorithm.epochs=1",
]  # fmt: skip


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import full_size

    yield full_size
    sys.modules.pop("full_size")


def cells(output) -> list[str]:
    told = CliRunner().invoke(main, ["table", LINE[0], "--report", "--output", str(output)], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    document = json.loads((output / "tables" / "feddyn-T2.3-mnist-iid" / "table.json").read_text())
    return [(cost["cell"], cost["status"]) for cost in document["lines"][0]["targets"]["0.99"]]


@pytest.mark.exhaustive("processes")
def test_a_line_that_was_stopped_continues_and_is_reported(script, tmp_path):
    changes = [*SMALL, *script.ALWAYS, "resources.device=cpu"]
    search = script.search_of(LINE, changes, tmp_path)
    script.start(search, None)
    folder = script.folder_of(search)
    # The time is over before the first round of all methods but the first.
    script.train(search, 0, None, until=float("inf"))
    script.train(search, 1, None, until=0.0)
    folder.update(status="interrupted")
    assert cells(tmp_path / "0") == [("4+", "finished")]
    script.start(search, None)
    for number in range(1, 4):
        script.train(search, number, None, until=float("inf"))
    folder.update(status="finished")
    assert cells(tmp_path / "0") == [("4+", "finished"), ("8+", "finished"), ("4+", "finished"), ("4+", "finished")]
    with pytest.raises(UserError, match="was started with other settings"):
        script.start(script.search_of(LINE, [*changes, "algorithm.lr=0.2"], tmp_path), None)
    # A finished run is not hidden by a later one that was stopped.
    later = script.search_of(LINE, [*changes, "name=later"], tmp_path)
    script.start(later, None)
    script.train(later, 0, None, until=float("inf"))
    script.folder_of(later).update(status="interrupted")
    assert len(cells(tmp_path / "0")) == 4


@pytest.mark.parametrize("name", ["feddyn/T2.3", "moml/5.1/s-mnist"])
def test_only_a_line_of_fixed_data_can_be_run(name, script, tmp_path):
    with pytest.raises(UserError, match="name one line of fixed data"):
        script.search_of((name, 0), [], tmp_path)
