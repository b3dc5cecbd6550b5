"""What matches feature maps, written out by hand: FitNet, SemCKD, SimKD (disk.md, 2.4); their teachers stay."""

from dataclasses import replace

import pytest
import torch
from helpers import identical, run_inline
from image_students import EVERYBODY, IMAGES, parse, task
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task, drawn
from hedgerow.algorithms.distillation.fitnet import regressor
from hedgerow.algorithms.distillation.semckd import Calibration
from hedgerow.algorithms.nn.feature_maps import (
    ReusedClassifier,
    feature_distance,
    is_rectified,
    with_teacher_classifier,
)
from hedgerow.algorithms.nn.features import extract_features, shapes, teacher_features
from hedgerow.platform.config import registries
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.preact_resnet import preact_resnet
from hedgerow.platform.models.torchvision_nets import resnet
from hedgerow.searchspaces.extra.table_file import family_tables

NAMED = {row.title.rpartition(" / ")[2]: row.values["task"]["model"] for row in family_tables("disk")["6.2"].rows}

METHODS = ("kd", "disk", "fitnet", "semckd", "simkd", "simkd_disk")
BATCH = Batch(torch.from_numpy(IMAGES.x_train[:12]), torch.from_numpy(IMAGES.y_train[:12]))


def normalised(x):
    """Batch norm at its initial scale and shift."""
    return (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()


def halved(x):
    """A map of 4x4 averaged over squares of 2x2, one of 2x2 as it is."""
    return F.avg_pool2d(x, 2) if x.shape[-1] == 4 else x


def met(name, **hyper):
    """A method before its first lesson: itself, what it is given, the student's maps, the teacher's, CE + KL."""
    learner = algorithm_class(name)(registries.algorithms.section(name)(batch_size=12, **hyper), task())
    w, teacher = learner.task.init(), learner.teacher_task.init()
    if learner.teacher_task.is_static:
        teacher |= learner.teacher_task.statistics(teacher, BATCH)
    mine, theirs = extract_features(learner.task, w, BATCH.x), extract_features(learner.teacher_task, teacher, BATCH.x)
    tau = learner.hyper.tau
    log_t, log_s = ((seen.logits / tau).log_softmax(-1) for seen in (theirs, mine))
    outputs = F.cross_entropy(mine.logits, BATCH.y) + tau**2 * (log_t.exp() * (log_t - log_s)).sum(-1).mean()
    bridge = drawn(learner.bridge, torch.Generator().manual_seed(1))
    return learner, {"w": w, "bridge": bridge}, {"teacher": teacher}, mine.maps, theirs.maps, outputs


@pytest.mark.parametrize("hint", [1, 2])
@pytest.mark.parametrize("weight", [100.0, 7.0])
def test_fitnet_by_hand(hint, weight):
    """L_CE + L_KL(tau 4) + beta MSE: the hint's stage, a convolution of matching kernel, batch norm, ReLU."""
    learner, student, down, mine, theirs, outputs = met("fitnet", hint=hint, hint_weight=weight)
    assert (registries.algorithms.section("fitnet")().hint_weight, registries.algorithms.section("fitnet")().tau) == (
        100.0,
        4.0,
    )
    bridge = student["bridge"]
    regressed = F.relu(normalised(F.conv2d(mine[hint - 1], bridge["0.weight"], bridge["0.bias"])))
    wanted = outputs + weight * F.mse_loss(regressed, theirs[hint - 1])
    torch.testing.assert_close(learner.lesson(learner.hyper, down, BATCH)(student, {}), wanted)
    assert F.mse_loss(regressed, theirs[hint - 1]) > 0.01


@pytest.mark.parametrize(
    ("sizes", "convolve"),
    [
        ((8, 4), lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1)),
        ((4, 8), lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1)),
        ((8, 6), F.conv2d),
        ((5, 5), F.conv2d),
    ],
)
def test_a_regressor_by_hand(sizes, convolve):
    """3x3 with stride 2 from twice the size, 4x4 transposed with stride 2 from half, else of matching kernel."""
    torch.manual_seed(0)
    mine, theirs = (torch.randn(5, channels, size, size) for channels, size in zip((2, 3), sizes, strict=True))
    net = regressor(mine, theirs)
    w = net[0].weight
    assert w.shape[-1] == {(8, 4): 3, (4, 8): 4, (8, 6): 3, (5, 5): 1}[sizes]
    torch.testing.assert_close(net(mine), F.relu(normalised(convolve(mine, w, net[0].bias))))


@pytest.mark.parametrize("weight", [400.0, 7.0])
def test_semckd_by_hand(weight):
    """L_CE + L_KL(tau 4) + beta times the mean over samples and student stages of sum_j a_ij MSE_ij."""
    learner, student, down, mine, theirs, outputs = met("semckd", match_weight=weight)
    assert (registries.algorithms.section("semckd")().match_weight, registries.algorithms.section("semckd")().tau) == (
        400.0,
        4.0,
    )
    far = torch.func.functional_call(learner.bridge, student["bridge"], (mine, theirs))
    assert far.shape == (12,)
    torch.testing.assert_close(
        learner.lesson(learner.hyper, down, BATCH)(student, {}), outputs + weight * far.sum() / 12
    )
    assert far.mean() > 0.01


def test_attention_of_two_student_stages_by_hand():
    torch.manual_seed(0)
    net = Calibration([2, 5], [3, 4], 8)
    student = [torch.randn(8, 2, 4, 4), torch.randn(8, 5, 2, 2)]
    teacher = [torch.randn(8, 3, 4, 4), torch.randn(8, 4, 2, 2)]

    def looks(mlp, f):
        """normalize(mlp(normalize(f f^T))), with an MLP from the batch to a quarter of it."""
        assert [layer.weight.shape for layer in (mlp[0], mlp[-1])] == [(2, 8), (2, 2)]
        alike = f.flatten(1) @ f.flatten(1).T
        hidden = F.relu(alike / alike.norm(dim=1, keepdim=True) @ mlp[0].weight.T + mlp[0].bias)
        out = hidden @ mlp[-1].weight.T + mlp[-1].bias
        return out / out.norm(dim=1, keepdim=True)

    def projected(project, x):
        """1x1, 3x3, 1x1, of twice the target's channels inside."""
        first, second, last = project[0], project[3], project[6]
        assert [conv.weight.shape[-1] for conv in (first, second, last)] == [1, 3, 1]
        assert first.out_channels == second.out_channels == 2 * last.out_channels
        x = F.relu(normalised(F.conv2d(x, first.weight)))
        x = F.relu(normalised(F.conv2d(x, second.weight, padding=1)))
        return F.conv2d(x, last.weight, last.bias)

    total = torch.zeros(8)
    for i, f in enumerate(student):
        query = looks(net.queries[i], f)
        scores = torch.stack([(query * looks(net.keys[j], g)).sum(1) for j, g in enumerate(teacher)], 1)
        a = scores.exp() / scores.exp().sum(1, keepdim=True)
        for j, g in enumerate(teacher):
            mine, wanted = (m if f.shape[-1] == g.shape[-1] else halved(m) for m in (f, g))
            total = total + a[:, j] * (projected(net.projections[i][j], mine) - wanted).square().mean((1, 2, 3))
    torch.testing.assert_close(net(student, teacher), total / 2)


# ---- SimKD -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("student", "teacher"), [([2, 4], [4, 6, 8]), ([2, 4, 4], [4, 8])])
def test_simkd_matches_at_the_smaller_size(student, teacher):
    """A student's 4x4 map under a teacher's 2x2, and the other way round, as ShuffleNetV2 under ResNet32x4."""
    torch.manual_seed(0)
    nets = [resnet(1, 3, w[0], w, [1] * len(w), StaticBatchNorm2d) for w in (student, teacher)]
    of = Task(nets[0], torch.zeros(1, 1, 1), torch.ones(1, 1, 1), sample_shape=(1, 8, 8), teacher=nets[1])
    sizes = [shapes(one).maps[-1].shape[-1] for one in (of, of.teacher_task)]
    assert sorted(sizes) == [2, 4]
    reusing = ReusedClassifier(of, of.teacher_task)
    reusing.projector.load_state_dict(drawn(reusing.projector, torch.Generator().manual_seed(0)), strict=False)
    reusing.head.load_state_dict({name: p.detach() for name, p in nets[1].head.named_parameters()})
    mine, theirs = (
        nets[0](BATCH.x, inside=True)[0][-1],
        extract_features(of.teacher_task, of.teacher_task.init(), BATCH.x),
    )
    wanted = theirs.maps[-1]
    mine, wanted = halved(mine), halved(wanted)
    seen = extract_features(Task(reusing, None, None), dict(reusing.named_parameters()), BATCH.x)
    projected = reusing.projector(mine)
    assert projected.shape == wanted.shape == (12, teacher[-1], 2, 2)
    torch.testing.assert_close(seen.maps[-1], projected)
    torch.testing.assert_close(seen.logits, nets[1].head(projected.mean((2, 3))))
    torch.testing.assert_close(feature_distance(seen, theirs), (projected - wanted).square().mean((1, 2, 3)))


# ---- maps that may be negative ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ResNet10-xxs", "ShuffleNetV2", "MobileNetV2x2", "preact_resnet"])
def test_a_model_says_whether_its_maps_may_be_negative(name):
    torch.manual_seed(0)
    config = {"name": name, "channels": [8, 16], "blocks": [1, 1], "groups": 4}
    net = build_model(parse(NAMED.get(name, config)), (3, 32, 32), 10)
    of = Task(net, torch.zeros(3, 1, 1), torch.ones(3, 1, 1), sample_shape=(3, 32, 32))
    lowest = min(float(m.min()) for m in extract_features(of, of.init(), torch.randn(2, 3, 32, 32)).maps)
    assert is_rectified(of) == (lowest == 0)
    assert (lowest < 0) == (name in ("MobileNetV2x2", "preact_resnet"))


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("student", ["preact_resnet", "resnet"])
def test_simkd_can_match_maps_that_are_not_rectified(student):
    """Those of preact_resnet are sums, with entries of both signs, from which a ReLU stays as far as these go down."""
    torch.manual_seed(0)
    teacher, net = (preact_resnet(1, 3, [w, w, 16], [1, 1, 1], 4) for w in (4, 8))
    if student == "resnet":
        net = resnet(1, 3, 8, [8, 16, 16], [1, 1, 1], StaticBatchNorm2d)
    of = Task(net, torch.zeros(1, 1, 1), torch.ones(1, 1, 1), sample_shape=(1, 8, 8), teacher=teacher)
    # Of two samples, which the projector's middle is wide enough to tell apart.
    reusing, x = with_teacher_classifier(of), BATCH.x[:2]
    wanted = teacher_features(of, x)
    w = {name: p.requires_grad_() for name, p in reusing.init().items()}
    adam = torch.optim.Adam(w.values(), lr=0.01)
    for _ in range(400):
        adam.zero_grad()
        far = feature_distance(extract_features(reusing, w, x), wanted).mean()
        far.backward()
        adam.step()
    assert far < 0.1 * wanted.maps[-1].clamp(max=0).square().mean()


def test_fitnet_can_match_maps_that_are_not_rectified():
    plain = task()
    of = replace(plain, teacher=preact_resnet(1, 3, [4, 8], [1, 1], 2))
    bridges = [algorithm_class("fitnet")(registries.algorithms.section("fitnet")(), one).bridge for one in (plain, of)]
    assert [type(bridge[-1]) for bridge in bridges] == [nn.ReLU, StaticBatchNorm2d]


# ---- the teacher -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_teacher_stays_as_it_was_at_the_first_lesson(name):
    """And the same for all methods."""

    def begun(name):
        own = {"guide_hidden": [4], "top_k": 2} if "disk" in name else {}
        done = run_inline(algorithm_class(name), task(), IMAGES, EVERYBODY, {"lr": 0.002, "batch_size": 12, **own})
        next(done)
        return done

    done = begun(name)
    before = tree_map(torch.clone, done.server["teacher"])
    assert identical(before, begun("kd").server["teacher"])
    student = tree_map(torch.clone, done.server["w"])
    list(done)
    assert identical(before, done.server["teacher"])
    assert not identical(student, done.server["w"])
