"""DiSK's models have the printed sizes (its specification's check 10), and methods match what they show."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import identical, run_inline
from image_students import EVERYBODY, IMAGES, parse, task
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.distillation.fitnet import regressor
from hedgerow.algorithms.distillation.semckd import Calibration
from hedgerow.algorithms.distillation.simkd import SimKD
from hedgerow.algorithms.nn.features import extract_features, shapes
from hedgerow.algorithms.objectives.guide import excuses
from hedgerow.algorithms.optim.batched_functions import batched_attention
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value
from hedgerow.platform.config import registries
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.models.build import build_model
from hedgerow.searchspaces.extra.table_file import family_tables

TABLES = family_tables("disk")
NAMED = {row.title.rpartition(" / ")[2]: row.values["task"]["model"] for row in TABLES["6.2"].rows}
LARGE = {
    name: section
    for row in TABLES["A.13"].rows
    for name, section in zip(
        row.title.rpartition(" / ")[2].split(" to "),
        (row.values["task"]["teacher"]["model"], row.values["task"]["model"]),
        strict=True,
    )
}

SIZES = {
    # CIFAR-100: parameters, millions of multiply-adds; Tiny-ImageNet: the same
    "ResNet34": (21_328_292, 1159.45, 21_379_592, 4637.69),
    "ResNet18": (11_220_132, 555.47, 11_271_432, 2221.77),
    "ResNet10": (4_949_412, 253.48, 5_000_712, 1013.81),
    "ResNet10-l": (1_252_100, 63.82, 1_277_800, 255.25),
    "ResNet10-m": (320_436, 16.18, 333_336, 64.71),
    "ResNet10-s": (83_852, 4.16, 90_352, 16.63),
    "ResNet10-xs": (27_884, 2.86, 31_184, 11.44),
    "ResNet10-xxs": (13_020, 2.02, 14_720, 8.08),
    "ResNet8x4": (1_233_540, 177.10),
    "ResNet32x4": (7_433_860, 1083.0),
    "WRN-16-2": (703_732, 101.12),
    "WRN-40-2": (2_255_604, 327.0),
    "WRN-40-1": (569_972, 83.29),
    "ShuffleNetV2": (1_355_528, 44.50),
    "MobileNetV2x2": (2_351_972, 22.12),
}


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of multiply-adds (MACs) of convolutions and linear layers, for one sample."""
    counts = []

    def count(layer: nn.Module, _: object, out: torch.Tensor) -> None:
        counts.append(out[0].numel() * layer.weight[0].numel())

    handles = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        net(torch.zeros(2, *shape))
    for handle in handles:
        handle.remove()
    return sum(counts)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    for number, (classes, side) in enumerate(((100, 32), (200, 64))[: len(SIZES[name]) // 2]):
        wanted, millions = SIZES[name][2 * number : 2 * number + 2]
        net = build_model(parse(NAMED[name]), (3, side, side), classes)
        assert sum(p.numel() for p in net.parameters()) == wanted
        assert multiply_adds(net, (3, side, side)) / 1e6 == pytest.approx(millions, rel=2e-3)


def test_every_model_of_the_tables_is_measured_here():
    assert set(SIZES) == set(NAMED)
    counts = {"6.1": 2, "6.2": 23, "6.3": 24, "6.4": 8, "A.13": 2, "A.14": 2, "small": 2}
    assert counts == {name: len(table.rows) for name, table in TABLES.items() if name in counts}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ResNet18", 11_689_512),
        ("ResNet50", 25_557_032),
        ("ViT-Tiny", 5_717_416),
        ("ViT-Large", 304_326_632),
    ],
)
def test_models_of_imagenet(name, wanted):
    """torchvision's and timm's counts."""
    with torch.device("meta"):
        net = build_model(parse(LARGE[name]), (3, 224, 224), 1000)
    assert sum(p.numel() for p in net.parameters()) == wanted


@pytest.mark.parametrize("block", ["BasicBlock", "Bottleneck"])
def test_resnets_of_large_images_are_torchvisions(block):
    """With its parameters they have its logits, by the statistics of the mini-batch."""
    # It imports torch's compiler, for which most test processes have no use.
    from torchvision.models import resnet

    theirs = resnet.ResNet(getattr(resnet, block), [1, 1, 1, 1], num_classes=7)
    config = {"name": "resnet", "channels": [64, 128, 256, 512], "large_images": True}
    mine = build_model(parse({**config, "bottleneck": block == "Bottleneck"}), (3, 64, 64), 7)
    names = {"conv1": "stages.0.0", "bn1": "stages.0.1", "fc": "head"}
    names |= {f"layer{stage}.0": f"stages.{stage - 1}.{4 if stage == 1 else 0}" for stage in range(1, 5)}
    parts = {"downsample": "shortcut", "bn1": "n1", "bn2": "n2", "bn3": "n3"}
    w = {}
    for name, p in theirs.named_parameters():
        before = next(old for old in names if name.startswith(old + "."))
        inner = ".".join(parts.get(part, part) for part in name[len(before) + 1 :].split("."))
        w[f"{names[before]}.{inner}"] = p
    assert set(w) == {name for name, _ in mine.named_parameters()}
    x = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.functional_call(mine, w, (x,)), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("error:There is a performance drop")  # vmap warns when it falls back to a loop
def test_a_transformer_is_a_model_like_others():
    config = parse({"name": "vit", "patch": 4, "layers": 1, "heads": 2, "width": 4})
    net = build_model(config, (1, 8, 8), 3)
    assert net.no_vmap is None
    # Patches to tokens, the class token, positions; norms, attention, hidden layer; the last norm, the head.
    tokens, layer = 16 * 4 + 4 + 4 + 5 * 4, 2 * 8 + (12 * 4 + 12) + (4 * 4 + 4) + (16 * 4 + 16) + (4 * 16 + 4)
    assert sum(p.numel() for p in net.parameters()) == tokens + layer + 8 + 4 * 3 + 3
    task = Task(net, torch.zeros(1), torch.ones(1), sample_shape=(1, 8, 8))
    seen = shapes(task)
    assert seen.maps == []
    torch.testing.assert_close(seen.logits, net.head(seen.features))
    batch = Batch(torch.randn(5, 1, 8, 8), torch.arange(5) % 3)
    w = {name: p.requires_grad_() for name, p in task.init().items()}
    found = torch.autograd.grad(task.loss(w, batch), list(w.values()))
    wanted = torch.autograd.grad(nn.functional.cross_entropy(net(batch.x), batch.y), list(net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)

    def slopes(w, x):
        with direct_gradients():
            return gradient_and_value(lambda w: task.loss(w, replace(batch, x=x)))(w)[0]

    clients = {name: torch.stack([p.detach()] * 2) for name, p in w.items()}
    with batched_attention():
        batched = torch.func.vmap(slopes)(clients, torch.stack([batch.x.flip(0), batch.x]))
    for name, other in zip(w, wanted, strict=True):
        torch.testing.assert_close(batched[name][1], other)


def test_the_printed_numbers_of_the_appendix():
    resnet, vit = (line.published[None] for line in TABLES["A.13"].rows)
    assert resnet == {"CE": "69.73%", "KD": "71.29%", "DiSK": "72.35%"}
    assert vit == {"CE": "75.45%", "DiSK": "77.86%"}
    assert [(line.name, line.published[None]["SimKD+DiSK"]) for line in TABLES["A.14"].rows] == [
        ("cifar100-wrn-40-2-resnet8x4", "77.13%"),
        ("cifar100-wrn-40-2-wrn-40-1", "76.21%"),
    ]
    # The budget is the error of the student by cross-entropy alone.
    deltas = [line.methods["DiSK"]["delta"] for name in ("A.13", "A.14") for line in TABLES[name].rows]
    assert deltas == pytest.approx([0.3027, 0.2455, 0.2611, 0.2719])
    assert TABLES["A.14"].rows[0].methods["SimKD+DiSK"]["delta"] == deltas[2]


@pytest.mark.parametrize("name", ["ResNet10-xxs", "WRN-16-2", "ShuffleNetV2", "MobileNetV2x2"])
def test_what_a_model_shows_is_what_it_says(name):
    net = build_model(parse(NAMED[name]), (3, 32, 32), 10)
    task = Task(net, torch.zeros(3, 1, 1), torch.ones(3, 1, 1), sample_shape=(3, 32, 32))
    seen = shapes(task)
    assert len(seen.maps) >= 3
    torch.testing.assert_close(seen.features, seen.maps[-1].mean((2, 3)))
    torch.testing.assert_close(seen.logits, net.head(seen.features))
    assert all(a.shape[-1] >= b.shape[-1] for a, b in pairwise(seen.maps))


# ---- matching --------------------------------------------------------------------------------------------------------


def run(name, **hyper):
    done = run_inline(
        algorithm_class(name), task(), IMAGES, EVERYBODY, {"lr": 0.05, "batch_size": 12, **hyper}, rounds=2
    )
    list(done)
    return done


@pytest.mark.parametrize(
    ("student", "teacher"), [((2, 8), (3, 4)), ((2, 4), (3, 8)), ((2, 8), (3, 7)), ((2, 4), (3, 7))]
)
def test_a_regressor_has_the_teachers_shape(student, teacher):
    maps = [torch.randn(5, channels, side, side) for channels, side in (student, teacher)]
    assert regressor(*maps)(maps[0]).shape == maps[1].shape


@pytest.mark.parametrize("name", ["fitnet", "semckd"])
def test_methods_match_and_leave_the_teacher_alone(name):
    done = run(name)
    learner, server = done.servers[0].algorithm.inner, done.server
    assert all(torch.isfinite(p).all() for branch in ("w", "bridge") for p in server[branch].values())
    fresh = learner.extra_modules(done.servers[0]._cohort(1, np.zeros(1, int)))["bridge"]
    assert not identical(fresh, server["bridge"])
    again = run(name)
    assert identical(server["w"], again.server["w"])
    assert identical(server["teacher"], again.server["teacher"])


@pytest.mark.parametrize("name", ["fitnet", "semckd"])
def test_nothing_matched_is_distillation(name):
    key = {"fitnet": "hint_weight", "semckd": "match_weight"}[name]
    free, kd = run(name, **{key: 0.0}), run("kd", alpha=0.5, lr=0.1)
    # L_CE + L_KL is twice what KD weighs equally.
    assert all(torch.allclose(free.server["w"][n], p, atol=1e-5) for n, p in kd.server["w"].items())


def test_attention_by_hand():
    torch.manual_seed(0)
    net = Calibration([2], [3, 4], 6)
    student, teacher = [torch.randn(6, 2, 4, 4)], [torch.randn(6, 3, 4, 4), torch.randn(6, 4, 2, 2)]
    keys = [net._look(k, f) for k, f in zip(net.keys, teacher, strict=True)]
    query = net._look(net.queries[0], student[0])
    scores = torch.stack([(query * key).sum(1) for key in keys], 1).softmax(1)
    full = (net.projections[0][0](student[0]) - teacher[0]).square().mean((1, 2, 3))
    half = (net.projections[0][1](nn.functional.avg_pool2d(student[0], 2)) - teacher[1]).square().mean((1, 2, 3))
    torch.testing.assert_close(net(student, teacher), scores[:, 0] * full + scores[:, 1] * half)
    assert net([student[0][:4]], [f[:4] for f in teacher]).shape == (4,)


def test_models_without_maps_cannot_be_matched():
    flat = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), *(torch.zeros(1), torch.ones(1)), sample_shape=(1, 8, 8))
    alone = Task(flat.module, flat.mean, flat.std, sample_shape=(1, 8, 8), teacher=task().teacher)
    objection = algorithm_class("fitnet")(registries.algorithms.section("fitnet")(), alone).incompatibility()
    assert objection.startswith("task.model: fitnet matches feature maps, which student or teacher does not expose")
    deep = algorithm_class("fitnet")(registries.algorithms.section("fitnet")(hint=3), task()).incompatibility()
    assert deep == "algorithm.hint: student and teacher have only 2 stages in common; lower it"
    assert extract_features(flat, flat.init(), torch.zeros(2, 1, 8, 8)).features.shape == (2, 64)


# ---- the teacher's last layer ----------------------------------------------------------------------------------------


def test_simkd_learns_the_map_and_is_scored_under_the_teachers_layer():
    done = run("simkd")
    learner, server = done.servers[0].algorithm.inner, done.server
    assert set(learner.evaluate_params(server)) == set(task().init())
    shown = learner.scored(server)["w"]
    assert torch.equal(shown["head.weight"], server["teacher"]["head.weight"])
    batch = Batch(torch.from_numpy(IMAGES.x_test), torch.from_numpy(IMAGES.y_test))
    seen, teacher = learner.shown({"w": server["w"]}, server, batch), learner.says(server, batch)
    wanted = nn.functional.linear(seen.maps[-1].mean((2, 3)), shown["head.weight"], shown["head.bias"])
    torch.testing.assert_close(seen.logits, wanted)
    far = learner.lesson(learner.hyper, server, batch)({"w": server["w"]}, {})
    torch.testing.assert_close(far, (seen.maps[-1] - teacher.maps[-1]).square().mean())
    assert 0 <= done.servers[0].history[-1]["test_accuracy"] <= 1


def test_a_guide_that_excuses_all_or_nobody():
    """The specification's check 9: L_ft-g is 0, or L_ft."""
    done = run("simkd_disk", guide_hidden=[4], top_k=2)
    learner, server = done.servers[0].algorithm.inner, done.server
    batch = Batch(torch.from_numpy(IMAGES.x_test), torch.from_numpy(IMAGES.y_test))
    plain = SimKD.lesson(learner, learner.hyper, server, batch)({"w": server["w"]}, {})
    last = list(server["guide"])[-1]
    for bias, wanted in ((1e4, torch.zeros(())), (-1e4, plain)):
        guide = {name: torch.zeros_like(p) for name, p in server["guide"].items()}
        guide[last] = torch.full_like(guide[last], bias)
        found = learner.lesson(learner.hyper, server, batch)({"w": server["w"]}, {"guide": guide})
        torch.testing.assert_close(found, wanted)
    assert plain > 0


def test_a_guide_that_begins_strict_excuses_less():
    excused = []
    for lowest in (50.0, 0.1):
        done = run("simkd_disk", guide_hidden=[4], top_k=2, guide_lr=0.2, lambda_min=lowest)
        learner, server = done.servers[0].algorithm.inner, done.server
        batch = Batch(torch.from_numpy(IMAGES.x_test), torch.from_numpy(IMAGES.y_test))
        excused.append(float(excuses(learner.guide, server["guide"], learner.says(server, batch)).mean()))
    strict, lax = excused
    assert strict < 0.5 < lax
