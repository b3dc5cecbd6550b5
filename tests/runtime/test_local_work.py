"""The samples that a round draws are counted as they are drawn, and noisy validation scores a subset of the clients."""

import numpy as np
import pytest

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Exchange
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import draw_batches, draw_pooled_batches, sample_clients
from hedgerow.platform.data.validation_noise import ValidationNoise
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.exchange_costs import drawn_samples
from hedgerow.platform.runtime.factory import check

SIZES = np.array([7, 1, 12, 5])
CLIENTS = np.array([0, 1, 3])


def exchange(on: str = "clients", **streams: BatchSpec) -> Exchange:
    clients = np.array([0]) if on == "pool" else CLIENTS
    return Exchange(lambda hp, down, state, data: (down, state, {}), {}, clients, batches=streams, site=on)


def splits() -> dict:
    sizes = {"train": SIZES, "selection": SIZES // 2, "public": np.full(4, 9)}
    return {split: Slices(np.zeros_like(own), own) for split, own in sizes.items()}


@pytest.mark.parametrize(
    "spec",
    [
        BatchSpec(size=3, epochs=2),
        BatchSpec(size=3, steps=1),
        BatchSpec(size=3, steps=8),
        BatchSpec(size=50, steps=2),
        BatchSpec(epochs=3),
        BatchSpec(steps=2),
    ],
)
def test_counted_samples_are_the_real_samples_of_the_drawn_batches(spec):
    _, mask = draw_batches(spec, (0, 1, 0, "train"), CLIENTS, SIZES[CLIENTS])
    assert drawn_samples(exchange(train=spec), splits()) == mask.sum()
    # Streams add up.
    assert drawn_samples(exchange(train=spec, other=spec), splits()) == 2 * mask.sum()


def test_pools_public_samples_and_evaluations_are_counted_by_what_they_use():
    assert drawn_samples(exchange("pool", train=BatchSpec(size=4)), splits()) == SIZES.sum()
    assert drawn_samples(exchange(public=BatchSpec(size=4, split="public", epochs=2)), splits()) == 3 * 2 * 9
    assert drawn_samples(exchange("test", train=BatchSpec(size=4)), splits()) == 0
    for spec in (
        BatchSpec(size=4, steps=5, pooled_from=(0, 2), mixed=True),
        BatchSpec(pooled_from=(0, 2), mixed=True),
        BatchSpec(size=4, pooled_from=(0, 2)),
    ):
        _, _, mask = draw_pooled_batches(spec, (0, 1, 0, "train"), CLIENTS, SIZES[[0, 2]])
        assert drawn_samples(exchange(train=spec), splits()) == mask.sum()


def coordinator(**algorithm):
    values = {
        "name": "work",
        "rounds": 2,
        "clients_per_round": 0.4,
        "task": {
            "data": {"name": "digits", "test_fraction": 0.5},
            "partition": {"kind": "dirichlet", "clients": 10, "alpha": 0.5, "samples_per_client": 30},
            "model": {"name": "mlp", "hidden": [8]},
            "validation": {"fraction": 0.3, "from": "clients"},
        },
        "algorithm": {"name": "fedavg", "batch_size": 8, **algorithm},
        "engine": {"mode": "loop"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }
    experiment = parse_experiment(values)
    return build_coordinator([experiment], *check(experiment, None), [None])


def test_records_have_the_samples_of_a_round_only_if_asked():
    plain, counting = coordinator(epochs=3), coordinator(epochs=3)
    counting.servers[0].counts_samples = True
    without, record = plain.next_round()[0], counting.next_round()[0]
    assert "sample_gradients" not in without
    clients = sample_clients(0, 1, 10, 4)
    assert record.pop("sample_gradients") == 3 * counting.servers[0].sizes[clients].sum()
    assert {**record, "seconds": 0} == {**without, "seconds": 0}


def test_a_noisy_evaluation_scores_the_drawn_clients_alone():
    plain, noisy = coordinator(), coordinator()
    server = noisy.servers[0]
    server.noise = ValidationNoise(0, 7, "validation_accuracy", clients=2)
    record, whole = noisy.next_round()[0], plain.next_round()[0]
    drawn = server.noise.subset(server._validated, 1)
    assert len(drawn) == 2
    # The same model, scored on the validation samples of these clients alone.
    alone = coordinator()
    alone.servers[0]._validated = drawn
    expected = alone.next_round()[0]
    assert record["validation_accuracy"] == expected["validation_accuracy"] != whole["validation_accuracy"]
    assert record["test_accuracy"] == whole["test_accuracy"]
