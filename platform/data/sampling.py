"""Randomness outside client steps, keyed by its purpose and never by the order of draws."""

from zlib import crc32

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: np.ndarray) -> np.ndarray:
    """Finaliser of SplitMix64 (Steele, Lea, Flood, 2014): a bijection of 64-bit words that scatters their bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keyed_hash(*keys: int | str | np.ndarray) -> np.ndarray:
    """Counter-based hash: 64 random bits (uint64) for each combination of the broadcast keys."""
    with np.errstate(over="ignore"):
        state = np.zeros((), np.uint64)
        for key in keys:
            word = np.asarray(crc32(key.encode()) if isinstance(key, str) else key).astype(np.uint64)
            state = _mix(state * _GOLDEN + _mix(word + _GOLDEN))
        return state


def view_keys(spec: BatchSpec, key: tuple[int | str, ...], clients: np.ndarray, steps: int) -> np.ndarray:
    """Random keys of the views of each mini-batch: 32 bits in int64, (C, steps, views)."""
    bits = keyed_hash(*key, "view", clients[:, None, None], np.arange(steps)[:, None], np.arange(spec.views))
    return (bits >> np.uint64(32)).astype(np.int64)


def client_keys(key: tuple[int | str, ...], clients: np.ndarray) -> np.ndarray:
    """64 random bits for each client of an exchange, as two 32-bit words in int64, (C, 2).

    key: seed, round and number of the exchange.
    """
    bits = keyed_hash(*key, "client", clients)
    return np.stack([bits >> np.uint64(32), bits & np.uint64(2**32 - 1)], axis=1).astype(np.int64)


def sample_clients(seed: int, round: int, population: int, count: int) -> np.ndarray:
    """Cohort of a round: `count` of `population` ids, uniform without replacement, in ascending order.

    Depends only on (seed, round). Time and memory are proportional to `count`, not to the population.
    """
    if count == population:
        return np.arange(population)
    rng = np.random.default_rng([seed, crc32(b"cohort"), round])
    return np.sort(rng.choice(population, count, replace=False, shuffle=False))


def poisson_clients(seed: int, round: int, population: int, probability: float) -> np.ndarray:
    """Cohort of a round in which each client takes part independently with this probability; ids in ascending order."""
    draws = keyed_hash(seed, "poisson", round, np.arange(population)) >> np.uint64(11)
    return np.flatnonzero(draws.astype(np.float64) / 2**53 < probability)


def steps_per_client(spec: BatchSpec, sizes: np.ndarray) -> np.ndarray:
    """Number of mini-batches that each client of the given sizes draws."""
    per_epoch = -(-sizes // (spec.size or max(1, int(sizes.max(initial=1)))))
    return per_epoch * spec.epochs if spec.steps is None else np.where(sizes > 0, spec.steps, 0)


def draw_pooled_batches(
    spec: BatchSpec, key: tuple[int | str, ...], clients: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Draws mini-batches for a chunk of clients from the samples of the clients in `spec.of`, who own `sizes` samples.

    Returns the owner of each sample (position in `spec.of`), its position among the owner's samples, and the mask of
    real samples; all (C, steps, size). Each mini-batch is drawn independently, without replacement; if `mixed`, with
    replacement.
    """
    total, ends = int(sizes.sum()), np.cumsum(sizes)
    size = spec.size or (total if spec.mixed else int(sizes.max()))
    steps = spec.steps or spec.epochs * -(-total // size)
    who, step = clients[:, None, None], np.arange(steps)[:, None]
    if spec.mixed:
        tickets = np.broadcast_to(np.arange(size), (len(clients), steps, size))
        if spec.size is not None:
            tickets = (keyed_hash(*key, who, step, np.arange(size)) % np.uint64(total)).astype(np.int64)
        owners = np.searchsorted(ends, tickets, side="right")
        return owners, tickets - (ends - sizes)[owners], np.ones(owners.shape, bool)
    member = (keyed_hash(*key, "of", who, step) % np.uint64(len(sizes))).astype(np.int64)  # (C, steps, 1)
    available = sizes[member]
    samples = np.arange(int(sizes.max()))
    bits = np.where(samples < available, keyed_hash(*key, who, step, samples), np.uint64(2**64 - 1))
    positions = np.argsort(bits, axis=-1, kind="stable")[:, :, :size]
    mask = np.arange(positions.shape[-1]) < available
    return np.broadcast_to(member, positions.shape), np.where(mask, positions, 0), mask


def draw_batches(
    spec: BatchSpec, key: tuple[int | str, ...], clients: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Draws mini-batches for a chunk of clients.

    clients, sizes: (C,). Returns positions (C, steps, size) into each client's own samples, int64, and the mask of real
    samples, bool. Within an epoch every sample occurs once; the last batch of an epoch may be smaller. A client's draws
    depend on `key` and its id, not on the other clients of the chunk.
    """
    widest = int(sizes.max(initial=1))
    size = min(spec.size or widest, max(widest, 1))
    per_epoch = np.maximum(-(-sizes // size), 1)
    steps = steps_per_client(BatchSpec(size=size, epochs=spec.epochs, steps=spec.steps), sizes)
    total = int(steps.max(initial=0))
    epochs = int((-(-steps // per_epoch)).max(initial=0))

    step = np.arange(total)
    epoch = step // per_epoch[:, None]  # (C, steps)
    within = (step % per_epoch[:, None])[:, :, None] * size + np.arange(size)  # (C, steps, size)
    mask = (within < sizes[:, None, None]) & (step < steps[:, None])[:, :, None]
    within = np.where(mask, within, 0)
    if not spec.shuffle:
        return within, mask
    samples = np.arange(widest)
    bits = keyed_hash(*key, clients[:, None, None], np.arange(epochs)[:, None], samples)  # (C, epochs, widest)
    bits = np.where(samples < sizes[:, None, None], bits, np.uint64(2**64 - 1))
    permutations = np.argsort(bits, axis=-1, kind="stable")
    rows = np.arange(len(clients))[:, None, None]
    return np.where(mask, permutations[rows, np.minimum(epoch, max(epochs - 1, 0))[:, :, None], within], 0), mask
