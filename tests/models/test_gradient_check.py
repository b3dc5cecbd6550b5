"""Models that reach their parameters, or read their samples, in ways of their own have the numbers of plain PyTorch, or
are refused in one sentence.
"""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import hedgerow
from hedgerow import Algorithm, Exchange, LocalSGD, StepResult
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.gradient_check import needs_plain_format, reads_parameters_again
from hedgerow.platform.models.model import CustomModel
from hedgerow.platform.models.probe import probe_samples
from hedgerow.platform.runs.passed_objects import passed_sections

SIZES, CLASSES, LR, ROUNDS, STEPS = (12, 9, 7), 3, 0.3, 2, 2


def seeded(model):
    """Function that returns a model, always with the same parameters."""

    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return model()

    return build


def data_of(shape):
    """Samples of all clients in turn, and a table of them for `hedgerow.run`."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(SIZES), *shape)).astype(np.float32), np.arange(sum(SIZES)) % CLASSES
    table = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "train_clients": np.repeat(np.arange(3), SIZES)}
    table |= {"mean": np.zeros(shape[0], np.float32), "std": np.ones(shape[0], np.float32)}
    return x, y, table | ({"channels": "first"} if len(shape) == 3 else {})


FEDAVG = {"name": "fedavg", "lr": LR, "batch_size": None, "epochs": STEPS}


def trained(model, shape=(6,), mode="loop", algorithm=FEDAVG):
    own = None if isinstance(algorithm, dict) else algorithm
    experiment = {
        "name": "ways",
        "rounds": ROUNDS,
        "clients_per_round": "all",
        "task": {"partition": {"kind": "natural"}},
        "algorithm": {} if own else algorithm,
        "engine": {"mode": mode},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }
    return hedgerow.run(experiment, data=lambda: data_of(shape)[2], model=seeded(model), show=False, algorithm=own)


def of_plain_torch(model, shape=(6,)):
    """State after FedAvg with plain torch."""
    x, y, _ = data_of(shape)
    server = {name: value.clone() for name, value in seeded(model)().state_dict().items()}
    for _ in range(ROUNDS):
        states = []
        for rows in np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1]):
            net = seeded(model)()
            net.load_state_dict(server)
            optimizer = torch.optim.SGD(net.parameters(), lr=LR)
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(net(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
                optimizer.step()
            states.append(net.state_dict())
        weights = torch.tensor(SIZES) / sum(SIZES)
        server = {name: sum(w * s[name] for w, s in zip(weights, states, strict=True)) for name in server}
    return server


def assert_plain(model, shape=(6,), mode="loop"):
    expected, found = of_plain_torch(model, shape), trained(model, shape, mode).parameters
    for name, value in expected.items():
        torch.testing.assert_close(torch.as_tensor(found[name]), value, rtol=1e-5, atol=1e-5, msg=f"{name} differs")


# ---- memory format ---------------------------------------------------------------------------------------------------


class Viewing(nn.Module):
    """The network of PyTorch's tutorials, with `view` between convolutions and linear layers."""

    def __init__(self, channels=1):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.last = nn.Linear(8 * 4, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.last(x.view(-1, 8 * 4))


class Strided(nn.Module):
    """Reads the memory of its samples in their default order."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(3, 4, 3, padding=1), nn.Linear(4 * 64, CLASSES)

    def forward(self, x):
        return self.last(F.relu(self.conv(x.as_strided((len(x), 3, 64), (3 * 64, 64, 1)))).flatten(1))


class StridedKernel(Viewing):
    """Reads the memory of a kernel in its default order."""

    def forward(self, x):
        kernel = self.first.weight.as_strided((6, 3, 3, 3), (27, 9, 3, 1))
        x = F.max_pool2d(F.relu(F.conv2d(x, kernel, self.first.bias, padding=1)), 2)
        return self.last(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


class Branching(Viewing):
    def forward(self, x):
        return super().forward(x.contiguous()) * (1 if x.is_contiguous() else -1)


class Reshaping(Viewing):
    """Makes images of flat features, so that its kernels alone determine the format."""

    def forward(self, x):
        return super().forward(x.view(-1, 1, 8, 8))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Viewing, (1, 8, 8)),
        (lambda: Viewing(3), (3, 8, 8)),
        (Strided, (3, 8, 8)),
        (lambda: StridedKernel(3), (3, 8, 8)),
        (lambda: Branching(3), (3, 8, 8)),
        (Reshaping, (64,)),
    ],
)
def test_a_model_that_reads_memory_in_its_default_order_has_the_numbers_of_plain_torch(model, shape, mode):
    assert_plain(model, shape, mode)


TOKENS = np.random.default_rng(1).integers(0, 5, (20, 4))


def built(model, shape=(6,), tokens=None):
    config = CustomModel(**passed_sections(model=seeded(model))["model"])
    return build_model(config, shape, CLASSES, tokens)


# ---- other references ------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 5), nn.Linear(5, CLASSES), nn.Sequential(*layers)

    def forward(self, x):
        return self.last(self.b(torch.tanh(self.a(x))))


class Hooked(Two):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(CLASSES))
        self.gate = nn.Linear(5, 5)
        self.a.register_forward_hook(lambda layer, inputs, output: output * torch.sigmoid(self.gate(output)))


class Closed(Two):
    def __init__(self):
        super().__init__(nn.Dropout(0.2))
        self.head = lambda x: self.b(torch.tanh(x))

    def forward(self, x):
        return self.last(self.head(self.a(x)))


class Listed(Two):
    def __init__(self, with_layer=True):
        super().__init__()
        self.with_layer, self.weights = with_layer, []
        for i, sizes in enumerate([(6, 5), (5, CLASSES)]):
            self.weights.append(nn.Parameter(torch.randn(sizes)))
            self.register_parameter(f"w{i}", self.weights[i])

    def forward(self, x):
        first, second = self.weights
        return torch.tanh(x @ first) @ second + (super().forward(x) if self.with_layer else 0)


def wrapped():
    module = Two(nn.BatchNorm1d(CLASSES))
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)
    return module


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Hooked, "gate.weight"),
        (Closed, "b.weight"),
        (Listed, "w0"),
        (lambda: Listed(with_layer=False), "w0"),
        (wrapped, "a.weight"),
    ],
)
def test_a_parameter_that_is_reached_by_another_reference_is_refused_by_name(model, name):
    with pytest.raises(UserError, match=f"reaches its parameter '{name}' by a reference .* as an attribute"):
        built(model)


def test_two_parameters_with_the_same_memory_are_refused():
    def shared():
        module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES))
        module[1].weight = nn.Parameter(module[0].weight)
        return module

    with pytest.raises(UserError, match=r"two parameters with the same memory, one of them '0\.weight'"):
        built(shared)


# ---- gradient checkpointing ------------------------------------------------------------------------------------------


class Checkpointed(Two):
    def forward(self, x):
        return self.last(checkpoint(lambda z: self.b(torch.tanh(self.a(z))), x, use_reentrant=False))


class OwnLoop(Algorithm):
    class Hyper(LocalSGD):
        no_vmap: ClassVar[str] = "its step calls an optimiser of PyTorch"

    def round(self, server, cohort):
        batches, weights = self.hyper.batches, self.weights(cohort)
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, weights=weights)
        return {"w": result.up["w"]}

    def train(self, hp, down, state, data):
        w = {name: p.detach().clone().requires_grad_() for name, p in down["w"].items()}
        for batch in data.batches():
            loss = F.cross_entropy(self.task.logits(w, batch.x), batch.y)
            loss.backward()
        return StepResult({"w": {name: p.detach() for name, p in w.items()}}, {}, {"loss": loss.detach()})


@pytest.mark.parametrize("mode", ["loop", "auto"])
def test_gradient_checkpointing_has_the_numbers_of_plain_torch(mode):
    assert_plain(Checkpointed, mode=mode)
    assert "gradient checkpointing" in built(Checkpointed).no_vmap


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(CLASSES), nn.Dropout(0.2)])
def test_gradient_checkpointing_in_a_model_with_a_training_mode_is_refused(layer):
    with pytest.raises(UserError, match="gradient checkpointing does, which works only without"):
        built(lambda: Checkpointed(layer))


@pytest.mark.parametrize("algorithm", [OwnLoop, {"name": "fedsgd", "lr": LR}])
def test_gradient_checkpointing_needs_minimize(algorithm):
    with pytest.raises(UserError, match=r"differentiates `task\.logits` outside `minimize`"):
        trained(Checkpointed, algorithm=algorithm)


# ---- ordinary models -------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A language model's tied weights, with frozen parameters and an embedding that a call changes."""

    def __init__(self, **options):
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(9, 5, **options), nn.LSTM(5, 5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.table.weight
        self.last = nn.Linear(9, CLASSES).requires_grad_(False)

    def forward(self, x):
        return self.last(self.head(self.rnn(self.table(x))[0])).mean(1)


class Generating(Two):
    """Draws from a generator of its own, so that no two calls are alike."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x):
        return super().forward(x * torch.rand(x.shape, generator=self.generator))


def attentive():
    return nn.Sequential(nn.Unflatten(1, (3, 8)), nn.TransformerEncoderLayer(8, 2, 4), nn.Flatten(), nn.Linear(24, 3))


def convolutional():
    return nn.Sequential(
        spectral_norm(nn.Conv2d(3, 8, 3)), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1, stride=2),
        nn.Dropout(0.5), nn.Flatten(), weight_norm(nn.Linear(36, CLASSES)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "shape", "tokens"),
    [
        (Tied, (4,), TOKENS),
        (lambda: Tied(max_norm=0.1), (4,), TOKENS),
        (lambda: Tied(padding_idx=0, sparse=False), (4,), TOKENS),
        (Generating, (6,), None),
        (attentive, (24,), None),
        (convolutional, (3, 8, 8), None),
    ],
)
def test_ordinary_models_pass_and_keep_no_trace_of_the_check(model, shape, tokens):
    module, samples = built(model, shape, tokens), probe_samples(shape, tokens)
    mode = module.train_mode
    assert (module.reads_again, module.plain_format) == (False, False)
    before = {name: (value, value.clone()) for name, value in module.state_dict(keep_vars=True).items()}
    flags = [(layer.training, sorted(vars(layer))) for layer in module.modules()]
    generator = torch.get_rng_state()
    assert not reads_parameters_again(module, "model", mode, samples)
    assert not needs_plain_format(module, mode, samples)
    assert torch.equal(torch.get_rng_state(), generator)
    assert flags == [(layer.training, sorted(vars(layer))) for layer in module.modules()]
    after = module.state_dict(keep_vars=True)
    for name, (tensor, value) in before.items():
        assert (after[name] is tensor, torch.equal(tensor, value), tensor.grad) == (True, True, None), name
