"""What a person sees: the summary, the closing table, the progress, the curves."""

import io

import pytest
from rich.console import Console

from hedgerow.platform.figures import draw_curves
from hedgerow.platform.report import summarise
from hedgerow.platform.terminal import Progress, closing_table


def records(accuracies: list[float | None]) -> list[dict]:
    out = []
    for number, accuracy in enumerate(accuracies, start=1):
        record = {
            "round": number, "seconds": 0.5 * number, "train_loss": 2.0 / number, "transmissions": 2.0 * number,
            "scalars_down": 10, "scalars_up": 10, "bytes_down": 40, "bytes_up": 40, "dropped": 0, "participants": 1,
        }  # fmt: skip
        if accuracy is not None:
            record |= {"test_accuracy": accuracy, "test_loss": 1 - accuracy}
        out.append(record)
    return out


RUN = records([0.1, None, 0.5, 0.4, 0.6])


def test_the_summary_counts_to_the_first_round_that_reaches_a_target():
    summary = summarise(RUN, [0.45, 0.6, 0.7])
    assert summary["to_target"] == {
        "0.45": {"rounds": 3, "transmissions": 6.0},
        "0.6": {"rounds": 5, "transmissions": 10.0},
        "0.7": None,
    }
    assert (summary["test_accuracy"], summary["best_test_accuracy"]) == (0.6, 0.6)
    assert (summary["scalars"], summary["bytes"]) == (100, 400)


def test_the_closing_table_marks_targets_that_were_not_reached():
    out = io.StringIO()
    closing_table([("mine", summarise(RUN, [0.6, 0.7]))], Console(file=out, width=200))
    text = out.getvalue()
    assert "mine" in text
    assert "60.0%" in text
    assert "10+" in text


def test_the_closing_table_warns_of_clients_that_diverged():
    out = io.StringIO()
    run = [{**record, "dropped": 2} for record in RUN]
    closing_table([("mine", summarise(run, [])), ("calm", summarise(RUN, []))], Console(file=out, width=200))
    assert (
        "mine: warning: 10 answers of clients were not finite and left out; lower lr or set clip_norm" in out.getvalue()
    )
    assert "calm: warning" not in out.getvalue()


def test_a_loss_reaches_its_target_from_above():
    losses = [{**record, "client_loss": 1 / record["round"]} for record in RUN]
    summary = summarise(losses, [0.4, 0.1], "client_loss")
    assert summary["to_target"] == {"loss 0.4": {"rounds": 3, "transmissions": 6.0}, "loss 0.1": None}


def test_elsewhere_than_on_a_terminal_progress_is_plain_lines():
    out = io.StringIO()
    with Progress("mine", 100, Console(file=out)) as progress:
        for record in records([0.5] * 100):
            progress(record)
    lines = out.getvalue().splitlines()
    assert lines[0] == "mine: 100 rounds"
    assert len(lines) == 12
    assert "round 100/100  accuracy 50.0%  loss 0.020  2.0 rounds/s" in lines[-1]
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_progress_is_a_bar():
    out = io.StringIO()
    with Progress("mine", 5, Console(file=out, force_terminal=True, width=120)) as progress:
        for record in RUN:
            progress(record)
    assert "5/5" in out.getvalue()
    assert "accuracy 60.0%" in out.getvalue()


@pytest.mark.parametrize("runs", [{"a": RUN}, {"a": RUN, "b": records([float("nan")])}, {"a": records([None, None])}])
def test_curves_are_drawn_for_any_run(runs, tmp_path):
    written = draw_curves(runs, tmp_path, [0.5])
    assert {path.suffix for path in written} == {".png", ".svg"}
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in content
