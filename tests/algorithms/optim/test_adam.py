"""Adam in local training is torch's Adam, in a loop and batched."""

import numpy as np
import pytest
import torch
from helpers import blobs, distance, partition, run_inline, small_task
from pydantic import ValidationError

from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

DATA = blobs(samples=160)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_adam_is_torchs(mode):
    samples = len(DATA.y_train)
    hyper = {"lr": 0.02, "optimizer": "adam", "weight_decay": 0.01, "batch_size": None, "steps": 7}
    hyper |= {"capacities": [1.0], "masked_loss": False}
    task = small_task(DATA)
    everything = partition(np.array([samples]))
    run = run_inline(
        algorithm_class("heterofl"), task, DATA, everything, hyper, rounds=1, engine=EngineConfig(mode=mode, chunk=1)
    )
    list(run)
    w = {name: p.requires_grad_() for name, p in task.init().items()}
    torchs = torch.optim.Adam(w.values(), lr=0.02, weight_decay=0.01)
    x, y = task.prepare(torch.from_numpy(DATA.x_train)), torch.from_numpy(DATA.y_train)
    for _ in range(7):
        torchs.zero_grad()
        torch.nn.functional.cross_entropy(task.logits(w, x), y).backward()
        torchs.step()
    assert distance(run.server["w"], {name: p.detach() for name, p in w.items()}) < 1e-5


def test_two_kinds_of_momentum_are_refused():
    with pytest.raises(ValidationError, match="`momentum` is for sgd"):
        registries.algorithms.section("heterofl")(optimizer="adam", momentum=0.9)
