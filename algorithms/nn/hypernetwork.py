"""Hypernetwork that computes which channels of a model are on, and reads its layers as a sequence (Gao et al.,
"Disentangled Differentiable Network Pruning", 2022).
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.task import Params

INPUTS, HIDDEN = 64, 128

OFFSET, TEMPERATURE = 3.0, 0.4
"""All channels are initially on. The published network adds Gumbel noise, which is omitted here."""


def initial(sizes: Mapping[str, int]) -> Params:
    """Returns the initial parameters for spaces of these sizes; they are the same for all clients."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int, bound: float) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) * bound

    gates = 3 * HIDDEN
    w: Params = {}
    for direction in ("forward", "backward"):
        shapes = {"input": (gates, INPUTS), "input_bias": (gates,), "hidden": (gates, HIDDEN), "hidden_bias": (gates,)}
        w |= {f"{direction}.{name}": uniform(*shape, bound=HIDDEN**-0.5) for name, shape in shapes.items()}
    w |= {"norm.weight": torch.ones(2 * HIDDEN), "norm.bias": torch.zeros(2 * HIDDEN)}
    for space, size in sizes.items():
        w[f"out.{space}"] = uniform(size, 2 * HIDDEN, bound=(2 * HIDDEN) ** -0.5)
        w[f"gain.{space}"] = w[f"out.{space}"].norm(dim=1)
    return w


def inputs(spaces: int) -> Tensor:
    """Returns the fixed inputs (spaces, INPUTS): orthogonal rows, if there are at most INPUTS spaces."""
    generator = torch.Generator().manual_seed(1)
    size = max(spaces, INPUTS)
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0][:spaces, :INPUTS]


def shares(w: Params, z: Tensor, spaces: list[str]) -> dict[str, Tensor]:
    """How far each channel is on, in [0, 1]: space -> (channels,). z: inputs, one row per space."""
    forward = _read(w, "forward", list(z))
    backward = _read(w, "backward", list(z.flip(0)))[::-1]
    on = {}
    for space, *states in zip(spaces, forward, backward, strict=True):
        features = F.relu(F.layer_norm(torch.cat(states), (2 * HIDDEN,), w["norm.weight"], w["norm.bias"]))
        rows = w[f"out.{space}"]
        out = (w[f"gain.{space}"] / rows.norm(dim=1)) * (rows @ features)
        on[space] = switched(out)
    return on


def switched(out: Tensor) -> Tensor:
    """Converts one number per channel to how far the channel is on, in [0, 1]."""
    return torch.sigmoid((out + OFFSET) / TEMPERATURE)


def _read(w: Params, direction: str, rows: list[Tensor]) -> list[Tensor]:
    """States of a gated recurrent unit (Cho et al., 2014) after each row."""
    h = torch.zeros(HIDDEN, device=rows[0].device)
    states = []
    for row in rows:
        r, z, n = (w[f"{direction}.input"] @ row + w[f"{direction}.input_bias"]).chunk(3)
        hr, hz, hn = (w[f"{direction}.hidden"] @ h + w[f"{direction}.hidden_bias"]).chunk(3)
        z = torch.sigmoid(z + hz)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
        states.append(h)
    return states
