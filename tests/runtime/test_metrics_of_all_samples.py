"""Metrics that see all outputs of a split at once, against scikit-learn, torchmetrics and the model itself."""

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

import hedgerow
from hedgerow.algorithms.core.measures import Scoring
from hedgerow.algorithms.core.messages import Aggregate, Predictions
from hedgerow.algorithms.measures.all_samples import auroc, calibration_error, macro_f1
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runtime.evaluation import client_scores

G = torch.Generator().manual_seed(0)
LOGITS, CLASSES = torch.randn(200, 5, generator=G), torch.randint(5, (200,), generator=G)
OUTPUTS, LABELS = torch.randn(200, 3, generator=G), torch.randint(2, (200, 3), generator=G)


def of_all(measure, outputs, targets):
    return measure.of_all(outputs.numpy(), targets.numpy())


def test_they_are_those_of_scikit_learn():
    chosen = LOGITS.argmax(1)
    assert of_all(macro_f1, LOGITS, CLASSES) == pytest.approx(f1_score(CLASSES, chosen, average="macro"))
    areas = roc_auc_score(CLASSES, LOGITS.softmax(1), multi_class="ovr", average="macro")
    assert of_all(auroc, LOGITS, CLASSES) == pytest.approx(areas, abs=1e-6)
    assert of_all(macro_f1, OUTPUTS, LABELS) == pytest.approx(f1_score(LABELS, OUTPUTS > 0, average="macro"))
    assert of_all(auroc, OUTPUTS, LABELS) == pytest.approx(roc_auc_score(LABELS, OUTPUTS, average="macro"))
    # A class that no sample has is left out.
    few = CLASSES.clamp(max=3)
    pairs = [roc_auc_score(few == k, LOGITS.softmax(1)[:, k]) for k in range(4)]
    assert of_all(auroc, LOGITS, few) == pytest.approx(np.mean(pairs))
    assert np.isnan(of_all(auroc, LOGITS, torch.zeros(200).long()))
    # A model that has diverged.
    assert np.isnan(of_all(auroc, torch.full((200, 5), torch.inf), CLASSES))


def test_a_client_that_diverged_is_among_the_worst():
    outputs, sizes = LOGITS.clone(), np.full(20, 10)
    outputs[:10] = torch.nan
    predictions = Predictions(outputs.log_softmax(1).numpy(), CLASSES.numpy(), outputs.numpy())
    result = Aggregate({}, np.ones(20, bool), {"samples": sizes, "loss": 2.0 * sizes}, predictions=predictions)
    _, record = client_scores(result, Scoring(metrics={"macro_f1": macro_f1}), personal=False)
    assert np.isnan(record["client_macro_f1"])
    assert np.isnan(record["client_macro_f1_worst10"])
    assert record["client_loss"] == 2.0


def test_the_calibration_error_is_that_of_its_definition():
    confidence, predicted = LOGITS.softmax(1).max(1)
    error = 0.0
    for k in range(15):
        chosen = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if chosen.any():
            gap = confidence[chosen].mean() - (predicted == CLASSES)[chosen].float().mean()
            error += chosen.float().mean() * abs(gap)
    assert of_all(calibration_error, LOGITS, CLASSES) == pytest.approx(float(error), abs=1e-6)
    sure = torch.eye(5)[CLASSES] * 100
    assert of_all(calibration_error, sure, CLASSES) == pytest.approx(0.0, abs=1e-6)


MODULE = '''
from hedgerow import metric


@metric("max", "classes")
def share(outputs, targets):
    """The accuracy, of all samples at once."""
    return (outputs.argmax(-1) == targets).double().mean()


def number(outputs, targets, factor=1.0):
    return factor * len(targets)
'''
NAMED = ["accuracy", "macro_f1", "auroc", "calibration_error", "own_metrics.share"]


@pytest.fixture
def values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_metrics.py").write_text(MODULE)
    return {
        "name": "all",
        "rounds": 2,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.5, "client_test_fraction": 0.2},
            "model": {"name": "mlp", "hidden": [16]},
            "metrics": [*NAMED, {"name": "own_metrics.number", "args": {"factor": 2.0}, "mode": "min"}],
            "validation": {"fraction": 0.1},
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
        "resources": {"executor": "inline"},
        "engine": {"mode": "loop"},
        "tracking": {"enabled": False},
    }


def test_a_run_records_them_for_all_splits_and_changes_no_other_number(values):
    finished = hedgerow.run(values, show=False)
    frame, samples = finished.frame, finished.samples
    for split in ("test", "validation", "client"):
        assert frame[f"{split}_share"].tolist() == pytest.approx(frame[f"{split}_accuracy"].tolist(), abs=1e-7)
    labels = finished._data[0].y_test
    probabilities = torch.from_numpy(finished.predict(samples))
    last = frame.iloc[-1]
    chosen = probabilities.argmax(1)
    assert last["test_macro_f1"] == pytest.approx(f1_score(labels, chosen, average="macro"), abs=1e-9)
    areas = roc_auc_score(labels, probabilities / probabilities.sum(1, keepdim=True), multi_class="ovr")
    assert last["test_auroc"] == pytest.approx(areas, abs=1e-6)
    error = calibration_error.of_all(probabilities.log().numpy(), labels)
    assert last["test_calibration_error"] == pytest.approx(error, abs=1e-6)
    assert last["test_number"] == 2 * len(labels)
    alone = hedgerow.run(values, show=False, task__metrics=["accuracy"]).frame.drop(columns="seconds")
    assert frame[alone.columns].equals(alone)


@pytest.mark.parametrize(
    ("changes", "executor"),
    [
        ({"engine__mode": "vmap"}, "inline"),
        ({"resources__actors": 2}, "auto"),
        ({"algorithm": {"name": "ditto", "lr": 0.1, "batch_size": 8}}, "inline"),
        ({"algorithm": {"name": "per_fedavg", "batch_size": 8}}, "inline"),
    ],
)
def test_they_are_right_batched_in_processes_and_for_personal_models(values, changes, executor):
    frame = hedgerow.run(values, show=False, resources__executor=executor, **changes).frame
    for split in ("test", "validation", "client"):
        assert frame[f"{split}_share"].tolist() == pytest.approx(frame[f"{split}_accuracy"].tolist(), abs=1e-6)


def test_a_class_of_torchmetrics_is_one_by_its_dotted_path(values):
    pytest.importorskip("torchmetrics")
    name = "torchmetrics.classification.MulticlassF1Score"
    metrics = ["macro_f1", {"name": name, "args": {"num_classes": 10, "average": "macro"}}]
    frame = hedgerow.run(values, show=False, task__metrics=metrics).frame
    assert frame["test_MulticlassF1Score"].tolist() == pytest.approx(frame["test_macro_f1"].tolist(), abs=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_the_confusion_matrix_of_the_last_evaluation_is_a_file_and_a_figure(values, algorithm):
    finished = hedgerow.run(values, show=False, evaluation__confusion_matrix=True, algorithm__name=algorithm)
    with (finished.folder.path / "confusion_matrix.csv").open() as file:
        header, *rows = csv.reader(file)
    counts = np.array([row[1:] for row in rows], int)
    assert header[1:] == [row[0] for row in rows] == list(finished._data[0].class_names)
    assert counts.trace() / counts.sum() == pytest.approx(finished.summary["test_accuracy"], abs=1e-9)
    if algorithm == "fedavg":
        chosen = finished.predict(finished.samples).argmax(1)
        assert (counts == confusion_matrix(finished._data[0].y_test, chosen)).all()
    assert (finished.folder.figures / "confusion_matrix.png").exists()
    assert finished.folder.record()["confusion_matrix"] == counts.tolist()


def test_mistakes_are_refused_before_any_work(values, tmp_path):
    for changes, sentence in (
        ({"task__metrics": ["own_metrics.number"]}, "own_metrics.number does not say whether more or less is better"),
        (
            {"task__metrics": [{"name": "own_metrics.number", "mode": "min", "args": {"facto": 1}}]},
            "(outputs, targets)",
        ),
        (
            {"task__loss": "own_metrics.share"},
            "'own_metrics.share' is not a loss, a function of (outputs, targets, mask)",
        ),
        ({"task__metrics": ["torch.nn.Linear"]}, "'torch.nn.Linear' is not a metric"),
        (
            {"algorithm": {"name": "central", "lr": 0.1, "batch_size": 8, "starts": 2}, "task__validation": None},
            "needs the outputs of one model, and the algorithm scores several or none",
        ),
    ):
        with pytest.raises(UserError) as caught:
            hedgerow.run(values, show=False, **changes)
        assert sentence in str(caught.value)
    assert not (tmp_path / "runs").exists()
