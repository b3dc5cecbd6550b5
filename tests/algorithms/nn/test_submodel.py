"""Sub-models: slices are what masks say, of the published sizes (fedsep.md, 2.5.1 and C17)."""

import pytest
import torch
from torch import nn

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.nn.submodel import OUTPUTS, Layout, NoSubModelsError
from hedgerow.platform.models.static_resnet import StaticResNetModule


def chain():
    layers = [nn.Conv2d(3, 8, 3, padding=1), StaticBatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 4)]
    return Task(nn.Sequential(*layers), sample_shape=(3, 8, 8))


def residual(channels=(4, 6), blocks=(2, 1)):
    return Task(StaticResNetModule(3, 4, list(channels), list(blocks)), sample_shape=(3, 8, 8))


def drawn(layout, seed):
    """Some channels of every space, one at least; and which are on."""
    generator = torch.Generator().manual_seed(seed)
    kept = {s: torch.randperm(n, generator=generator)[: 1 + n // 2].sort().values for s, n in layout.thinned.items()}
    return kept, {s: torch.zeros(layout.sizes[s]).index_fill(0, index, 1.0) for s, index in kept.items()}


def random_parameters(task):
    """Also for norms, whose own are ones and zeros."""
    generator = torch.Generator().manual_seed(3)
    return tree_map(lambda p: torch.randn(p.shape, generator=generator), task.init())


@pytest.mark.parametrize("make", [chain, residual])
def test_a_sub_model_is_the_model_with_its_other_channels_masked(make):
    task = make()
    layout, w = Layout.of(task), random_parameters(task)
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    kept, on = drawn(layout, 1)
    part = layout.part(w, kept)
    masked = tree_map(torch.mul, w, layout.mask(on, inputs=False))
    assert torch.allclose(task.logits(part, x), task.logits(masked, x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(task.logits(part, x), task.logits(w, x), rtol=0.1)
    whole = layout.whole(part, kept)
    assert all(torch.equal(whole[name], w[name] * mask) for name, mask in layout.mask(on).items())
    counts = {space: len(index) for space, index in kept.items()}
    assert layout.counted(part) == counts
    assert layout.numbers(counts) == sum(p.numel() for p in part.values())


@pytest.mark.parametrize("make", [chain, residual])
def test_channels_that_are_masked_are_zero_behind_a_norm(make):
    """C17."""
    task = make()
    layout, w = Layout.of(task), random_parameters(task)
    _, on = drawn(layout, 1)
    masked = tree_map(torch.mul, w, layout.mask(on, inputs=False))
    seen = {}
    norms = {name: layer for name, layer in task.module.named_modules() if isinstance(layer, StaticBatchNorm2d)}
    for name, layer in norms.items():
        layer.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output}))
    task.logits(masked, torch.randn(5, 3, 8, 8))
    assert seen.keys() == norms.keys()
    for name, output in seen.items():
        off = on[layout.axes[f"{name}.weight"][0]] == 0
        assert (output[:, off] == 0).all()
        assert (output[:, ~off] != 0).any()
        assert off.any()


def test_every_client_of_a_chunk_may_have_channels_of_its_own():
    task = chain()
    layout, w = Layout.of(task), random_parameters(task)
    each = [drawn(layout, seed)[0] for seed in range(3)]
    stacked = {space: torch.stack([kept[space] for kept in each]) for space in each[0]}
    together = torch.func.vmap(lambda kept: layout.whole(layout.part(w, kept), kept))(stacked)
    for i, kept in enumerate(each):
        alone = layout.whole(layout.part(w, kept), kept)
        assert all(torch.equal(together[name][i], alone[name]) for name in alone)


# Capacity, kernels per stage, parameters of convolutions and head, multiply-adds of all (fedsep.md, 2.5.1).
RESNET18 = [
    (1, (64, 128, 256, 512), 11_164_362, 1.0),
    (0.5, (32, 64, 128, 256), 2_792_810, 0.2508),
    (0.25, (16, 32, 64, 128), 699_066, 0.0631),
    (0.125, (8, 16, 32, 64), 175_202, 0.0160),
    (0.0625, (4, 8, 16, 32), 44_022, 0.0041),
]


@pytest.fixture(scope="module")
def resnet18():
    module = StaticResNetModule(3, 10, [64, 128, 256, 512], [2, 2, 2, 2])
    return Layout.of(Task(module, sample_shape=(3, 32, 32)))


@pytest.mark.parametrize(("capacity", "kernels", "parameters", "share"), RESNET18)
def test_resnet18_has_the_published_sub_models(resnet18, capacity, kernels, parameters, share):
    counts = resnet18.counts(capacity)
    assert tuple(counts[f"stage{stage}"] for stage in range(4)) == kernels
    norms = [name for name, shape in resnet18.shapes.items() if len(shape) == 1 and name != "head.bias"]
    of_norms = sum(counts[resnet18.axes[name][0]] for name in norms)
    assert resnet18.numbers(counts) - of_norms == parameters
    assert round(resnet18.macs({}) / 1e6, 1) == 555.4
    assert resnet18.macs(counts) / resnet18.macs({}) == pytest.approx(share, abs=5e-5)


def test_multiply_adds_by_hand():
    layout = Layout.of(chain())
    # 8x8 pixels behind the first convolution, 2x2 behind the second, which reads 4x4.
    assert layout.macs({}) == 64 * 27 * 8 + 4 * 72 * 6 + 24 * 5 + 5 * 4
    assert layout.macs({"0": 2, "4": 3}) == 64 * 27 * 2 + 4 * 18 * 3 + 12 * 5 + 5 * 4
    soft = torch.tensor(2.5, requires_grad=True)
    layout.macs({"0": soft}).backward()
    assert float(soft.grad) == 64 * 27 + 4 * 9 * 6


def test_scalers_divide_what_layers_put_out():
    task = chain()
    layout, w = Layout.of(task), random_parameters(task)
    half = layout.scale(w, 0.5)
    changed = {name for name in w if not torch.equal(w[name], half[name])}
    assert changed == {f"{layer}.{kind}" for layer in "047" for kind in ("weight", "bias")}
    assert all(torch.equal(half[name], 0.5 * w[name]) for name in changed)


def test_spaces_of_outputs_are_never_thinned():
    layout = Layout.of(residual())
    assert layout.axes["head.weight"] == (OUTPUTS, "stage1")
    assert OUTPUTS not in layout.thinned
    assert layout.counts(0.01) == dict.fromkeys(layout.thinned, 1)


def test_what_has_no_sub_models_says_so():
    grouped = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 2))
    with pytest.raises(NoSubModelsError, match="GroupNorm at 1 mixes channels"):
        Layout.of(Task(grouped, sample_shape=(3, 8, 8)))
    lying = chain().module
    lying.axes = {"0.weight": ("a", "")}
    with pytest.raises(NoSubModelsError, match="must name its parameters"):
        Layout.of(Task(lying, sample_shape=(3, 8, 8)))
