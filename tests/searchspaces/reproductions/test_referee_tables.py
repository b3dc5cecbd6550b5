"""Tables of other frameworks' numbers: the published cells and settings, and FLUTE's data and loss."""

import numpy as np
import pytest
import torch

from hedgerow.platform.data.dataset import Dataset, mistake_in
from hedgerow.platform.data.sources.vision import MNIST
from hedgerow.searchspaces.reproductions.papers.referee_parts import sigmoid_cross_entropy, standardised_mnist
from hedgerow.searchspaces.reproductions.published import find_rows
from hedgerow.searchspaces.reproductions.row_search import plan_row

CELLS = {
    "flute-lr-mnist/two-classes": "81%",
    "flower-niid-mnist/dirichlet0.5": "98.89% 99.07% 99.02%",
    "flower-niid-mnist/two-classes": "96.86% 96.92% 96.85%",
    "flower-heterofl-mnist/full": "99.47% 99.49% 99.23% 98.46%",
    "flower-heterofl-mnist/small": "99.47% 99.49% 99.23% 98.46%",
}


@pytest.mark.parametrize("name", CELLS)
def test_a_row_has_the_published_cells_and_is_a_valid_search(name):
    table, (row,) = find_rows(f"referee/{name}")
    assert " ".join(row.published[None].values()) == CELLS[name]
    (plan,) = plan_row(table, row)
    assert plan.headings == list(row.methods)


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
    images = np.random.default_rng(0).integers(0, 256, (30, 1, 28, 28)).astype(np.uint8)
    images[:, 0, 0, 0] = 7
    scalar = np.ones((1, 1, 1), np.float32)
    classes = np.arange(30) % 10
    dataset = Dataset(
        "mnist", images[:20], classes[:20], images[20:], classes[20:], 10, scalar, scalar, tuple("0123456789")
    )
    monkeypatch.setattr(MNIST, "load", lambda source, root: dataset)
    found = standardised_mnist(tmp_path)
    pixels = (images - found.mean) / found.std
    assert mistake_in(found) is None
    assert np.allclose(pixels.mean(0), 0, atol=1e-4)
    assert np.allclose(pixels.std(0)[0].ravel()[1:], 1, atol=1e-3)
    assert np.all(pixels[:, 0, 0, 0] == 0)


def test_the_loss_is_the_cross_entropy_of_the_sigmoids():
    outputs, targets = torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([1, 1])
    expected = [np.log(1 + np.exp(0.5 - 1 / (1 + np.exp(-2)))), np.log(1 + np.exp(np.tanh(0.5)))]
    assert sigmoid_cross_entropy(outputs, targets, torch.ones(2)).tolist() == pytest.approx(expected, rel=1e-5)
