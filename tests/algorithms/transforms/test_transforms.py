"""Transforms of updates: closed forms, identities, message sizes, refusals; loop == vmap; resume == undisturbed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, identical, partition, run_inline, slots_of, small_task

from hedgerow.algorithms.core.parts import ContractError, Part, Wire
from hedgerow.algorithms.core.pytree import count, flatten
from hedgerow.algorithms.transforms.adaptive_clip import AdaptiveClip
from hedgerow.algorithms.transforms.clip import Clip, joint_norm
from hedgerow.algorithms.transforms.gaussian_noise import GaussianNoise
from hedgerow.algorithms.transforms.local_noise import LocalNoise
from hedgerow.algorithms.transforms.quantize import Quantize
from hedgerow.algorithms.transforms.random_sparsify import RandomK
from hedgerow.algorithms.transforms.sparsify import TopK
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.sampling import client_keys
from hedgerow.platform.runtime.middleware_order import compose

DATA = blobs(samples=160)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
D = count(small_task(DATA).init())
LOOP, VMAP = ("loop", 1), ("vmap", 3)
CLIP = {"kind": "clip", "norm": 0.5}
ADAPTIVE = {"kind": "adaptive_clip", "init": 0.3}


def run(name, transforms, mode=LOOP, rounds=3, folder=None, **section):
    kind = algorithm_class(name) if isinstance(name, str) else name
    own = {"lr": 0.2, "steps": 3, "epochs": None, "batch_size": None}
    own = {key: value for key, value in own.items() if key in kind.Hyper.model_fields}
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    slots = {"transforms": transforms} if transforms else {}
    return run_inline(kind, small_task(DATA), DATA, CLIENTS, own | section | slots, folder, **settings)


def keys(number):
    return torch.from_numpy(client_keys((0, 1, 2), np.arange(number)))


def update(scale=1.0):
    generator = torch.Generator().manual_seed(1)
    return {
        "a": scale * torch.randn(3, 4, generator=generator),
        "b": {"c": scale * torch.randn(5, generator=generator)},
    }


def sent(transform, tree, key=None, state=None):
    return transform.client(transform, tree, state or {}, key)


# ---- closed forms ----------------------------------------------------------------------------------------------------


def test_quantisation_has_levels_between_the_extremes_of_a_leaf_and_no_bias():
    transform, leaf = Quantize(bits=2), torch.tensor([0.0, 0.25, 0.5, 2.0, 3.0])
    drawn = torch.func.vmap(lambda key: sent(transform, {"x": leaf}, key)[0]["x"])(keys(40_000))
    assert set(drawn.unique().tolist()) == {0.0, 1.0, 2.0, 3.0}
    # The standard error of each mean is at most 0.0025.
    assert (drawn.mean(0) - leaf).abs().max() < 0.01
    assert torch.equal(drawn[:, [0, 3, 4]], leaf[[0, 3, 4]].expand(40_000, 3))
    nearest, _ = sent(Quantize(bits=2, stochastic=False), {"x": leaf}, keys(1)[0])
    assert nearest["x"].tolist() == [0.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("bits", [1, 3, 8, 12])
def test_quantisation_rounds_up_with_the_probability_of_the_rest(bits):
    leaf = torch.from_numpy(np.random.default_rng(bits).normal(size=12)).float()
    drawn = torch.func.vmap(lambda key: sent(Quantize(bits=bits), {"x": leaf}, key)[0]["x"])(keys(20_000)).numpy()
    x = leaf.double().numpy()
    step = (x.max() - x.min()) / (2**bits - 1)
    levels, places = (drawn - x.min()) / step, (x - x.min()) / step
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
    ups = np.round(levels) - np.floor(places + 1e-9)
    inner = (x > x.min()) & (x < x.max())
    assert set(np.unique(ups[:, inner])) == {0.0, 1.0}
    # The standard error of a share is at most 0.0036.
    assert np.abs(ups.mean(0) - (places - np.floor(places + 1e-9)))[inner].max() < 0.018


def test_quantised_entries_are_at_most_a_level_away():
    tree = update()
    for bits in (1, 4, 8, 16, 24):
        rounded, _ = sent(Quantize(bits=bits), tree, keys(1)[0])
        for leaf, original in zip((rounded["a"], rounded["b"]["c"]), (tree["a"], tree["b"]["c"]), strict=True):
            step = (original.max() - original.min()) / (2**bits - 1)
            assert (leaf - original).abs().max() <= step * (1 + 1e-4) + 1e-6
    constant, _ = sent(Quantize(bits=3), {"x": torch.full((4,), 0.7)}, keys(1)[0])
    assert torch.equal(constant["x"], torch.full((4,), 0.7))
    assert sent(Quantize(bits=32), tree)[0] is tree


def test_random_entries_are_k_and_have_the_update_as_their_mean():
    tree = {"x": torch.arange(1.0, 9.0)}
    drawn = torch.func.vmap(lambda key: sent(RandomK(entries=2), tree, key)[0]["x"])(keys(40_000))
    assert ((drawn != 0).sum(1) == 2).all()
    assert (drawn.mean(0) / tree["x"] - 1).abs().max() < 0.05
    kept, _ = sent(RandomK(entries=2, unbiased=False), tree, keys(1)[0])
    assert torch.equal(kept["x"][kept["x"] != 0], tree["x"][kept["x"] != 0])
    assert torch.equal(sent(RandomK(entries=8), tree, keys(1)[0])[0]["x"], tree["x"])


def test_the_norm_of_an_adaptive_clip_follows_the_share_of_short_updates():
    transform = AdaptiveClip(quantile=0.5, lr=0.2, init=1.0)
    state = transform.init_server({})
    long, memory = sent(transform, update(10), state=state)
    assert float(joint_norm(long)) == pytest.approx(1.0)
    assert float(memory["bit"]) == 0
    short, memory = sent(transform, update(0.01), state=state)
    assert float(memory["bit"]) == 1
    assert identical(flatten(short), flatten(update(0.01)))
    _, after = transform.server({}, {**state, "bit": torch.tensor(0.25)}, {}, 0, 4)
    assert float(after["norm"]) == pytest.approx(math.exp(-0.2 * (0.25 - 0.5)))


def test_without_any_bit_the_norm_of_an_adaptive_clip_stays():
    transform = AdaptiveClip(init=0.7, bit_noise=1.0)
    _, after = transform.server({}, transform.init_server({}), {}, 0, 0)
    assert float(after["norm"]) == pytest.approx(0.7)


def test_weights_that_clients_report_are_refused_with_noise():
    kind = algorithm_class("fedavg")

    class Reporting(kind):
        parts = {"train": {"w": Part("w", "value")}}  # noqa: RUF012

        def round(self, server, cohort):
            exchanges = super().round(server, cohort)
            aggregate = yield replace(next(exchanges), weighted_by="loss")
            try:
                exchanges.send(aggregate)
            except StopIteration as stop:
                return stop.value

    with pytest.raises(ContractError, match="the noise is that of an unweighted mean"):
        list(run(Reporting, [CLIP, {"kind": "gaussian_noise", "multiplier": 1}]))


def test_noise_on_the_sum_is_divided_by_the_expected_number_of_clients():
    mean, zero = {"x": torch.full((100_000,), 2.0)}, {"x": torch.zeros(100_000)}
    noisy, _ = GaussianNoise(multiplier=3).server(zero, {}, zero, 7, 10, 0.5)
    assert float(noisy["x"].std()) == pytest.approx(3 * 0.5 / 10, rel=0.02)
    assert abs(float(noisy["x"].mean())) < 0.003
    scaled, _ = GaussianNoise(multiplier=0, expected=20).server(mean, {}, mean, 7, 10, 0.5)
    assert float(scaled["x"].mean()) == 1.0


def test_noise_of_a_client_has_its_standard_deviation():
    noisy, _ = sent(LocalNoise(std=0.1), {"x": torch.zeros(100_000)}, keys(1)[0])
    assert float(noisy["x"].std()) == pytest.approx(0.1, rel=0.02)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transforms",
    [
        [{"kind": "clip", "norm": 1e9}],
        [{"kind": "adaptive_clip", "init": 1e9}],
        [{"kind": "clip", "norm": 1e9}, {"kind": "gaussian_noise", "multiplier": 0}],
        [{"kind": "clip", "norm": 1e9}, {"kind": "local_noise", "std": 0}],
        [{"kind": "quantize", "bits": 32}],
        [{"kind": "random_k", "entries": D}],
        [{"kind": "top_k", "entries": D}],
    ],
    ids=lambda transforms: transforms[-1]["kind"],
)
def test_at_its_limit_a_transform_changes_nothing(transforms):
    uniform = {"weighting": "uniform"}
    plain, changed = (run("fedavg", those, aggregation=uniform) for those in ([], transforms))
    [list(one) for one in (plain, changed)]
    assert distance(plain.server["w"], changed.server["w"]) < 1e-6


PIPELINES = {
    "adaptive": [ADAPTIVE],
    "noise": [CLIP, {"kind": "gaussian_noise", "multiplier": 0.5}],
    "adaptive noise": [ADAPTIVE, {"kind": "gaussian_noise", "multiplier": 0.5, "expected": 4.0}],
    "local noise": [CLIP, {"kind": "local_noise", "std": 0.05}],
    "random": [{"kind": "random_k", "entries": 5}],
    "quantised": [CLIP, {"kind": "quantize", "bits": 4}],
    "sparse and quantised": [
        {"kind": "quantize", "bits": 8},
        {"kind": "top_k", "entries": 9, "error_feedback": False},
    ],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_loop_equals_vmap(name):
    loop, batched = (run("fedavg", PIPELINES[name], mode) for mode in (LOOP, VMAP))
    [list(one) for one in (loop, batched)]
    # Rounding errors may move an entry to another level.
    assert distance(loop.server["w"], batched.server["w"]) < (0.05 if "quantised" in name else 1e-5)


@pytest.mark.parametrize("name", ["adaptive noise", "quantised"])
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    check_resuming(lambda folder=None: run("fedavg", PIPELINES[name], rounds=4, folder=folder), 2, tmp_path)


def test_an_adaptive_clip_reaches_the_quantile():
    transforms = [{"kind": "adaptive_clip", "quantile": 0.6, "init": 100.0, "lr": 1.0}]
    done = run("fedavg", transforms, rounds=30)
    norms = []
    for _ in done:
        norms.append(float(done.server["transforms"]["0"]["train"]["joint"]["norm"]))
    assert norms[0] == pytest.approx(100 * math.exp(-(1 - 0.6)))
    assert norms[-1] < 5


def test_an_adaptive_clip_counts_each_client_once_whatever_its_samples():
    clients, transform = partition(np.array([10] * 5 + [70]), seed=0), {**ADAPTIVE, "init": 1.0, "lr": 1.0}
    section = {"lr": 0.2, "epochs": 1, "batch_size": 10, "transforms": [transform]}
    done = run_inline(algorithm_class("fedavg"), small_task(DATA), DATA, clients, section, rounds=1)
    list(done)
    # S = exp(-(share - 0.5)). The client with most samples has eleven steps and the longest update.
    share = 0.5 - math.log(float(done.server["transforms"]["0"]["train"]["joint"]["norm"]))
    assert share == pytest.approx(5 / 6, abs=1e-6)


# ---- message sizes ---------------------------------------------------------------------------------------------------


def test_message_sizes_in_bits():
    whole = Wire.of(update())
    assert whole == Wire(17, 32, leaves=2)
    assert Quantize(bits=3).wire(whole).bits == 17 * 3 + 2 * 2 * 32
    assert Quantize(bits=32).wire(whole) == whole
    assert RandomK(entries=5).wire(whole).bits == 5 * 32 + 64
    both = TopK(entries=5, error_feedback=False).wire(Quantize(bits=3).wire(whole))
    assert both.bits == 5 * 3 + 5 * 32 + 2 * 2 * 32
    assert LocalNoise(std=1.0).wire(Clip(norm=1.0).wire(whole)) == whole


def test_an_adaptive_clip_is_charged_one_bit_and_its_norm():
    plain, clipped = (next(iter(run("fedavg", transforms, rounds=1))) for transforms in ([], [ADAPTIVE]))
    clients = plain["participants"]
    assert clipped["bytes_up"] - plain["bytes_up"] == clients
    assert clipped["bytes_down"] - plain["bytes_down"] == 4 * clients


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "transforms", "said"),
    [
        (
            "fedavg",
            [{"kind": "gaussian_noise", "multiplier": 1}],
            "transforms.0: gaussian_noise needs updates of bounded",
        ),
        ("fedavg", [{"kind": "local_noise", "std": 1}], "put a clip before it"),
        (
            "fedavg",
            [{"kind": "quantize"}, CLIP],
            "it would change quantised",
        ),
        ("fedavg", [CLIP, {"kind": "gaussian_noise", "multiplier": 1}, {"kind": "quantize"}], "longer than the clip"),
        ("fedavg", [{"kind": "top_k", "entries": 5}, {"kind": "quantize"}], "also round the zeros"),
        ("fedavg", [{"kind": "quantize"}, {"kind": "top_k", "entries": 5}], "set it to false"),
        ("feddyn", [CLIP, {"kind": "gaussian_noise", "multiplier": 1}], "accumulate in the server state of feddyn"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(name, transforms, said):
    kind = algorithm_class(name)
    inner = kind(kind.Hyper(name=name), small_task(DATA))
    assert said in compose(inner, slots_of({"transforms": transforms})).incompatibility()


def test_noise_needs_equal_weights():
    kind = algorithm_class("fedavg")
    noisy = [CLIP, {"kind": "gaussian_noise", "multiplier": 1}]
    inner = kind(kind.Hyper(name="fedavg"), small_task(DATA))
    slots = slots_of({"transforms": noisy, "aggregation": {"weighting": "samples"}})
    assert "set aggregation.weighting to uniform" in compose(inner, slots).incompatibility()
