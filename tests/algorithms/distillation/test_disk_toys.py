"""DiSK's toys: their data, their models, and the counts of minima."""

import numpy as np
import pytest
import torch

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.sources.toy_data import CENTRES, GaussiansData, IntervalsData
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.toy_models import ENDS, Intervals, StaticMLP
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import build_algorithms, build_data
from hedgerow.searchspaces.extra.table_file import find_rows


def blue(x):
    return ((x >= 2) & (x <= 3)) | ((x >= 5) & (x <= 7))


def test_points_on_the_line():
    data = IntervalsData(samples=3000).load(None)
    for x, y in ((data.x_train[:, 0], data.y_train), (data.x_test[:, 0], data.y_test)):
        assert ((x >= 0) & (x <= 9)).all()
        assert (blue(x) == y).all()
        assert 2 * y.sum() == len(y)
    x, y = data.x_train[:, 0], data.y_train
    # Uniform within a class: 2/3 of blue and 1/3 of red in the longer, or in the second, of their parts.
    assert (x[y == 1] > 5).mean() == pytest.approx(2 / 3, abs=0.04)
    assert ((x[y == 0] > 3) & (x[y == 0] < 5)).mean() == pytest.approx(1 / 3, abs=0.04)
    # The accuracies of the three minima, in expectation.
    for (a, b), accuracy in (((2, 3), 2 / 3), ((5, 7), 5 / 6), ((2, 7), 5 / 6)):
        assert (((x >= a) & (x <= b)) == y).mean() == pytest.approx(accuracy, abs=0.03)


def test_points_in_the_plane():
    data = GaussiansData(samples=3000).load(None)
    assert np.bincount(data.y_train).tolist() == [1000] * 3
    near = np.linalg.norm(data.x_train[:, None] - CENTRES.reshape(6, 2), axis=-1).argmin(1)
    assert (near // 2 == data.y_train).mean() > 0.99
    assert np.bincount(near).min() > 450
    assert ((data.x_train - CENTRES.reshape(6, 2)[near]) ** 2).mean() == pytest.approx(0.05, rel=0.1)


def test_an_interval_by_hand():
    model = Intervals(1, 10.0, 1e-6)
    x = torch.tensor([[1.0], [2.0], [4.0], [9.0]])
    p = torch.func.functional_call(model, {"ends": torch.tensor([2.0, 7.0])}, (x,)).exp()
    wanted = [1 / (1 + np.exp(10)), 0.5, 1.0, 1e-6]
    assert p[:, 1].tolist() == pytest.approx(wanted, abs=2e-6)
    torch.testing.assert_close(p.sum(-1), torch.ones(4))
    assert torch.isfinite(p.log()).all()
    assert Intervals(2, 10.0, 1e-6).ends.tolist() == pytest.approx([1.8, 3.6, 5.4, 7.2])


def test_students_are_counted_by_where_they_ended():
    ends = torch.tensor([[2.1, 2.9], [5.2, 6.8], [2.0, 7.4], [2.0, 5.0], [7.0, 5.0]])
    found = Intervals(1, 10.0, 1e-6).minima({"ends": ends}, torch.zeros(5))
    assert {name: which.tolist() for name, which in found.items()} == {
        "A": [True, False, False, False, False],
        "B": [False, False, True, False, False],
        "C": [False, True, False, False, False],
        "other": [False, False, False, True, True],
    }
    plain = StaticMLP([2, 2, 3], {"A": 0.7, "D": 1.0}).minima({}, torch.tensor([0.72, 0.97, 0.8]))
    assert [which.tolist() for which in plain.values()] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("name", list(ENDS))
def test_minima_of_the_loss_on_the_line_are_those_of_the_accuracy(name):
    """Cross-entropy leaves a student that begins next to one of them there, and as accurate as it can be there."""
    data = IntervalsData(samples=1000, test_samples=20_000).load(None)
    line = find_rows("disk/6.1/intervals")[1][0]
    config = parse_experiment({**line.values, "name": "t", "algorithm": line.methods["CE"]}, source="t").task.model
    model = build_model(config, data.sample_shape, data.classes)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    ends = (torch.tensor(ENDS[name]) + torch.tensor([0.4, -0.4])).requires_grad_()
    optimiser = torch.optim.SGD([ends], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(200):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(torch.func.functional_call(model, {"ends": ends}, (x,)), y).backward()
        optimiser.step()
    # What it has lost to the weight decay is seen in an end that few points hold.
    assert ends.tolist() == pytest.approx(ENDS[name], abs=0.2)
    said = torch.func.functional_call(model, {"ends": ends}, (torch.from_numpy(data.x_test),)).argmax(1)
    accuracy = (said.numpy() == data.y_test).mean()
    assert accuracy == pytest.approx({"A": 2 / 3, "B": 5 / 6, "C": 5 / 6}[name], abs=0.03)


def test_a_student_of_the_plane_can_be_right_everywhere():
    """Along (1, 1) are red, blue, green and red: two units that look there, and a bias at their place of zeros."""
    net = StaticMLP([2, 2, 3], {})
    assert {name for name, _ in net.named_parameters() if "bias" in name} == {"layers.1.bias", "norms.0.bias"}
    data = GaussiansData().load(None)
    x, y = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
    along = x.sum(1) / 1.5
    spread = along.std(correction=0)
    # relu(s - 1/2) and relu(s - 3/2) of the place s along (1, 1), from 0 to 3; red's logit is 0 everywhere.
    w = {"layers.0.weight": torch.full((2, 2), 1 / 1.5), "norms.0.weight": spread.expand(2)}
    w |= {"norms.0.bias": along.mean() - torch.tensor([0.5, 1.5])}
    w |= {"layers.1.weight": torch.tensor([[0.0, 0.0], [4.0, -12.0], [8.0, -11.8]])}
    w |= {"layers.1.bias": torch.tensor([0.0, -0.2, -4.2])}
    right = torch.func.functional_call(net, w, (x,)).argmax(1) == y
    # Neighbours are 2.4 deviations from their border.
    assert right.float().mean() == pytest.approx(0.985, abs=0.01)


def test_intervals_are_on_a_line():
    values = {"name": "t", "rounds": 1, "task": {"data": {"name": "digits"}, "model": {"name": "intervals"}}}
    values["task"]["partition"] = {"kind": "iid", "clients": 1}
    values["algorithm"] = {"name": "central"}
    experiment = parse_experiment(values, source="t")
    with pytest.raises(UserError, match=r"intervals takes flat features"):
        build_algorithms([experiment], *build_data(experiment, None))


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("data", ["intervals", "gaussians"])
@pytest.mark.exhaustive("convergence")
def test_the_students_of_a_toy_are_counted(data, tmp_path):
    line = find_rows(f"disk/6.1/{data}")[1][0]
    for heading, section in line.methods.items():
        values = {**line.values, "name": "toy", "output": str(tmp_path), "algorithm": {**section, "starts": 4}}
        values |= {"rounds": 2, "resources": {"executor": "inline"}, "tracking": {"enabled": False}}
        values["evaluation"] = {"clients": 1}
        values["task"] = {**values["task"], "teacher": {**values["task"]["teacher"], "epochs": 2}}
        last = run(parse_experiment(values, source=heading)).records[-1]
        counts = {name: last[name] for name in last if name.startswith("minimum_")}
        assert sum(counts.values()) == 4
        assert set(counts) >= {name.replace(" ", "_") for name in line.published}
