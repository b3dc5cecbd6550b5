"""Ordinary PyTorch models whose layers differ in training mode, for 8x8 digits."""

import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.objectives.objective import Objective


class Median(Aggregator):
    """Median of each entry."""

    def combine(self, updates, weights):
        return tree_map(lambda leaf: leaf.median(0).values, updates)


class Normed(nn.Sequential):
    """Batch norm of features, without an option of any kind."""

    def __init__(self, width: int = 8, **options):
        norm = nn.BatchNorm1d(width, **options)
        super().__init__(nn.Flatten(), nn.Linear(64, width), norm, nn.ReLU(), nn.Linear(width, 10))


NORMED = {"fedbn": ["task.model.name=mode_models.Normed"]}
"""Algorithm that needs batch norm, which no built-in model has -> override of the model."""


class NormedTwice(nn.Sequential):
    """Two layers of batch norm."""

    def __init__(self, width: int = 8):
        first, second = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        super().__init__(
            nn.Flatten(), nn.Linear(64, width), first, nn.ReLU(), nn.Linear(width, width), second, nn.Linear(width, 10)
        )


class NormedImages(nn.Sequential):
    """Batch norm of feature maps."""

    def __init__(self, width: int = 4, p: float = 0.2, **options):
        norm, pool = nn.BatchNorm2d(width, **options), nn.AdaptiveAvgPool2d(2)
        super().__init__(
            nn.Conv2d(1, width, 3), norm, nn.ReLU(), nn.Dropout2d(p), pool, nn.Flatten(), nn.Linear(4 * width, 10)
        )


class Dropped(nn.Module):
    """Dropout as a layer, as a function, and in place."""

    def __init__(self, p: float = 0.3):
        super().__init__()
        self.p, self.first, self.second = p, nn.Linear(64, 12), nn.Linear(12, 10)
        self.drop = nn.Dropout(p, inplace=True)

    def forward(self, x):
        hidden = F.relu(self.drop(self.first(x.flatten(1))))
        return self.second(F.dropout(hidden, self.p, self.training))


class Masked(nn.Module):
    """Sums of weights. Training drops each one with probability 0.3."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(10, 200))

    def forward(self, x):
        return F.dropout(self.weight, 0.3, self.training).sum(1).expand(len(x), 10)


class Total(Objective):
    """The sum of the logits of a sample."""

    def begin(self, task, hp, down, state, data):
        return lambda w, batch: task.logits(w, batch.x)[0].sum(), None


class Encoding(nn.Module):
    """A transformer layer over the rows of an image."""

    def __init__(self, p: float = 0.2):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, p, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.layer(x[:, 0]).mean(1))


class Attentive(nn.Module):
    """A transformer layer over the rows of an image, with stochastic depth and batch norm."""

    def __init__(self, p: float = 0.2):
        super().__init__()
        from torchvision.ops import StochasticDepth

        self.layer = nn.TransformerEncoderLayer(8, 2, 16, p, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, p, batch_first=True)
        self.skip, self.norm, self.head = StochasticDepth(p, "row"), nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x):
        rows = self.layer(x[:, 0])
        rows = rows + self.skip(self.attention(rows, rows, rows)[0])
        return self.head(self.norm(rows.mean(1)))


class Averaging(nn.Module):
    """A running mean of its own, assigned anew in each call, that a layer of its own subtracts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


class Rectified(nn.Sequential):
    """Random leaky ReLU, whose random numbers come from torch's generator."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.RReLU(), nn.Linear(8, 10))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, 2, dropout=0.4, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.lstm(x[:, 0])[0][:, -1])


class Branching(nn.Sequential):
    """Control flow that depends on values."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class FromNumPy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x * np.random.rand())


class Remembering(nn.Module):
    """Keeps a hidden state and a list of past norms as plain attributes, and reads the first one."""

    def __init__(self):
        super().__init__()
        self.layer, self.state, self.norms = nn.Linear(64, 10), 0.0, []

    def forward(self, x):
        out = self.layer(x.flatten(1)) + self.state
        self.state = 0.5 * out.mean(0, keepdim=True).detach()
        self.norms.append(float(out.detach().norm()))
        return out * 0.9 ** len(self.norms)


class Counting(nn.Sequential):
    """Counts its calls in training in an attribute that the first one creates."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.LazyLinear(10))

    def forward(self, x):
        if self.training:
            self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * 0.9 ** getattr(self, "calls", 0)


class Locked(nn.Sequential):
    """Changes an attribute that cannot be copied."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.lock = threading.Lock()

    def forward(self, x):
        self.lock = threading.Lock()
        return super().forward(x)


class HookedParameter(nn.Sequential):
    """A gradient hook on a parameter. after: on its accumulated gradient."""

    def __init__(self, after: bool = False):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        weight = self[1].weight
        if after:
            weight.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())
        else:
            weight.register_hook(lambda slope: 0 * slope)


class Squeezed(nn.Sequential):
    """Loses the dimension of the samples where there is one."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x).squeeze()


class Constrained(nn.Sequential):
    """A constraint on the norm of a weight, which each call enforces in place."""

    def __init__(self, size: float = 0.3):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.size = size

    def forward(self, x):
        self[1].weight.data = torch.renorm(self[1].weight.data, 2, 0, self.size)
        return super().forward(x)


class Tokens(nn.Module):
    """Embedding of the pixels of an image, with options."""

    def __init__(self, **options):
        super().__init__()
        self.table, self.out = nn.Embedding(17, 4, **options), nn.Linear(4, 10)

    def forward(self, x):
        return self.out(self.table((2 * x.flatten(1) + 4).clamp(0, 16).long()).mean(1))


class Centred(nn.Sequential):
    """Subtracts the mean of the mini-batch."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x - x.mean(0))


def make(width: int = 8):
    """A function that returns a module."""
    return Normed(width)


def nothing():
    return {"no": "module"}


not_callable = 3


class Cell(nn.Module):
    """A recurrent cell without a first state: torch adds to a product that clients share in their first step."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(64, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.out(self.cell(x.flatten(1))[0])


class Reversed(nn.Sequential):
    """Each sample has the output of another one of its mini-batch."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return super().forward(x).flip(0)


class RawEvaluation(nn.Sequential):
    """Evaluation mode has a function that torch refuses for several clients at once."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.1))

    def forward(self, x):
        outputs = super().forward(x)
        return outputs if self.training else outputs * (outputs.data.sum() != 0)


class OverRows(nn.Module):
    """A recurrent layer of torch over the rows of an image. kind: name of its class."""

    def __init__(self, kind: str = "GRU"):
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.layer(x[:, 0])[0][:, -1])


class Gated(nn.Module):
    """A soft gate in training and a hard one in evaluation."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Parameter(torch.linspace(-1, 1, 64)), nn.Linear(64, 10)

    def forward(self, x):
        gate = self.gate.sigmoid() if self.training else 3 * (self.gate > 0).float()
        return self.head(x.flatten(1) * gate)


class Clamped(nn.Sequential):
    """Weights that are not negative, or, with kind symmetric, those of a symmetric matrix."""

    def __init__(self, kind: str = "positive"):
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10))
        self.kind = kind

    def forward(self, x):
        with torch.no_grad():
            weight = self[1].weight
            weight.copy_(weight.clamp(min=0) if self.kind == "positive" else (weight + weight.T) / 2)
        return super().forward(x)


class Target(nn.Module):
    """A moving average of a layer: frozen parameters."""

    def __init__(self):
        super().__init__()
        self.layer, self.target = nn.Linear(64, 10), nn.Linear(64, 10).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            self.target.weight.lerp_(self.layer.weight, 0.5)
        return self.layer(x.flatten(1)) + self.target(x.flatten(1))


class Calls(nn.Sequential):
    """Counts its calls in a buffer, in evaluation as well. with_gradients: only of those."""

    def __init__(self, with_gradients: bool = False):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.with_gradients = with_gradients
        self.register_buffer("n", torch.tensor(0.0))

    def forward(self, x):
        if torch.is_grad_enabled() or not self.with_gradients:
            self.n += 1
        return super().forward(x) * (1 + 0.1 * self.n)


class HookedTensor(nn.Module):
    """A hook on a tensor, which counts its calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.n = nn.Linear(64, 8), nn.Linear(8, 10), 0

    def count(self, slope):
        self.n += 1
        return slope * (1 + self.n)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).tanh()
        if hidden.requires_grad:
            hidden.register_hook(self.count)
        return self.second(hidden)


class OfClass(nn.Sequential):
    """Changes an attribute of its class."""

    seen = 0

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        type(self).seen += 1
        return super().forward(x)


class Holder:
    def __init__(self):
        self.n, self.lock = 0, threading.Lock()


class Holding(nn.Sequential):
    """Changes an object that cannot be pickled."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.holder = Holder()

    def forward(self, x):
        self.holder.n += 1
        return super().forward(x) * self.holder.n


class BackwardBuffer(nn.Sequential):
    """Changes a buffer in a gradient hook."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("size", torch.zeros(()))

    def forward(self, x):
        outputs = super().forward(x)
        if outputs.requires_grad:
            outputs.register_hook(lambda slope: self.size.add_(slope.norm()) and None)
        return outputs


class Captured(nn.Module):
    """A hook fills a dictionary that it knows itself, and `forward` reads that of the module."""

    def __init__(self):
        super().__init__()
        self.layer, self.outputs = nn.Linear(64, 10), {}
        outputs = self.outputs
        self.layer.register_forward_hook(lambda _, inputs, output: outputs.update(last=output))

    def forward(self, x):
        self.layer(x.flatten(1))
        return self.outputs["last"]


class Late(nn.Sequential):
    """Creates a parameter in its first call."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        if len(self) == 2:
            self.append(nn.Linear(10, 10))
        return super().forward(x)


class Reading(nn.Module):
    """Embedding of tokens, where 0 is padding. kind: part that depends on the other samples, or on the padding."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.table, self.head = kind, nn.Embedding(10, 8, padding_idx=0), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) if kind == "mask" else None
        self.register_buffer("counts", torch.zeros(10))

    def forward(self, x):
        if self.kind == "assign":
            x[x == 11] = 0
        rows = self.table(x)
        if self.kind == "mask":
            rows = self.layer(rows, src_key_padding_mask=x == 0)
        if self.kind == "lengths":
            lengths = (x != 0).sum(1)
            rows = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
            rows = nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1])[0]
        if self.kind == "count" and self.training:
            self.counts.index_add_(0, x[x != 0], torch.ones(int((x != 0).sum())))
        hidden = rows.mean(1) / (1 + self.counts.max())
        return self.head(hidden - hidden.mean(0) if self.kind == "centre" else hidden)
