"""Tables of other frameworks' numbers: the published cells and settings, and FLUTE's data and loss."""

import numpy as np
import pytest
import torch

from hedgerow.platform.data.dataset import Dataset, mistake_in
from hedgerow.platform.data.sources.vision import MNIST
from hedgerow.platform.runtime.factory import build_partition, check_task
from hedgerow.searchspaces.extra.papers.referee_parts import sigmoid_cross_entropy, standardised_mnist
from hedgerow.searchspaces.extra.table_file import find_rows
from hedgerow.searchspaces.extra.table_search import row_searches

CELLS = {
    "flute-lr-mnist/two-classes": "81%",
    "flower-niid-mnist/dirichlet0.5": "98.89% 99.07% 99.02%",
    "flower-niid-mnist/two-classes": "96.86% 96.92% 96.85%",
    "flower-heterofl-mnist/full": "99.47% 99.49% 99.23% 98.46%",
    "flower-heterofl-mnist/small": "99.47% 99.49% 99.23% 98.46%",
}


def mnist_like(samples: int) -> Dataset:
    """Random images of MNIST's shape."""
    images = np.random.default_rng(0).integers(0, 256, (samples, 1, 28, 28)).astype(np.uint8)
    one, classes, part = np.ones((1, 1, 1), np.float32), np.arange(samples) % 10, samples // 3
    return Dataset(
        "mnist", images[part:], classes[part:], images[:part], classes[:part], 10, one, one, tuple("0123456789")
    )


@pytest.mark.grid(keep=2)
@pytest.mark.parametrize("name", CELLS)
def test_a_row_has_the_published_cells_and_can_be_run(name):
    table, (row,) = find_rows(f"referee/{name}")
    assert " ".join(row.published[None].values()) == CELLS[name]
    (plan,) = row_searches(table, row)
    assert plan.headings == list(row.methods)
    dataset = mnist_like(30000)
    for overrides in plan.search.configurations:
        experiment = plan.search.trial(overrides)
        check_task(experiment, dataset, build_partition(experiment, dataset))


def test_settings_are_those_of_the_sources():
    _, (flute,) = find_rows("referee/flute-lr-mnist/two-classes")
    assert (flute.values["rounds"], flute.values["clients_per_round"]) == (100, 10)
    assert flute.values["task"]["partition"]["clients"] == 1000
    assert flute.methods["FedAvg"] | {"lr": 0.03, "batch_size": 10, "epochs": 1} == flute.methods["FedAvg"]
    _, rows = find_rows("referee/flower-niid-mnist")
    for row in rows:
        assert (row.values["rounds"], row.values["task"]["partition"]["clients"]) == (50, 10)
        for method in row.methods.values():
            assert method | {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 10} == method


def test_pixels_are_standardised_over_all_images(monkeypatch, tmp_path):
    dataset = mnist_like(30)
    images = np.concatenate([dataset.x_train, dataset.x_test])
    monkeypatch.setattr(MNIST, "load", lambda source, root: dataset)
    found = standardised_mnist(tmp_path)
    pixels = (images - found.mean) / found.std
    assert mistake_in(found) is None
    assert np.allclose(pixels.mean(0), 0, atol=1e-4)
    assert np.allclose(pixels.std(0), 1, atol=1e-3)


def test_the_loss_is_the_cross_entropy_of_the_sigmoids():
    outputs, targets = torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([1, 1])
    expected = [np.log(1 + np.exp(0.5 - 1 / (1 + np.exp(-2)))), np.log(1 + np.exp(np.tanh(0.5)))]
    assert sigmoid_cross_entropy(outputs, targets, torch.ones(2)).tolist() == pytest.approx(expected, rel=1e-5)
