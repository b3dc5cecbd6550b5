"""Augmentation: what each part does to an image, its randomness, and when there is none."""

import numpy as np
import pytest
import torch
from helpers import dataset, distance, identical, model, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.keyed_random import normal, randint, uniform
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.data import auto_augment
from hedgerow.platform.data.augmentation import Augmentation

KEY = torch.tensor(77)
ROWS = torch.arange(500)
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 60)
X = (60 * Y[:, None, None, None] + RNG.integers(0, 60, (60, 3, 8, 8))).astype(np.uint8)


def draw(x, key=KEY, **parts):
    rows = torch.arange(len(x))
    return Augmentation(**parts)(x, key, rows)


def images(n=500, channels=1, side=5):
    return torch.arange(1, 1 + n * channels * side**2).view(n, channels, side, side).float()


# ---- chance ---------------------------------------------------------------------------------------------------------


def test_draws_are_uniform_normal_and_independent():
    rows = torch.arange(20000)
    u, v, other = uniform(KEY, rows, 0), uniform(KEY, rows, 1), uniform(KEY + 1, rows, 0)
    for one in (u, v, other):
        counts = torch.histc(one, 10, 0, 1) - 2000
        # Chi-squared of 9 degrees of freedom: above 35 once in ten thousand times.
        assert float(counts.square().sum() / 2000) < 35
    assert abs(float(torch.corrcoef(torch.stack([u, v]))[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([u, other]))[0, 1])) < 0.03
    assert set(randint(3, KEY, rows, 2).tolist()) == {0, 1, 2}
    z = normal(KEY, torch.arange(2000), torch.Size((2000, 10)))
    assert abs(float(z.mean())) < 0.03
    assert float(z.std()) == pytest.approx(1, abs=0.03)


def test_a_samples_draw_depends_on_key_and_row_alone():
    parts = Augmentation(crop=2, flip=True, auto=True, cutout=2)
    x = torch.from_numpy(X)
    rows = torch.tensor([3, 50, 7, 20])
    together = parts(x[rows], KEY, rows)
    for i, row in enumerate(rows):
        assert torch.equal(parts(x[row][None], KEY, row[None])[0], together[i])
    assert not torch.equal(parts(x[rows], KEY + 1, rows), together)
    # Under vmap too, where keys and rows differ from client to client.
    keys, two = torch.tensor([77, 5]), torch.stack([rows, rows + 1])
    batched = torch.func.vmap(lambda k, r: parts(x[r], k, r), randomness="error")(keys, two)
    assert torch.equal(batched[0], together)
    assert torch.equal(batched[1], parts(x[two[1]], keys[1], two[1]))


# ---- crop, flip, cutout ---------------------------------------------------------------------------------------------


def test_crops_are_all_the_windows_of_the_framed_image():
    x = images()
    framed = nn.functional.pad(x, (1,) * 4)
    found = draw(x, crop=1)
    places = set()
    for i in range(len(x)):
        fits = [(a, b) for a in range(3) for b in range(3) if torch.equal(framed[i, :, a : a + 5, b : b + 5], found[i])]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) == 9


def test_half_are_mirrored():
    x = images()
    found = draw(x, flip=True)
    mirrored = (found == x.flip(-1)).flatten(1).all(1)
    assert ((found == x).flatten(1).all(1) ^ mirrored).all()
    assert 0.4 < float(mirrored.float().mean()) < 0.6


def test_cutout_blackens_one_square_cut_off_at_the_border():
    x = images(side=8)
    black = draw(x, cutout=4) == 0
    centres = set()
    for hole in black[:, 0]:
        rows, columns = hole.any(1).nonzero()[:, 0], hole.any(0).nonzero()[:, 0]
        assert torch.equal(hole.nonzero(), torch.cartesian_prod(rows, columns))
        for found in (rows, columns):
            assert 2 <= len(found) <= 4
            assert len(found) == 4 or found[0] == 0 or found[-1] == 7
        centres.add((int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])))
    assert len(centres) == 64
    assert torch.equal(draw(x, cutout=0), x)


# ---- AutoAugment ----------------------------------------------------------------------------------------------------


def test_the_policy_is_the_published_one():
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    theirs = AutoAugment(AutoAugmentPolicy.CIFAR10)
    assert theirs.policies == [
        tuple(
            (name, chance, None if theirs_level is None else level) for (name, chance, level), (*_, theirs_level) in z
        )
        for z in (
            zip(ours, known, strict=True) for ours, known in zip(auto_augment.POLICY, theirs.policies, strict=True)
        )
    ]
    space = theirs._augmentation_space(10, (32, 32))
    for operation in auto_augment.OPERATIONS:
        sizes, signed = space[operation]
        assert signed == (operation in auto_augment.SIGNED)
        for level, size in enumerate(sizes.tolist() if sizes.ndim else []):
            # What is moved is moved by whole pixels.
            size = int(size) if "Translate" in operation else size
            assert auto_augment.magnitude(operation, level, 32, 32) == pytest.approx(size, abs=1e-4)


@pytest.mark.parametrize("operation", auto_augment.OPERATIONS)
def test_each_operation_is_torchvisions(operation):
    """To one step of 255, by which roundings differ."""
    from torchvision.transforms import InterpolationMode, autoaugment

    x = torch.from_numpy(RNG.integers(0, 256, (4, 3, 16, 16)).astype(np.uint8))
    x[1] = x[1] // 3 + 40
    kinds = torch.full((4,), auto_augment.OPERATIONS.index(operation))
    for level in (2, 9):
        size = auto_augment.magnitude(operation, level, 16, 16)
        for sign in (1, -1) if operation in auto_augment.SIGNED else (1,):
            theirs = autoaugment._apply_op(x, operation, sign * size, InterpolationMode.NEAREST, None)
            ours = auto_augment.apply(x.float(), kinds, torch.full((4,), sign * size))
            assert (ours - theirs.float()).abs().max() <= 1
    assert torch.equal(auto_augment.apply(x.float(), torch.full((4,), -1), torch.ones(4)), x.float())


# ---- in a run -------------------------------------------------------------------------------------------------------


DATA = dataset(X, Y, test=12)
CLIENTS = partition(np.array([20, 3, 25]))
ALL = Augmentation(crop=1, flip=True, auto=True, cutout=2)


def run(augment, mode=("loop", 1), seed=0, lr=0.1):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    task = Task(module, torch.tensor(100.0), torch.tensor(100.0), sample_shape=(3, 8, 8), augment=augment)
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    hyper = {"lr": lr, "batch_size": 8, "epochs": 2}
    made = run_inline(FedAvg, task, DATA, CLIENTS, hyper, rounds=2, engine=engine, seed=seed)
    return made, list(made)


def test_loop_equals_vmap_and_a_run_repeats_itself():
    (loop, _), (batched, _), (again, _) = run(ALL), run(ALL, ("vmap", 2)), run(ALL)
    assert distance(model(loop), model(batched)) < 1e-5
    assert identical(model(loop), model(again))
    for other in (run(None), run(ALL, seed=1)):
        assert distance(model(loop), model(other[0])) > 1e-3
    assert identical(model(run(Augmentation())[0]), model(run(None)[0]))


def test_evaluation_sees_samples_as_they_are():
    """An unchanged model is scored the same with and without augmentation, on test and on clients' samples."""
    scores = [
        {key: value for key, value in run(augment, lr=1e-12)[1][-1].items() if key.startswith(("test_", "client_"))}
        for augment in (ALL, None)
    ]
    assert len(scores[0]) == 5
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
