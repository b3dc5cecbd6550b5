"""Regression, multi-label classification and language modelling: against plain PyTorch, in a loop and under vmap."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import check_resuming, distance, partition, run_inline
from torch import nn

import hedgerow
from hedgerow.algorithms.core.measures import Scoring
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import dump_experiment, load_experiment, parse_experiment, read_experiment
from hedgerow.platform.config.measures_section import LossChoice, scoring
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.content_hash import content_hash
from hedgerow.platform.data.dataset import mistake_in
from hedgerow.platform.runtime.factory import check
from hedgerow.searchspaces.spaces.search_file import parse_search

SIZES = np.array([9, 20, 31])
ZERO, ONE = np.zeros(4, np.float32), np.ones(4, np.float32)


class EveryPosition(nn.Module):
    """Logits of the next token at every position."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(5, 6), nn.Linear(6, 5)

    def forward(self, tokens):
        return self.output(self.embedding(tokens).cumsum(1).tanh())


def made(targets):
    """A data set, a module and the loss of these targets; a quarter of the samples is for testing."""
    rng = np.random.default_rng(0)
    n = SIZES.sum() + 20
    x = rng.normal(size=(n, 4)).astype(np.float32)
    torch.manual_seed(0)
    if targets == "tokens":
        tokens = rng.integers(0, 5, (n, 7))
        tokens[:, 3] = tokens[:, 2]
        data = Dataset("made", tokens[20:, :-1].astype(np.uint8), tokens[20:, 1:], tokens[:20, :-1].astype(np.uint8),
                       tokens[:20, 1:], 5, ZERO[:1], ONE[:1], (), is_tokens=True, targets="tokens")  # fmt: skip
        return data, EveryPosition(), "next_token"
    if targets == "labels":
        y, loss, width = (x @ rng.normal(size=(4, 3)) + rng.normal(size=(n, 3)) > 0).astype(np.int64), "bce", 3
    else:
        width = 1 if targets == "number" else 2
        y, loss = (x @ rng.normal(size=(4, width)) + 1).astype(np.float32), "mse"
        y, targets = (y[:, 0] if width == 1 else y), "numbers"
    data = Dataset("made", x[20:], y[20:], x[:20], y[:20], width, ZERO, ONE, (), targets=targets)
    return data, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, width)), loss


def task_of(targets):
    data, module, loss = made(targets)
    mean, std = (None, None) if data.is_tokens else (torch.from_numpy(ZERO), torch.from_numpy(ONE))
    task = Task(module, mean, std, sample_shape=data.sample_shape, targets=data.targets)
    return data, replace(task, scoring=scoring(LossChoice(name=loss), None))


KINDS = ["number", "numbers", "labels", "tokens"]


def run(targets, mode="loop", name="fedavg", folder=None, rounds=3, sizes=SIZES, **hyper):
    data, task = task_of(targets)
    hyper = {"lr": 0.1, "batch_size": 8, **hyper}
    engine = EngineConfig(mode=mode, chunk=2)
    return run_inline(algorithm_class(name), task, data, partition(sizes), hyper, folder, rounds=rounds, engine=engine)


@pytest.mark.parametrize("targets", KINDS)
@pytest.mark.parametrize("name", ["fedavg", "central"])
def test_loop_and_vmap_agree(targets, name):
    looped, batched = run(targets, name=name), run(targets, "vmap", name=name)
    records = [list(looped), list(batched)]
    assert distance(looped.server["w"], batched.server["w"]) < 1e-5
    for one, other in zip(*records, strict=True):
        measured = [key for key in one if key.startswith(("test_", "client_", "train_"))]
        assert len(measured) >= 4
        assert [one[key] for key in measured] == pytest.approx([other[key] for key in measured], rel=1e-4)


@pytest.mark.parametrize("targets", KINDS)
def test_one_client_with_full_batches_is_gradient_descent_on_pytorchs_loss(targets):
    one = run(targets, sizes=SIZES.sum(keepdims=True), rounds=1, batch_size=None, epochs=None, steps=5)
    (record,) = list(one)
    data, module, loss = made(targets)
    references = {
        "mse": lambda o, t: nn.functional.mse_loss(o.reshape(t.shape), t),
        "bce": lambda o, t: nn.functional.binary_cross_entropy_with_logits(o, t.float()),
        "next_token": lambda o, t: nn.functional.cross_entropy(o.flatten(0, 1), t.flatten()),
    }
    x, y, x_test, y_test = map(torch.from_numpy, (data.x_train, data.y_train, data.x_test, data.y_test))
    x, x_test = (part.long() if data.is_tokens else part for part in (x, x_test))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        references[loss](module(x), y).backward()
        optimizer.step()
    assert distance(one.server["w"], dict(module.named_parameters())) < 1e-5
    with torch.no_grad():
        wanted = references[loss](module(x_test), y_test).item()
    assert record["test_loss"] == pytest.approx(wanted, rel=1e-5)
    if loss == "next_token":
        assert record["test_perplexity"] == pytest.approx(math.exp(wanted), rel=1e-5)
        assert {"test_token_accuracy", "client_perplexity"} <= record.keys()
    if loss == "mse":
        error = (module(x_test).reshape(y_test.shape) - y_test).abs().mean().item()
        assert (record["test_mse"], record["test_mae"]) == pytest.approx((wanted, error), rel=1e-5)


def test_scores_of_clients_are_those_of_their_own_samples():
    one = run("number", rounds=1)
    (record,) = list(one)
    data, task = task_of("number")
    with torch.no_grad():
        outputs = task.logits(one.server["w"], torch.from_numpy(data.x_train))[:, 0]
    errors = (outputs - torch.from_numpy(data.y_train)).abs()
    each = [part.mean().item() for part in errors.split(SIZES.tolist())]
    squares = [part.square().mean().item() for part in errors.split(SIZES.tolist())]
    assert record["client_mae"] == pytest.approx(np.mean(each), rel=1e-5)
    assert record["client_mse"] == pytest.approx(np.mean(squares), rel=1e-5)
    # The worst clients of a metric to be minimised have its highest values.
    assert record["client_mse_worst10"] == pytest.approx(max(squares), rel=1e-5)
    assert "client_accuracy" not in record
    assert one.servers[0].accuracies == []


@pytest.mark.parametrize("name", ["feddyn", "scaffold", "per_fedavg"])
def test_other_methods_learn_numbers(name):
    more = {"adapt_lr": 0.01} if name == "per_fedavg" else {}
    records = list(run("number", "vmap", name, rounds=6, epochs=4, lr=0.05, **more))
    assert records[-1]["test_mse"] < 0.5 * records[0]["test_mse"]


def test_a_resumed_regression_ends_like_an_undisturbed_one(tmp_path):
    check_resuming(lambda folder: run("number", folder=folder, optimizer="adamw", lr=0.01), 2, tmp_path)


# ---- the experiment file ---------------------------------------------------------------------------------------------

TASK = {
    "data": {"name": "diabetes"},
    "partition": {"kind": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
}
FILE = {
    "name": "other",
    "rounds": 2,
    "clients_per_round": "all",
    "task": {**TASK, "loss": "mse"},
    "algorithm": {"name": "fedavg", "lr": 0.05, "batch_size": 20},
    "resources": {"executor": "inline"},
    "tracking": {"enabled": False},
}

OWN = """
import torch

from hedgerow.algorithms.core.measures import metric


def pinball(outputs, targets, mask, quantile=0.5):
    difference = targets - outputs
    return (quantile * difference).maximum((quantile - 1) * difference)


@metric("max", "numbers")
def within(outputs, targets, mask):
    return ((outputs - targets).abs() < 0.5).float() * mask.sum() / mask.sum()


def share(outputs, targets, mask):
    right = ((outputs - targets).abs() < 0.5).float() * mask
    return right.sum(), mask.sum()


def scalar(outputs, targets, mask):
    return (outputs - targets).abs().mean()


def two(outputs, targets):
    return outputs


def relative(outputs, targets, mask):
    errors = (outputs - targets).abs()
    return errors / errors.detach().mean()


def length(outputs, targets, mask):
    return ((outputs - targets).abs() * mask).sum(), torch.tensor(float(len(targets)))


def noisy(outputs, targets, mask):
    return (outputs + torch.randn_like(outputs) - targets).abs()


def branching(outputs, targets, mask):
    return (outputs - targets).abs() if outputs.sum().item() < 9 else (outputs - targets) ** 2


client_error = error_lowest = accuracy_gap = r2_loss_gain = mae = scalar
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_scores.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("own_scores", None)


def test_a_loss_and_metrics_of_ones_own_in_a_run_and_its_record(own):
    task = {
        **TASK,
        "loss": {"name": "own_scores.pinball", "args": {"quantile": 0.9}},
        "metrics": ["own_scores.within", {"name": "own_scores.share", "mode": "max"}, "mae"],
        "validation": {"fraction": 0.2},
    }
    values = {**FILE, "task": task, "output": str(own / "runs")}
    finished = hedgerow.run(values)
    last = finished.records[-1]
    assert last["test_within"] == last["test_share"]
    assert {"test_mae", "validation_within", "client_share", "client_within_worst10", "test_loss"} <= last.keys()
    assert finished.summary["metric"] == "within"
    assert finished.summary["best_test_within"] == max(record["test_within"] for record in finished.records)
    assert finished.experiment.evaluation.target_metric == "test_within"
    # The folder is read without the module.
    sys.modules.pop("own_scores")
    (own / "own_scores.py").unlink()
    read = read_experiment(finished.folder.experiment)
    assert read.task.modes == {"within": "max", "share": "max", "mae": "min", "loss": "min"}
    plain = hedgerow.run({**FILE, "task": {**TASK, "loss": "mae"}, "output": str(own / "runs")})
    assert plain.records[-1]["test_loss"] == plain.records[-1]["test_mae"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "cross_entropy"}, "task.loss: cross_entropy takes classes, and the targets of diabetes are numbers; "
         "choose mse or mae, or store the classes as whole numbers or text instead of floats"),
        ({"metrics": ["accuracy"]}, "task.metrics: accuracy takes classes, and the targets of diabetes are numbers"),
        ({"partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.3}}, "task.partition.kind: dirichlet needs one "
         "class per sample, and the targets of diabetes are numbers; choose iid or natural"),
        ({"partition": {"kind": "iid", "clients": 4, "label_noise": 0.2}}, "task.partition.label_noise: 0.2 needs one "
         "class per sample"),
        ({"data": {"name": "digits"}}, "task.loss: mse takes numbers, and the targets of digits are classes; choose "
         "cross_entropy"),
        ({"loss": "own_scores.scalar"}, "task.loss: own_scores.scalar returns a tensor of shape () for 2 samples"),
        ({"loss": "own_scores.share"}, "task.loss: own_scores.share has no gradient"),
        ({"loss": "own_scores.relative"}, "task.loss: own_scores.relative depends on samples for which its argument "
         "`mask` is 0"),
        ({"loss": "own_scores.length"}, "task.loss: own_scores.length depends on samples for which its argument"),
        ({"loss": "own_scores.noisy"}, "its step `train`, or the loss, draws random numbers that no seed determines"),
        ({"loss": "own_scores.branching"}, "task.loss: the loss works for one client, but not for several at once"),
        ({"metrics": [{"name": "own_scores.branching", "mode": "min"}]}, "task.metrics: branching works for one "
         "client, but not for several at once"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_are_refused_in_a_sentence(own, changes, message):
    with pytest.raises(UserError) as caught:
        check(parse_experiment({**FILE, "task": {**FILE["task"], **changes}}), None)
    (sentence,) = caught.value.sentences
    assert message in sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "heterofl", "capacities": [1.0]}}, "heterofl needs one class per sample"),
        ({"objective": {"kind": "robustness"}}, "objective.kind: robustness needs one class per sample"),
        ({"algorithm": {"name": "per_fedavg", "adapt": "proto"}}, "algorithm.adapt: proto predicts classes"),
    ],
)  # fmt: skip
def test_methods_that_need_classes_are_refused_in_a_sentence(changes, message):
    with pytest.raises(UserError) as caught:
        check(parse_experiment({**FILE, **changes}), None)
    (sentence,) = caught.value.sentences
    assert message in sentence


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ({"loss": "mze"}, {}, "did you mean 'mse'?"),
        ({"loss": "own_scores.missing"}, {}, "module 'own_scores' has no 'missing'"),
        ({"loss": "own_scores.two"}, {}, "own_scores.two cannot be called with (outputs, targets, mask)"),
        ({"metrics": ["mae", "mae"]}, {}, "`metrics` has two metrics of the name mae"),
        ({"metrics": ["own_scores.share"]}, {}, "own_scores.share does not say whether more or less is better"),
        ({"metrics": [{"name": "mae", "mode": "max"}]}, {}, "the mode of mae is min"),
        *(({"metrics": [{"name": f"own_scores.{name}", "mode": "min"}]}, {}, f"'{name}' is a name of other results")
          for name in ("client_error", "error_lowest")),
        *(({"metrics": [{"name": f"own_scores.{name}", "mode": mode}]}, {}, f"own_scores.{name} is {natural}, and the "
           f"function's is {mode}; rename the function")
          for name, mode, natural in (("accuracy_gap", "min", "max"), ("r2_loss_gain", "max", "min"),
                                      ("mae", "max", "min"))),
        ({}, {"evaluation": {"target_metric": "test_accuracy"}}, "`evaluation.target_metric: test_accuracy` is not a"),
        ({"metrics": ["own_scores.within"]}, {"evaluation": {"targets": [0.5]}}, "a metric of your own; choose"),
    ],
)  # fmt: skip
def test_wrong_losses_and_metrics_are_refused_in_a_sentence(own, task, more, message):
    with pytest.raises(UserError) as caught:
        parse_experiment({**FILE, **more, "task": {**FILE["task"], **task}})
    (sentence,) = caught.value.sentences
    assert message in sentence


def test_data_cleaning_minimises_the_cross_entropy_only(own):
    task = {"data": {"name": "digits"}, "model": {"name": "logreg"}, "problem": {"kind": "cleaning"},
            "partition": {"kind": "iid", "clients": 3, "upper_level_fraction": 0.2, "label_noise": 0.2},
            "loss": "own_scores.pinball", "metrics": []}  # fmt: skip
    with pytest.raises(UserError, match=r"task\.loss: cleaning minimises the cross-entropy; set it to cross_entropy"):
        check(parse_experiment({**FILE, "task": task, "algorithm": {"name": "fedbio"}}), None)


def test_a_file_without_a_loss_is_a_classification_with_the_names_it_always_had():
    digits = {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 4}, "model": {"name": "logreg"}}
    made_file = parse_experiment({**FILE, "task": digits})
    assert made_file.task.modes == {"accuracy": "max", "loss": "min"}
    assert made_file.evaluation.target_metric == "test_accuracy"
    assert Scoring().names == ("loss", "correct", "samples")


def test_resolved_files_read_back(tmp_path):
    experiment = parse_experiment(FILE)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "file.yaml") == experiment
    assert experiment.evaluation.target_metric == "test_mse"


def test_targets_of_losses_and_errors_are_reached_from_above(tmp_path):
    evaluation = {"targets": [100.0, 1e-9], "target_metric": "test_mae"}
    finished = hedgerow.run({**FILE, "evaluation": evaluation, "output": str(tmp_path)})
    reached = finished.summary["to_target"]
    assert reached["mae 100"]["rounds"] == 1
    assert reached["mae 1e-09"] is None


def test_a_search_selects_by_the_main_metric_of_its_task():
    search = {"kind": "grid", "space": {"algorithm.lr": [0.01, 0.1]}}
    plan = parse_search({**FILE, "search": search})
    assert (plan.search.metric, plan.search.mode) == ("validation_mse", "min")
    assert plan.experiment.task.validation is not None
    hedge = parse_search({**FILE, "search": {**search, "kind": "hedge"}})
    assert (hedge.search.metric, hedge.search.mode, hedge.search.rate) == ("validation_mse", "min", "adahedge")
    with pytest.raises(UserError, match="fedex scores the accuracy of clients' models"):
        parse_search({**FILE, "search": {"kind": "fedex", "space": {"algorithm.lr": [0.01, 0.1]}}})
    with pytest.raises(UserError, match="test_mse selects by samples that only score the result; set `metric: valid"):
        parse_search({**FILE, "search": {**search, "metric": "test_mse"}})


# ---- data sets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", KINDS)
def test_data_sets_with_other_targets_are_accepted_and_hashed(targets):
    data = made(targets)[0]
    assert mistake_in(data) is None
    assert content_hash(data) != content_hash(replace(data, y_train=data.y_train[::-1]))


@pytest.mark.parametrize(
    ("targets", "change", "message"),
    [
        ("number", {"y_train": np.zeros(60)}, "y_train of float64 (60,); give one or several float32 numbers each"),
        ("numbers", {"classes": 3}, "has 2 targets per sample in y_train, but classes=3; set classes=2"),
        ("number", {"y_train": np.full(60, np.nan, np.float32)}, "has targets in y_train that are not finite"),
        ("labels", {"y_train": np.full((60, 3), 2)}, "has labels from 2 to 2 in y_train; give 0 or 1"),
        ("tokens", {"classes": 3}, "number its 3 tokens from 0"),
        ("number", {"targets": "floats"}, "has targets='floats'; set it to classes, labels, numbers, tokens"),
    ],
)
def test_mistakes_in_targets_are_named(targets, change, message):
    assert message in mistake_in(replace(made(targets)[0], **change))


def test_a_teacher_is_scored_by_its_accuracy_whatever_the_metrics_are(tmp_path):
    task = {"data": {"name": "digits"}, "model": {"name": "logreg"}, "partition": {"kind": "iid", "clients": 3},
            "teacher": {"model": {"name": "logreg"}, "epochs": 1}}  # fmt: skip
    scores = []
    for metrics in (None, []):
        file = {
            **FILE,
            "rounds": 1,
            "output": str(tmp_path),
            "task": {**task, "metrics": metrics},
            "algorithm": {"name": "kd"},
        }
        (record,) = hedgerow.run(parse_experiment(file), show=False).records
        scores.append({name: value for name, value in record.items() if name.startswith("teacher_")})
    assert scores[0] == scores[1]
    assert scores[0]["teacher_test_accuracy"] > 0.1


def test_models_side_by_side_do_not_begin_in_one_file(tmp_path):
    file = tmp_path / "start.pt"
    torch.save({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, file)
    task = {"data": {"name": "digits"}, "model": {"name": "logreg", "init": str(file)},
            "partition": {"kind": "iid", "clients": 3}}  # fmt: skip
    with pytest.raises(UserError, match=r"would all be the same; set algorithm\.starts to 1"):
        check(parse_experiment({**FILE, "task": task, "algorithm": {"name": "central", "starts": 2}}), None)
