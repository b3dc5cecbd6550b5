"""Losses and metrics against PyTorch and scikit-learn, and their exact sums over batches."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.measures import ScoreFunction, Scoring, metric
from hedgerow.algorithms.measures import LOSSES, METRICS, USUAL
from hedgerow.algorithms.measures.all_samples import auroc
from hedgerow.algorithms.measures.language import next_token, perplexity, token_accuracy
from hedgerow.algorithms.measures.multi_label import bce, f1, label_accuracy
from hedgerow.algorithms.measures.regression import mae, mse, rmse
from hedgerow.platform.config.measures_section import losses, metrics

N = 23
G = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(N, generator=G), torch.randn(N, generator=G)
VECTORS = torch.randn(N, 3, generator=G), torch.randn(N, 3, generator=G)
LABELS = torch.randn(N, 4, generator=G), torch.randint(2, (N, 4), generator=G)
TOKENS = torch.randn(N, 5, 7, generator=G), torch.randint(7, (N, 5), generator=G)
TOKENS[1][3:6, 2:] = -100


def flat(outputs, targets):
    return outputs.flatten(0, 1), targets.flatten()


def token_loss(outputs, targets):
    return F.cross_entropy(*flat(outputs, targets), ignore_index=-100).item()


REFERENCES = [
    (mse, NUMBERS, lambda o, t: F.mse_loss(o, t).item()),
    (mse, VECTORS, lambda o, t: F.mse_loss(o, t).item()),
    (rmse, VECTORS, lambda o, t: F.mse_loss(o, t).item() ** 0.5),
    (mae, NUMBERS, lambda o, t: F.l1_loss(o, t).item()),
    (bce, LABELS, lambda o, t: F.binary_cross_entropy_with_logits(o, t.float()).item()),
    (label_accuracy, LABELS, lambda o, t: ((o > 0) == t).float().mean().item()),
    (f1, LABELS, lambda o, t: f1_score(t.numpy(), (o > 0).numpy(), average="micro")),
    (next_token, TOKENS, token_loss),
    (perplexity, TOKENS, lambda o, t: math.exp(token_loss(o, t))),
    (token_accuracy, TOKENS, lambda o, t: (o.argmax(-1) == t)[t != -100].float().mean().item()),
]


def scored(measure, outputs, targets, pieces):
    """The reported value, from batches that are padded with a repeated sample."""
    scoring = Scoring(measure, {"metric": measure})
    parts = []
    for rows in pieces:
        padded = torch.cat([rows, rows[:1], rows[:1]])
        mask = torch.tensor([1.0] * len(rows) + [0.0, 0.0])
        parts.append(scoring.sums(outputs[padded], targets[padded], mask))
    totals = dict(zip(scoring.names, torch.stack(parts).double().unbind(1), strict=True))
    values = scoring.values({name: column.numpy() for name, column in totals.items()})
    assert values["test_metric"] == values["test_loss"]
    assert totals["samples"].sum() == len(targets)
    return values["test_metric"]


@pytest.mark.parametrize(("measure", "pair", "wanted"), REFERENCES, ids=range(len(REFERENCES)))
def test_measures_are_those_of_pytorch_and_scikit_learn_over_any_batches(measure, pair, wanted):
    whole = scored(measure, *pair, [torch.arange(N)])
    unequal = scored(measure, *pair, list(torch.arange(N).split([2, 9, 1, 11])))
    assert whole == pytest.approx(wanted(*pair), rel=1e-5)
    assert unequal == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(("measure", "pair", "wanted"), REFERENCES, ids=range(len(REFERENCES)))
def test_means_and_sums_are_the_same_under_vmap(measure, pair, wanted):
    outputs, targets = (part[: N - N % 2].unflatten(0, (2, -1)) for part in pair)
    mask = (torch.arange(outputs.shape[1]) < 9).float().repeat(2, 1)
    batched = torch.func.vmap(measure.mean)(outputs, targets, mask)
    looped = torch.stack([measure.mean(o[:9], t[:9], None) for o, t in zip(outputs, targets, strict=True)])
    assert torch.allclose(batched, looped, atol=1e-6)


def test_one_output_per_number_is_not_broadcast_against_the_targets():
    outputs, targets = NUMBERS
    assert mse.mean(outputs[:, None], targets, None).item() == pytest.approx(F.mse_loss(outputs, targets).item())
    custom = ScoreFunction(lambda outputs, targets, mask: (outputs - targets).abs())
    assert custom.mean(outputs[:, None], targets, None).item() == pytest.approx(F.l1_loss(outputs, targets).item())


def test_a_batch_without_real_samples_has_loss_0_and_a_finite_gradient():
    for measure, (outputs, targets), _ in REFERENCES[:5:2] + REFERENCES[7:8]:
        w = outputs.clone().requires_grad_()
        value = measure.mean(w, targets, torch.zeros(N))
        value.backward()
        assert value.item() == 0.0
        assert torch.equal(w.grad, torch.zeros_like(w))


def test_clients_without_anything_to_count_are_left_out():
    scoring = Scoring(bce, {"f1": f1})
    sums = np.array([2.0, 0.0, 1.0]), np.array([4.0, 0.0, 1.0])
    assert scoring.per_client({"f1": sums[0], "f1_count": sums[1]}, "f1").tolist() == [0.5, 1.0]


def test_a_metric_of_all_samples_is_a_mean_over_the_clients_that_have_it():
    scoring, results = Scoring(metrics={"auroc": auroc}), {"samples": np.array([4, 2, 0, 2])}
    outputs = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [np.nan, 1]], np.float32)
    # One pair of three is tied, the second client has one class, and the last one's model diverged.
    targets = np.array([0, 1, 1, 1, 0, 0, 0, 1])
    values = scoring.per_client(results, "auroc", (outputs, targets))
    assert values.tolist() == pytest.approx([5 / 6, np.nan], nan_ok=True)


def test_values_that_overflow_are_infinite_and_those_of_nothing_are_nan():
    huge = {"perplexity": np.array([5000.0]), "perplexity_count": np.array([1.0])}
    scoring = Scoring(next_token, {"perplexity": perplexity})
    record = scoring.values({**huge, "loss": np.array([0.0]), "loss_count": np.array([0.0])})
    assert record["test_perplexity"] == math.inf
    assert math.isnan(record["test_loss"])


def test_every_loss_has_usual_metrics_of_its_targets_and_every_metric_a_direction():
    assert USUAL.keys() == LOSSES.keys()
    assert all(metrics.resolve(name).mode in ("min", "max") for name in METRICS)
    for loss, names in USUAL.items():
        for name in names:
            assert set(losses.resolve(loss).targets) <= set(metrics.resolve(name).targets)


def test_a_decorated_function_declares_its_direction_and_its_last_step():
    @metric("max", "numbers", finish=lambda mean: 1 - mean)
    def within(outputs, targets, mask):
        return ((outputs - targets).abs() > 1).float()

    assert (within.mode, within.targets) == ("max", ("numbers",))
    wanted = ((NUMBERS[0] - NUMBERS[1]).abs() <= 1).float().mean().item()
    assert scored(within, *NUMBERS, [torch.arange(N)]) == pytest.approx(wanted)
