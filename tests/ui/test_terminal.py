"""What a person sees: the summary, the closing table, the progress, the curves."""

import io
import math
import re

import pytest
from rich.console import Console

from hedgerow.platform.common.table import Table
from hedgerow.platform.tracking.formatting import summary_table
from hedgerow.platform.tracking.summary import divergence_warnings, summarise
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.terminal import Progress, closing_table


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


def test_rounds_after_the_last_evaluation_hide_no_score():
    rounds = [{**one, "epsilon": 0.25 * one["round"]} for one in records([0.1, 0.5, None])]
    summary = summarise(rounds, [])
    assert (summary["test_accuracy"], summary["test_loss"], summary["report"]) == (0.5, 0.5, {"epsilon": 0.75})


def test_the_best_value_of_a_run_is_none_that_is_undefined():
    values = (math.nan, 0.4, 0.6)
    rounds = [{**one, "test_rmse": value} for one, value in zip(records([0.1, 0.2, 0.3]), values, strict=True)]
    for one in rounds:
        del one["test_accuracy"]
    rounds = [{"test_rmse": one["test_rmse"], **one} for one in rounds]
    assert summarise(rounds, [], "test_rmse")["best_test_rmse"] == 0.4


def test_the_closing_table_marks_targets_that_were_not_reached():
    out = io.StringIO()
    closing_table([("mine", summarise(RUN, [0.6, 0.7]))], Console(file=out, width=200))
    text = out.getvalue()
    assert "mine" in text
    assert "60.0 %" in text
    assert "10+" in text


def test_the_closing_table_warns_of_clients_that_diverged():
    out = io.StringIO()
    run = [{**record, "dropped": 2} for record in RUN]
    closing_table([("mine", summarise(run, [])), ("calm", summarise(RUN, []))], Console(file=out, width=200))
    assert "mine: warning: 10 client answers were not finite and left out; lower lr or set clip_norm" in out.getvalue()
    assert "calm: warning" not in out.getvalue()


def test_a_loss_reaches_its_target_from_above():
    losses = [{**record, "client_loss": 1 / record["round"]} for record in RUN]
    summary = summarise(losses, [0.4, 0.1], "client_loss")
    assert summary["to_target"] == {"loss 0.4": {"rounds": 3, "transmissions": 6.0}, "loss 0.1": None}


def cells(summary: dict) -> dict[str, str]:
    """Texts of the row of a run by heading."""
    return summary_table([("", summary)]).texts[0]


def test_more_decimals_are_shown_where_rounding_would_reach_a_target():
    near = summarise(records([0.8997]), [0.9])
    assert cells(near)["test accuracy"] == cells(near)["best test accuracy"] == "89.97 %"
    assert cells(summarise(records([0.9]), [0.9]))["test accuracy"] == "90.0 %"
    assert cells(summarise(records([0.8997]), []))["test accuracy"] == "90.0 %"


def test_large_losses_are_written_in_scientific_form():
    diverging = [{**record, "test_loss": 4e31, "train_loss": 1.5e7} for record in RUN]
    assert cells(summarise(diverging, []))["test loss"] == "4.00e+31"
    out = io.StringIO()
    with Progress("mine", 5, Console(file=out)) as progress:
        for record in diverging:
            progress(record)
    assert "loss 1.50e+07" in out.getvalue()


@pytest.mark.parametrize(
    ("losses", "classes", "says"),
    [
        ([2.3, 1.0, 0.5], 10, None),
        ([2.3, 4e31], 10, "the run diverged: its test loss is 4e+31 in round 2, after 2.3 in round 1; lower lr"),
        ([2.3, float("nan")], 10, "its test loss is nan in round 2, after 2.3 in round 1"),
        ([float("inf")], 10, "its test loss is inf in round 1;"),
        ([0.1, 4.0], 10, None),
        ([0.1, 5.0], 10, "its test loss is 5 in round 2"),
        ([1.0, 9.0], 10, None),
        ([1e-6, 1e3], 1, None),
    ],
)
def test_a_run_has_diverged_if_its_last_loss_is_absurd(losses, classes, says):
    run = [{"round": number, "test_loss": loss} for number, loss in enumerate(losses, start=1)]
    found = divergence_warnings(run, classes)
    assert found == [] if says is None else says in found[0]
    stream = [{"round": 1, "ctm": 0.5, "test_loss": 1.0}, {"round": 2, "ctm": 0.5, "test_loss": 99.0}]
    assert divergence_warnings(stream, 10) == []


@pytest.mark.parametrize(
    ("dropped", "participants", "lost"), [(0, 5, False), (4, 5, False), (5, 5, True), (0, 0, False)]
)
def test_a_run_has_diverged_if_no_client_answered_with_finite_numbers_in_its_last_round(dropped, participants, lost):
    first = {"round": 1, "test_loss": 2.3, "dropped": 5, "participants": 5}
    run = [first, {"round": 2, "test_loss": 2.3, "dropped": dropped, "participants": participants}]
    says = "the run diverged: the answers of all clients in round 2 were not finite; lower lr or set clip_norm"
    assert divergence_warnings(run, 10) == [says] * lost


def test_a_table_leaves_out_columns_and_cuts_no_word():
    summary = summarise(
        [{**record, "client_accuracy": 0.5, "client_accuracy_worst10": 0.25} for record in RUN], [0.6, 0.7]
    )
    texts = {}
    for width in (30, 80, 120, 1000):
        out = io.StringIO()
        closing_table([("digits-fedavg-with-a-name", summary)], Console(file=out, width=width))
        texts[width] = out.getvalue()
        assert max(map(len, texts[width].splitlines())) <= width
        assert "…" not in texts[width]
    wide = set(headings_of(texts[1000]))
    assert wide == {"run", *cells(summary)}
    assert "too narrow" not in texts[1000]
    assert (
        {"run", "test accuracy", "transmissions to 60 %", "transmissions to 70 %"} <= set(headings_of(texts[80])) < wide
    )
    assert "columns for which the terminal is too narrow (--json has all): " in texts[80]
    assert re.search(r"too narrow .*\bsent\b", " ".join(texts[80].split()))


def headings_of(text: str) -> list[str]:
    """The headings of a table; each may take several lines."""
    lines = [line.strip("┃").split("┃") for line in text.splitlines() if line.startswith("┃")]
    return [" ".join(" ".join(parts).split()) for parts in zip(*lines, strict=True)]


def test_texts_in_a_table_wrap_between_words():
    out = io.StringIO()
    rows = [{"client": "12", "largest class": "a class with a long name", "classes": "3"}]
    Table(rows, "Partition").print(Console(file=out, width=36))
    assert max(map(len, out.getvalue().splitlines())) <= 36
    assert {"client", "largest", "class", "classes", "long", "name"} <= set(out.getvalue().replace("┃", " ").split())


def test_elsewhere_than_on_a_terminal_progress_is_plain_lines():
    out = io.StringIO()
    with Progress("mine", 100, Console(file=out)) as progress:
        for record in records([0.5] * 100):
            progress(record)
    lines = out.getvalue().splitlines()
    assert lines[0] == "mine: 100 rounds"
    assert len(lines) == 12
    assert "round 100/100  test accuracy 50.0 %  train loss 0.020  2.0 rounds/s" in lines[-1]
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_progress_is_a_bar():
    out = io.StringIO()
    with Progress("mine", 5, Console(file=out, force_terminal=True, width=120)) as progress:
        for record in RUN:
            progress(record)
    assert "5/5" in out.getvalue()
    assert "accuracy 60.0 %" in out.getvalue()


@pytest.mark.parametrize(
    "runs", [{"a": [RUN]}, {"a": [RUN, RUN], "b": [records([float("nan")])]}, {"a": [records([None, None])]}]
)
def test_curves_are_drawn_for_any_run(runs, tmp_path):
    written = draw_curves(runs, tmp_path, [0.5])
    assert {path.suffix for path in written} == {".png", ".svg"}
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in content
