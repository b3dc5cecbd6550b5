"""Models: the published sizes, the same gradients alone and batched over clients, a sentence for what does not fit."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from helpers import dataset, distance, model, partition, run_inline
from image_students import parse
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.gradient import direct_gradients, gradient_and_value
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.models import MODELS
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.char_lstm import lstm_cells
from hedgerow.platform.models.model import CustomModel
from hedgerow.platform.models.vmap_check import vmap_reason

# name, options, shape of a sample, classes, mini-batch: one of each built-in model, small where its size is an option
SMALL = [
    ("logreg", {}, (6,), 3, 4),
    ("mlp", {"hidden": [5, 4]}, (1, 3, 3), 3, 4),
    ("cnn", {"channels": [3, 4], "fc": [6, 5]}, (2, 16, 16), 3, 4),
    ("small_cnn", {}, (1, 8, 8), 10, 4),
    ("conv4", {"channels": 3}, (1, 16, 16), 10, 4),
    ("resnet18_gn", {}, (3, 32, 32), 10, 2),
    ("resnet_static", {"channels": [4, 6], "blocks": [1, 1]}, (3, 16, 16), 10, 4),
    ("resnet_exit", {"channels": [4, 6], "blocks": [1, 1], "exit_after": 1}, (3, 16, 16), 10, 4),
    ("preact_resnet", {"channels": [4, 6], "blocks": [1, 1], "groups": 2}, (3, 16, 16), 10, 4),
    ("resnet", {"channels": [4, 6], "blocks": [1, 1], "groups": 2}, (3, 16, 16), 10, 4),
    ("shufflenet_v2", {}, (3, 32, 32), 10, 4),
    ("intervals", {}, (1,), 2, 4),
    ("mlp_static", {"hidden": [5, 4]}, (6,), 3, 4),
    ("char_lstm", {"vocabulary": 12, "embedding": 3, "hidden": 5}, (7,), 4, 4),
]
small = pytest.mark.parametrize(("name", "options", "shape", "classes", "size"), SMALL, ids=[row[0] for row in SMALL])

OWN = """
OWN = 1
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, classes=3):
        super().__init__()
        if width < 1:
            raise ValueError("width must be positive")
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.output = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.output(self.gru(self.embedding(x))[0][:, -1])

class Pair(nn.Module):
    def forward(self, x):
        return x, x

class Changing(nn.Sequential):
    def __init__(self):
        super().__init__(nn.ReLU(inplace=True), nn.Linear(6, 3))

class Freezing(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 4), nn.Linear(4, 3))

    def forward(self, x):
        hidden = self[0].requires_grad_(False)(x)
        self[0].requires_grad_()
        return self[1](hidden)

class Frozen(Freezing):
    def __init__(self):
        super().__init__()
        self[0].requires_grad_(False)

    def forward(self, x):
        return self[1](self[0].requires_grad_(False)(x.clone().requires_grad_()))

def make():
    return Net(2)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module of the user's."""
    (tmp_path / "my_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_models"
    sys.modules.pop("my_models", None)


def build(name, options, shape, classes, seed=0):
    torch.manual_seed(seed)
    tokens = np.zeros((1, *shape), np.uint8) if name == "char_lstm" else None
    return build_model(parse({"name": name, **options}), shape, classes, tokens)


def samples(name, options, *shape):
    generator = torch.Generator().manual_seed(1)
    if name == "char_lstm":
        return torch.randint(options.get("vocabulary", 80), shape, generator=generator)
    return torch.randn(shape, generator=generator)


def parameters(module):
    return {name: p.detach() for name, p in module.named_parameters()}


def test_the_vocabulary_is_that_of_the_data():
    assert build("char_lstm", {}, (7,), 80).embedding.num_embeddings == 80
    assert sum(p.numel() for p in build("char_lstm", {}, (80,), 80).parameters()) == 133520
    for given, classes, tokens, embeddings in ((None, 80, 70, 80), (None, 3, 9, 9), (12, 20, 12, 12)):
        section = parse({"name": "char_lstm", "vocabulary": given}).for_tokens(classes, lambda tokens=tokens: tokens)
        net = section.build((7,), classes)
        assert (net.embedding.num_embeddings, net.output.out_features) == (embeddings, classes)
    with pytest.raises(UserError, match=r"task.model.vocabulary: the data have 65 tokens, not 12; raise it, or remove"):
        parse({"name": "char_lstm", "vocabulary": 12}).for_tokens(65, lambda: 65)


def refusal(name, options, shape, classes=3, is_tokens=False):
    with pytest.raises(UserError) as refused:
        build_model(parse({"name": name, **options}), shape, classes, np.zeros((1, *shape), int) if is_tokens else None)
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes", "count"),
    [
        ("logreg", {}, (30,), 5, 155),
        ("mlp", {}, (1, 8, 8), 10, 64 * 200 + 200 + 200 * 10 + 10),
        ("mlp", {"hidden": [200, 200]}, (1, 28, 28), 10, 199210),
        ("mlp", {"hidden": [100, 100]}, (1, 28, 28), 10, 89610),
        ("cnn", {}, (3, 32, 32), 10, 815892),
        ("cnn", {}, (3, 32, 32), 100, 833262),
        ("cnn", {"fc": [384, 192]}, (3, 32, 32), 10, 797962),
        ("cnn", {"fc": [384, 192]}, (3, 32, 32), 100, 815332),
        # 28 -> 24 -> 12 -> 8 -> 4: 1024 flat features, of one channel
        ("cnn", {}, (1, 28, 28), 10, 25 * 64 + 64 + 25 * 64 * 64 + 64 + 1025 * 394 + 395 * 192 + 193 * 10),
        # padding 2 keeps 32 -> 16 -> 8: 4096 flat features in place of 1600
        ("cnn", {"padding": 2}, (3, 32, 32), 10, 815892 + (4096 - 1600) * 394),
        ("small_cnn", {}, (1, 8, 8), 10, 160 + 4640 + 1290),
        ("conv4", {}, (1, 28, 28), 10, 24_234),
        ("conv4", {"channels": 64}, (3, 32, 32), 10, 97_866),
        # torchvision's 11689512 for 1000 classes, with 10 classes and a 3x3 stem
        ("resnet18_gn", {}, (3, 32, 32), 10, 11689512 - 990 * 513 - (49 - 9) * 3 * 64),
        ("resnet18_gn", {"small_images": False}, (3, 64, 64), 1000, 11689512),
        ("resnet18_gn", {"small_images": False}, (1, 64, 64), 1000, 11689512 - 49 * 2 * 64),
        # torchvision's ResNet-18 and 34 for 1000 classes, with 100 and a 3x3 stem, without the norms of the stem and of
        # shortcuts, and with a stage's first norm before its first convolution
        ("preact_resnet", {}, (3, 32, 32), 100, 11689512 - 900 * 513 - 40 * 3 * 64 - 128 - 2 * 896 - 2 * 448),
        (
            "preact_resnet",
            {"blocks": [3, 4, 6, 3]},
            (3, 32, 32),
            100,
            21797672 - 900 * 513 - 40 * 3 * 64 - 128 - 2 * 896 - 2 * 448,
        ),
        ("char_lstm", {}, (80,), 80, 133520),
    ],
)
def test_parameter_counts(name, options, shape, classes, count):
    assert sum(p.numel() for p in build(name, options, shape, classes).parameters()) == count


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes"),
    [(*row[:3], row[3]) for row in SMALL]
    + [
        ("cnn", {}, (1, 28, 28), 10),
        ("cnn", {}, (3, 32, 32), 100),
        ("small_cnn", {}, (1, 9, 5), 10),
        ("mlp", {"hidden": []}, (6,), 3),
        ("resnet18_gn", {"small_images": False, "groups": 1}, (1, 32, 32), 10),
    ],
)
def test_logits_and_reproducible_parameters(name, options, shape, classes):
    module, again, other = (build(name, options, shape, classes, seed) for seed in (3, 3, 4))
    assert module(samples(name, options, 2, *shape)).shape == (2, classes)
    mine = parameters(module)
    assert all(torch.equal(mine[key], p) for key, p in parameters(again).items())
    assert not all(torch.equal(mine[key], p) for key, p in parameters(other).items())


def test_every_built_in_model_is_tried_here():
    # The quadratic's variables are no classifier; test_fedbio.py runs them. MobileNetV2's norms of few values
    # magnify what is rounded, and attention needs another kernel; test_disk_models.py tries both.
    elsewhere = ("quadratic", "mobilenet_v2", "vit", "transformer_lm", "transformer_classifier")
    assert [row[0] for row in SMALL] == [name for name in MODELS if name not in elsewhere]


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes", "size"),
    # The 11 million parameters of the ResNet-18 take as long as all others; smaller ResNets have the same layers.
    [pytest.param(*row, marks=pytest.mark.exhaustive("grid") if row[0] == "resnet18_gn" else ()) for row in SMALL],
    ids=[row[0] for row in SMALL],
)
@pytest.mark.filterwarnings("error:There is a performance drop")  # vmap warns when it falls back to a loop
def test_gradients_of_three_clients_alone_and_batched(name, options, shape, classes, size):
    # In single precision, rounding may carry an input of a ReLU across zero, and its gradient with it.
    clients = [build(name, options, shape, classes, seed).double() for seed in range(3)]
    # Where mini-batches are padded, their statistics would be others.
    assert (clients[0].no_vmap is None) == (name not in ("resnet_static", "shufflenet_v2", "mlp_static"))
    x = samples(name, options, 3, size, *shape)
    x = x.double() if x.is_floating_point() else x
    y = torch.randint(classes, (3, size), generator=torch.Generator().manual_seed(2))
    # The module that is called holds parameters of none of the clients.
    module = build(name, options, shape, classes, 9).double()

    def loss(w, x, y):
        return F.cross_entropy(functional_call(module, w, (x,)), y)

    stacked = {key: torch.stack([parameters(client)[key] for client in clients]) for key in parameters(module)}
    batched = vmap(grad(loss), randomness="error")(stacked, x, y)

    def without_torch_func(w, x, y):
        with direct_gradients():
            return gradient_and_value(loss)(w, x, y)[0]

    # In this faster form, each function must be known to have the right gradients; without it, it would be refused.
    direct = batched if clients[0].no_vmap else vmap(without_torch_func, randomness="error")(stacked, x, y)
    for i, client in enumerate(clients):
        own = dict(client.named_parameters())
        # Parameters of another exit have none: zeros.
        derive = partial(torch.autograd.grad, materialize_grads=True)
        expected = derive(F.cross_entropy(client(x[i]), y[i]), list(own.values()))
        w = {key: p.detach().requires_grad_() for key, p in own.items()}
        looped = derive(loss(w, x[i], y[i]), list(w.values()))
        functional = grad(loss)({key: p.detach() for key, p in own.items()}, x[i], y[i])
        for key, wanted, alone in zip(own, expected, looped, strict=True):
            for found in (alone, functional[key], batched[key][i], direct[key][i]):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=f"{name}: {key} differs")


@pytest.mark.parametrize("width", [2, 4])
def test_narrow_convolutions_with_a_stride_are_trained_alike_in_both_forms(width):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.Conv2d(width, 8, 1, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    rng = np.random.default_rng(0)
    data = dataset(rng.normal(size=(160, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 160), 40)
    task = Task(module, torch.zeros(1, 1, 1), torch.ones(1, 1, 1), sample_shape=(1, 8, 8))
    models = []
    for mode in ("loop", "vmap"):
        engine = EngineConfig(mode=mode, chunk=4 if mode == "vmap" else "auto", compile=False)
        hyper = {"lr": 0.01, "epochs": 10, "batch_size": 10}
        run = run_inline(FedAvg, task, data, partition(np.full(4, 30)), hyper, rounds=2, engine=engine)
        list(run)
        models.append(model(run))
    assert distance(*models) < 1e-5


@pytest.mark.parametrize(("layers", "length"), [(1, 1), (2, 9), (3, 4)])
def test_cells_equal_the_kernel(layers, length):
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 6, layers, batch_first=True)
    x = torch.randn(5, length, 4, requires_grad=True)
    kernel, cells = lstm(x)[0], lstm_cells(lstm, x)
    torch.testing.assert_close(cells, kernel, rtol=1e-5, atol=1e-5)
    wanted, found = (torch.autograd.grad(h.square().sum(), [x, *lstm.parameters()]) for h in (kernel, cells))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_hessian_vector_product_of_the_lstm():
    """Forward over reverse against central differences of the gradient; batched, and in single precision."""
    name, options, shape, classes, size = SMALL[-1]
    module = build(name, options, shape, classes)
    x = samples(name, options, size, *shape)
    y = torch.arange(size) % classes
    w = {key: p.double() for key, p in parameters(module).items()}
    v = {key: torch.randn_like(p) for key, p in w.items()}

    def loss(w):
        return F.cross_entropy(functional_call(module, w, (x,)), y)

    def product(w, v):
        return jvp(grad(loss), (w,), (v,))[1]

    exact, step = product(w, v), 1e-5
    up, down = (grad(loss)({key: w[key] + sign * step * v[key] for key in w}) for sign in (1, -1))
    batched = vmap(partial(product, w))({key: torch.stack([v[key], 2 * v[key]]) for key in v})
    single = product(*({key: p.float() for key, p in tree.items()} for tree in (w, v)))
    for key in w:
        torch.testing.assert_close(exact[key], (up[key] - down[key]) / (2 * step), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(batched[key], torch.stack([exact[key], 2 * exact[key]]))
        torch.testing.assert_close(single[key].double(), exact[key], rtol=1e-3, atol=1e-5)


def test_the_new_stem_of_the_resnet_is_initialised_as_its_other_convolutions():
    weight = parameters(build("resnet18_gn", {}, (3, 32, 32), 10))["conv1.weight"]
    assert float(weight.std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


def test_models_import_packages_only_when_they_need_them():
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from hedgerow.platform.models.build import build_model\n"
        "from hedgerow.platform.models.feedforward import CNN\n"
        "from hedgerow.platform.models.char_lstm import CharLSTM\n"
        "from hedgerow.platform.models.transformers_nets import CausalTransformer\n"
        "CausalTransformer(config={'model_type': 'gpt2'}, lora={'targets': ['c_attn']})\n"
        "build_model(CNN(), (3, 32, 32), 10), build_model(CharLSTM(), (80,), 80, np.zeros((1, 80), int))\n"
        "assert not {'torchvision', 'transformers', 'peft'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_of_the_users(own):
    config = parse({"name": f"{own}.Net", "args": {"width": 4}})
    assert isinstance(config, CustomModel)
    module = build_model(config, (6,), 3)
    assert module(torch.zeros(5, 6)).shape == (5, 3)
    assert module.no_vmap is None


def test_recurrent_layers_of_the_users_take_turns(own):
    module = build_model(parse({"name": f"{own}.Reader"}), (8,), 3, np.arange(8)[None])
    assert "no batching rule" in str(module.no_vmap)
    module.no_vmap = None  # type: ignore[assignment]  # its author knows better
    assert vmap_reason(module) is None


@pytest.mark.parametrize(
    ("path", "args", "sentence"),
    [
        ("nowhere.Net", {}, "task.model.name: cannot import 'nowhere.Net': no module named 'nowhere'"),
        ("{own}.Nett", {}, "task.model.name: module '{own}' has no 'Nett'; did you mean 'Net'?"),
        ("{own}.OWN", {}, "task.model.name: '{own}.OWN' is not callable; name a torch.nn.Module or a function that"),
        ("{own}.Net", {}, "task.model.args: {own}.Net cannot be built from them (TypeError: Net.__init__() missing"),
        (
            "{own}.Net",
            {"widht": 3},
            "task.model.args: {own}.Net cannot be built from them (TypeError: Net.__init__() got an",
        ),
        ("{own}.Net", {"width": 0}, "task.model.args: {own}.Net cannot be built from them (ValueError at "),
        ("{own}.Net", {"width": 2, "classes": 4}, "task.model: {own}.Net returns (2, 4) for a batch of shape (2, 6)"),
        ("{own}.Pair", {}, "task.model: {own}.Pair returns tuple for a batch of shape (2, 6); logits of shape (2, 3)"),
        ("{own}.Reader", {}, "task.model: {own}.Reader fails on a batch of shape (2, 6)"),
        ("{own}.Freezing", {}, "task.model: {own}.Freezing sets `requires_grad` of its parameters in a call, and"),
        ("{own}.Changing", {}, "task.model: {own}.Changing changes its input in place, and other models may read"),
    ],
)
def test_mistakes_with_a_model_of_the_users(own, path, args, sentence):
    assert refusal(path.format(own=own), {"args": args}, (6,)).startswith(sentence.format(own=own))


def test_a_call_may_freeze_what_is_frozen_and_ask_for_gradients_of_its_input(own):
    module = build_model(parse({"name": f"{own}.Frozen"}), (6,), 3)
    assert [name for name, p in module.named_parameters() if p.requires_grad] == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("name", "options", "shape", "is_tokens", "sentence"),
    [
        ("cnn", {}, (6,), False, "cnn takes images, but task.data has flat features; choose logreg, mlp"),
        ("small_cnn", {}, (6,), False, "small_cnn takes images, but task.data has flat features; choose logreg, mlp"),
        ("resnet18_gn", {}, (6,), False, "resnet18_gn takes images, but task.data has flat features; choose logreg"),
        ("char_lstm", {}, (1, 8, 8), False, "char_lstm takes token sequences, but task.data has images; choose logreg"),
        ("char_lstm", {}, (6,), False, "char_lstm takes token sequences, but task.data has flat features; choose"),
        ("mlp", {}, (6,), True, "mlp takes images or flat features, but task.data has token sequences; choose char_l"),
        ("cnn", {}, (1, 8, 8), False, "images of 8x8 are too small for cnn with kernel 5 and padding 0; choose mlp"),
        ("cnn", {}, (3, 32, 15), False, "images of 32x15 are too small for cnn with kernel 5 and padding 0; choose"),
        ("small_cnn", {}, (1, 3, 8), False, "images of 3x8 are too small for small_cnn with kernel 3 and padding 1"),
        ("conv4", {}, (1, 8, 28), False, "images of 8x28 are too small for conv4, which needs at least 16x16"),
        ("vit", {}, (3, 40, 40), False, "vit needs square images whose side is a multiple of 16, but these have 40x40"),
    ],
)
def test_models_that_do_not_fit_the_data(name, options, shape, is_tokens, sentence):
    assert refusal(name, options, shape, is_tokens=is_tokens).startswith(f"task.model: {sentence}")


def test_the_smallest_images_for_the_cnn():
    assert build("cnn", {}, (1, 16, 16), 3)(torch.zeros(2, 1, 16, 16)).shape == (2, 3)


def test_groups_must_divide_the_channels():
    assert "task.model.groups: 3 does not divide 64" in refusal("resnet18_gn", {"groups": 3}, (3, 32, 32))


@pytest.mark.parametrize("layer", [nn.LSTM(3, 3), nn.GRU(3, 3), nn.RNN(3, 3)])
def test_recurrent_layers_cannot_be_batched(layer):
    assert "no batching rule" in str(vmap_reason(nn.Sequential(layer)))
