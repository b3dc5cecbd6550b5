"""Randomness inside a client step: a counter-based hash of keys, the same in a loop, under vmap and in every run; and
torch's generator, seeded for the model's own layers.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor

STRIDE = 0x9E3779B9

CPU = torch.device("cpu")

_generator = RLock()
"""Held while torch's generator, which all threads share, is seeded and drawn from."""


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Context in which torch's generator, also that of a GPU, starts from a seed. It then continues as before."""
    is_gpu = device.type == "cuda"
    with _generator, torch.random.fork_rng(devices=[device] if is_gpu else []):
        torch.default_generator.manual_seed(seed)
        if is_gpu:
            torch.cuda.manual_seed(seed)
        yield


def other_generators() -> Any:
    """States of the generators of Python and NumPy, which nothing seeds."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, bytes(words), tuple(rest)  # type: ignore[arg-type]


def subkey(key: Tensor, purpose: int) -> Tensor:
    """Derives another key of 64 bits, (2,), for a purpose (32 bits). key: `ClientData.key`."""
    return torch.stack(derived(key.unbind(0), purpose))


def derived(key: Any, purpose: int) -> tuple[Any, Any]:
    """Same as `subkey` for the two words of a key, as integers or as 0-d tensors."""
    first, second = key
    first = scattered(scattered(first ^ purpose) ^ second)
    return first, scattered(first ^ second ^ STRIDE)


def bits(key: Tensor, n: int, purpose: int = 0) -> Tensor:
    """Returns n words of 32 random bits, stored in int64, (n,). key: (2,), of 64 bits."""
    first, second = key.unbind(0)
    at = torch.arange(n, device=key.device)
    return scattered(scattered(scattered(scattered(at) ^ first) ^ second) ^ ((purpose * STRIDE) & WORD))


def gaussian(key: Tensor, n: int, purpose: int = 0) -> Tensor:
    """Standard normal numbers (n,), float32. key: (2,), of 64 bits."""
    return box_muller(bits(key, n, 2 * purpose), bits(key, n, 2 * purpose + 1))


def random_words(key: Tensor, at: Tensor, purpose: int) -> Tensor:
    """Returns 32 random bits, stored in int64, for each entry of `at`.

    key: 0-d, int64, 32 bits.
    at: integers of any shape, such as rows of the data set.
    purpose: number that makes the draws of different uses independent.
    """
    return scattered(scattered(scattered(at & WORD) ^ key) ^ ((purpose * STRIDE) & WORD))


def uniform(key: Tensor, at: Tensor, purpose: int) -> Tensor:
    """Returns uniform numbers in [0, 1), float32, for each entry of `at`; arguments as in `random_words`."""
    # float32 represents 24 bits exactly; with all 32, the largest value would be rounded to 1.
    return (random_words(key, at, purpose) >> 8).float() / 2**24


def randint(n: int, key: Tensor, at: Tensor, purpose: int) -> Tensor:
    """Returns integers from 0 to n - 1 for each entry of `at`; other arguments as in `random_words`."""
    return (random_words(key, at, purpose) * n) >> 32


def normal(key: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Standard normal numbers of a batch's `shape`; those of a sample depend on its row only."""
    entries = torch.arange(math.prod(shape[1:]), device=rows.device)
    at = scattered(rows & WORD)[:, None] ^ entries
    return box_muller(random_words(key, at, 0), random_words(key, at, 1)).view(shape)


def box_muller(first: Tensor, second: Tensor, divisor: int = 1) -> Tensor:
    """Normal numbers of variance 1 / divisor, float32, from words of 32 random bits (Box and Muller, 1958)."""
    radius = (-2 * ((first.double() + 0.5) / 2**32).log() / divisor).sqrt()
    return (radius * (second.double() * (2 * math.pi / 2**32)).cos()).float()


WORD = 2**32 - 1


def scattered(x: Any) -> Any:
    """Bijection of 32-bit words, stored in int64 or int, that scatters their bits (Wellons, "lowbias32", 2018)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)
