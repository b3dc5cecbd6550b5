"""Sketches: made again they are the same; and FedSep whose clients have sketches of their own (fedsep.md, Eq. 4)."""

import hashlib

import numpy as np
import pytest
import torch
from helpers import blobs, distance, partition, run_inline, small_task
from preloaded import run_python

from hedgerow.algorithms.compressed.fedsep_lasso import FedSepLasso
from hedgerow.algorithms.core.pytree import flat
from hedgerow.algorithms.transforms.random_projection import GaussianRows, HashedRows
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.factory import build_data, check_task


def test_two_processes_make_the_same_sketch():
    """C18: from the seed alone, the shared one and a client's own."""
    program = (
        "import hashlib, torch; from hedgerow.algorithms.transforms.random_projection import GaussianRows, HashedRows\n"
        "for s in (GaussianRows(300, 70, 3), HashedRows(300, 70, torch.tensor(3))):\n"
        "    print(hashlib.sha256(torch.cat([s._block(i) for i in s._blocks]).numpy().tobytes()).hexdigest())"
    )
    here = [
        hashlib.sha256(torch.cat([s._block(i) for i in s._blocks]).numpy().tobytes()).hexdigest()
        for s in (GaussianRows(300, 70, 3), HashedRows(300, 70, torch.tensor(3)))
    ]
    there = run_python("-c", program).stdout.split()
    assert here == there
    assert len(set(here)) == 2


@pytest.mark.parametrize("stored", [4 * 600 * 50, 4 * 600 * 50 - 1])
def test_no_more_than_the_limit_is_kept(stored):
    """A sketch that is larger is made again by blocks of rows: what it holds stays below the limit."""
    sketch = GaussianRows(600, 50, 3, stored)
    sketch.transposed(sketch.apply(torch.ones(50)))
    held = [value for value in vars(sketch).values() if isinstance(value, list | torch.Tensor)]
    size = sum(block.numel() * block.element_size() for blocks in held for block in blocks)
    assert size == (stored if sketch.stored else 0)
    assert sketch.stored == (stored == 4 * 600 * 50)
    assert [len(sketch._block(i)) for i in sketch._blocks] == [256, 256, 88]


def test_hashed_entries_are_gaussian_and_differ_by_seed():
    """Moments, and no correlation between rows, neighbours or seeds, within four standard errors."""
    seeds = torch.tensor([5, 6])
    batched = torch.func.vmap(lambda seed: HashedRows(300, 400, seed)._make(1))(seeds)
    some = [HashedRows(300, 400, seed)._make(1) for seed in seeds]
    assert torch.equal(batched, torch.stack(some))
    a, b = (rows.double() * 20 for rows in some)
    n = a.numel()
    assert a.shape == (44, 400)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert float((a**power).mean()) == pytest.approx(mean, abs=4 * (variance / n) ** 0.5)
    for other in (b, a.roll(1, 0), a.roll(1, 1)):
        assert abs(float((a * other).mean())) < 4 / n**0.5


def test_sketches_of_their_own():
    """S^m is a number that is not transmitted; each client's model is scored on what it holds out."""
    data, sizes = blobs(samples=160), partition(np.array([30, 25, 25, 20, 20]), seed=0)
    section = {"sketch_size": 20, "sketch": "own", "steps": 3, "batch_size": 8, "lr": 0.2}
    section["aggregation"] = {"server_optimizer": {"lr": 3.0}}
    loop, vmap = (
        run_inline(FedSepLasso, small_task(data), data, sizes, section, rounds=20, engine=EngineConfig(**engine))
        for engine in ({"mode": "loop", "chunk": 1}, {"mode": "vmap", "chunk": 3})
    )
    records = [list(loop), list(vmap)]
    assert distance(loop.server["x"], vmap.server["x"]) < 1e-4
    assert records[1][0]["scalars_up"] == records[1][0]["scalars_down"] == 5 * 20
    assert records[1][-1]["client_loss"] < 0.8 * records[1][0]["client_loss"]
    assert records[1][-1]["test_loss"] == pytest.approx(records[0][-1]["test_loss"], abs=1e-4)
    # What is scored is what client m decodes with S^m; here by hand.
    algorithm, omega = vmap.servers[0].algorithm, vmap.server["x"]["omega"]
    seeds = algorithm.inner.own(np.arange(5))["seed"]
    assert len(set(seeds.tolist())) == 5
    assert torch.equal(algorithm.inner.own(np.array([3]))["seed"], seeds[3:4])
    thetas = []
    for seed in seeds:
        sketch = HashedRows(20, algorithm.inner.sketch.d, seed)
        matrix = sketch._make(0)
        theta = torch.zeros(sketch.d)
        for _ in range(10):
            theta = theta + matrix.T @ (omega - matrix @ theta) / algorithm.inner.sketch.squared_norm
        model, _ = algorithm.inner.decode(algorithm.hyper.algorithm, {"omega": omega, "seed": seed}, None)
        assert torch.allclose(flat(model), flat(algorithm.task.init()) + theta, atol=1e-5)
        thetas.append(theta)
    assert (thetas[0] - thetas[1]).abs().max() > 1e-3
    saved = algorithm.evaluate_params(vmap.server)
    assert torch.allclose(flat(saved), flat(algorithm.task.init()) + thetas[0], atol=1e-5)


def test_own_models_have_no_common_statistics():
    wanted = {
        **{"name": "static", "rounds": 1, "clients_per_round": "all"},
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 4, "client_test_fraction": 0.2},
            "model": {"name": "resnet_static", "channels": [2, 2], "blocks": [1, 1]},
        },
        "algorithm": {"name": "fedsep", "sketch_size": 10, "sketch": "own"},
    }
    parsed = parse_experiment(wanted)
    with pytest.raises(UserError, match=r"task\.model: resnet_static normalises by statistics of all clients' samples"):
        check_task(parsed, *build_data(parsed, None))
