"""`import hedgerow` in plain Python and in a real kernel: live progress, frames, figures, errors, interruptions."""

import os
import signal
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from paths import ROOT

import hedgerow
from hedgerow import Interrupted, UserError
from hedgerow.platform.common.numbers import percent
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.yaml_reader import dump_values
from hedgerow.platform.runs import runner

START = ROOT / "examples" / "start.ipynb"


def values(output: Path, **settings) -> dict:
    return {
        "name": "small",
        "rounds": 6,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 10, "samples_per_client": 20},
            "model": {"name": "mlp", "hidden": [8]},
        },
        "algorithm": {"name": "fedavg", "lr": 0.2},
        "evaluation": {"every": 2},
        "engine": {"mode": "vmap", "chunk": 5},
        "resources": {"executor": "inline"},
        "checkpoints": {"every": 2},
        "tracking": {"enabled": False},
        "output": str(output),
        **settings,
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return hedgerow.run(values(tmp_path_factory.mktemp("runs")), show=False)


def test_the_frame_has_a_row_per_round_and_a_column_per_metric(ran):
    assert list(ran.frame.index) == [1, 2, 3, 4, 5, 6]
    assert ran.frame.index.name == "round"
    assert list(ran.frame["train_loss"]) == [record["train_loss"] for record in ran.records]
    assert list(ran.frame["test_accuracy"].dropna().index) == [2, 4, 6]
    assert ran.frame["test_accuracy"].iloc[-1] == ran.summary["test_accuracy"]


def test_a_folder_reads_back_as_the_same_run(ran):
    again = hedgerow.load(ran.folder)
    assert again.frame.equals(ran.frame)
    assert (again.summary, again.experiment, again.status) == (ran.summary, ran.experiment, "finished")
    assert again.parameters.keys() == ran.parameters.keys()
    for name, value in ran.parameters.items():
        assert np.array_equal(again.parameters[name], value)


def test_the_figure_shows_the_frame_and_a_notebook_shows_both(ran):
    accuracy = ran.figure().axes[0]
    x, y = accuracy.lines[0].get_data()
    assert list(x) == [2, 4, 6]
    assert list(y) == pytest.approx(list(ran.frame["test_accuracy"].dropna()))
    x, _ = ran.figure(by="traffic").axes[0].lines[0].get_data()
    sent = (ran.frame["scalars_down"] + ran.frame["scalars_up"]).cumsum()
    assert list(x) == list(sent.loc[[2, 4, 6]])
    assert ran._repr_png_().startswith(b"\x89PNG")
    html = ran._repr_html_()
    assert ran.folder.name in html
    assert f'<td class="n">{percent(ran.summary["test_accuracy"])}</td>' in html
    assert "data:image/png;base64," in html


def test_a_file_a_dictionary_and_an_experiment_are_the_same(tmp_path):
    file = tmp_path / "exp.yaml"
    given = values(tmp_path)
    file.write_text(dump_values(given))
    wanted = parse_experiment({**given, "rounds": 1, "algorithm": {"name": "fedavg", "lr": 0.05}})
    for one in (file, str(file), given, parse_experiment(given)):
        finished = hedgerow.run(one, show=False, rounds=1, algorithm__lr=np.float64(0.05))
        assert finished.experiment == wanted
    # The caller's dictionary is as it was.
    assert given == values(tmp_path)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda at: hedgerow.run(at / "exp.yaml"), "there is no such file"),
        (
            lambda at: hedgerow.run(values(at), algorithm__lrr=0.1),
            "algorithm__lrr=0.1: algorithm.lrr is not a key here",
        ),
        (lambda at: hedgerow.run(values(at), rounds__x=3), "rounds is not a section; set it as a whole: rounds="),
        (lambda at: hedgerow.run(7), "an experiment is a file, a dictionary or an Experiment, not int"),
        (lambda at: hedgerow.search(values(at)), "there is no `search:` section; add one"),
        (lambda at: hedgerow.load(at), "is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_before_any_work(call, sentence, tmp_path):
    with pytest.raises(UserError) as told:
        call(tmp_path)
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_what_is_finished_is_not_resumed(ran):
    with pytest.raises(UserError, match="is finished: there is nothing to resume"):
        hedgerow.resume(ran.folder)


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where the tests themselves run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_is_read_and_resumed_to_the_same_end(ran, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)

    def stop(record):
        if record["round"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"hedgerow.resume\('.*small-.*'\) continues") as stopped:
        hedgerow.run(values(tmp_path), show=stop)
    assert isinstance(stopped.value, KeyboardInterrupt)
    halfway = hedgerow.load(stopped.value.folder)
    assert halfway.status == "interrupted"
    assert 3 <= len(halfway.frame) < 6
    assert halfway._repr_html_()
    ended = hedgerow.resume(stopped.value.folder)
    assert ended.frame.drop(columns="seconds").equals(ran.frame.drop(columns="seconds"))
    # In plain Python, progress is plain lines.
    assert "small: round 6/6  test accuracy" in capsys.readouterr().out


STOP = """
import os, signal
import hedgerow
stop = lambda record: os.kill(os.getpid(), signal.SIGINT) if record["round"] == 3 else None
hedgerow.run(experiment, rounds=10**5, show=stop)
"""


class Watched(NotebookClient):
    """Remembers what each cell has displayed, also where it was replaced: (place, HTML)."""

    def process_message(self, msg, cell, cell_index):
        content = msg["content"]
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.displays[cell.id].append((content["transient"].get("display_id"), content["data"].get("text/html")))
        return super().process_message(msg, cell, cell_index)

    @cached_property
    def displays(self) -> dict[str, list[tuple[str, str]]]:
        return defaultdict(list)


@pytest.fixture(scope="module")
def executed(ray_here, tmp_path_factory):
    """The example, and what goes wrong, in a kernel: what its cells put out, and all that they displayed on the way."""
    notebook, here = nbformat.read(START, 4), tmp_path_factory.mktemp("notebook")
    assert not any(cell.get("outputs") for cell in notebook.cells)
    for name, text in (("mistake", "hedgerow.run(experiment, algorithm__lrr=1)"), ("stop", STOP)):
        cell = nbformat.v4.new_code_cell(text, id=name, metadata={"tags": ["raises-exception"]})
        notebook.cells.append(cell)
    address = ray_here.get_runtime_context().gcs_address
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = address
    watched = Watched(notebook, resources={"metadata": {"path": str(here)}})
    try:
        watched.execute()
    finally:
        os.environ.pop("RAY_ADDRESS") if before is None else os.environ.update(RAY_ADDRESS=before)
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    return outputs, watched.displays


def shown(outputs: list) -> list:
    """What is displayed."""
    return [output for output in outputs if output.output_type in ("display_data", "execute_result")]


def html(outputs: list) -> list[str]:
    return [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]


def test_frames_and_figures_are_shown(executed):
    outputs, _ = executed
    (frame,) = html(outputs["frame"])
    assert "client_accuracy_worst10" in frame
    (figure,) = shown(outputs["figure"])
    assert figure.data["image/png"].startswith("iVBOR")


def test_a_run_is_one_display_that_is_replaced_as_it_goes(executed):
    outputs, displays = executed
    places, pictures = zip(*displays["run"], strict=True)
    assert len(set(places)) == 1
    assert "0/20  starting" in pictures[0]
    assert len(pictures) > 1
    live, result = html(outputs["run"])
    assert live == pictures[-1]
    assert "20/20  test accuracy" in live
    assert 'aria-label="test accuracy by round"' in live
    assert "data:image/png;base64," in result


def test_other_packages_print_and_warn_nothing(executed):
    outputs, _ = executed
    streams = {name: [o.text for o in some if o.output_type == "stream"] for name, some in outputs.items()}
    assert not {name: texts for name, texts in streams.items() if texts and name != "stop"}


def test_a_search_is_one_table_that_is_replaced(executed):
    outputs, displays = executed
    places, tables = zip(*displays["search"], strict=True)
    assert len(set(places)) == 1
    assert "<td>waiting</td>" in tables[0]
    assert len(tables) > 2
    live, result = html(outputs["search"])
    assert live == tables[-1]
    assert "round 20/20" in live
    assert live.count("<td>finished</td>") == 3
    assert "data:image/png;base64," in result
    for cell, heading in (("weights", "002"), ("regret", "bound")):
        (frame,) = html(outputs[cell])
        assert 'class="dataframe"' in frame
        assert f"<th>{heading}</th>" in frame


def test_a_notebook_tells_a_mistake_without_a_traceback(executed):
    (error,) = (output for output in executed[0]["mistake"] if output.output_type == "error")
    assert error.ename == "UserError"
    assert len(error.traceback) == 1
    assert error.traceback[0].startswith("UserError: algorithm__lrr=1: algorithm.lrr is not a key here")


def test_a_kernel_that_is_interrupted_says_how_to_go_on(executed):
    (error,) = (output for output in executed[0]["stop"] if output.output_type == "error")
    assert error.ename == "Interrupted"
    assert error.traceback == [f"Interrupted: {error.evalue}"]
    assert "hedgerow.resume('runs/start-" in error.evalue
