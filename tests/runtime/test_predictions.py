"""Predictions of an evaluation: those that its scores count, in the same order in a loop and batched."""

import numpy as np
import pytest
from helpers import without_clock
from numpy.testing import assert_allclose

from hedgerow.algorithms.core.messages import Predictions
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import check

ROUNDS = 2
FEDERATED = {"kind": "dirichlet", "clients": 6, "alpha": 0.3}
HELD_OUT = {**FEDERATED, "client_test_fraction": 0.3}
STREAM = {"kind": "stream", "tasks": ROUNDS, "ways": 5, "train": 20, "test": 20}
CASES = {
    "validation at the clients": ({"name": "fedavg"}, FEDERATED, {"fraction": 0.2, "from": "clients"}),
    "validation at the server": ({"name": "fedavg"}, FEDERATED, {"fraction": 0.2, "from": "server"}),
    "personal models": ({"name": "per_fedavg"}, HELD_OUT, {"fraction": 0.2, "from": "clients"}),
    "two models per client": ({"name": "ditto"}, HELD_OUT, {"fraction": 0.2, "from": "clients"}),
    "personal heads": ({"name": "fedper"}, HELD_OUT, {"fraction": 0.2, "from": "clients"}),
    "nearest prototypes": ({"name": "per_fedavg", "adapt": "proto"}, HELD_OUT, {"fraction": 0.2, "from": "clients"}),
    "slots": ({"name": "fedavg"}, FEDERATED, {"fraction": 0.2, "from": "clients"}),
    "stream": ({"name": "mogd"}, STREAM, None),
}


def evaluated(case: str, mode: str, tmp_path, keeps: bool = True) -> tuple[list[dict], list[Predictions | None]]:
    """Records without times, and the predictions of each round."""
    algorithm, partition, validation = CASES[case]
    values = {
        "name": "predictions",
        "rounds": ROUNDS,
        "task": {"data": {"name": "digits"}, "partition": partition, "model": {"name": "mlp", "hidden": [8]}},
        "algorithm": {**algorithm, "batch_size": 10},
        "engine": {"mode": mode},
        "resources": {"executor": "inline"},
    }
    if validation:
        values["task"]["validation"] = validation
        values["clients_per_round"] = "all"
    if case == "slots":
        values["transforms"] = [{"kind": "clip", "norm": 0.5}]
    experiment = parse_experiment(values)
    coordinator = build_coordinator(
        [experiment], *check(experiment, None), [tmp_path / f"{mode}-{keeps}" / "checkpoints"]
    )
    (server,) = coordinator.servers
    server.keeps_predictions = keeps
    predictions: list[Predictions | None] = []
    coordinator.on_round = lambda variant, server: predictions.append(server.predictions)
    for _ in range(ROUNDS):
        coordinator.run_round()
    return without_clock(server.history), predictions


@pytest.mark.parametrize("case", CASES)
def test_they_have_the_accuracy_and_the_loss_of_the_record_in_a_loop_and_batched(case, tmp_path):
    records, kept = evaluated(case, "loop", tmp_path)
    name = "test" if case == "stream" else "validation"
    for record, (log_probabilities, labels, _) in zip(records, kept, strict=True):
        right = log_probabilities[np.arange(len(labels)), labels]
        assert (log_probabilities.argmax(1) == labels).mean() == pytest.approx(record[f"{name}_accuracy"], abs=1e-9)
        assert -right.astype(float).mean() == pytest.approx(record[f"{name}_loss"], abs=1e-5)
        assert_allclose(np.exp(log_probabilities).sum(1), 1, atol=1e-5)
    _, batched = evaluated(case, "vmap", tmp_path)
    for one, other in zip(kept, batched, strict=True):
        assert np.array_equal(one.labels, other.labels)
        assert_allclose(one.log_probabilities, other.log_probabilities, atol=2e-4)


@pytest.mark.parametrize("case", ["validation at the clients", "stream"])
def test_keeping_them_changes_no_bit_of_the_records(case, tmp_path):
    records, kept = evaluated(case, "vmap", tmp_path)
    without, none = evaluated(case, "vmap", tmp_path, keeps=False)
    assert records == without
    assert none == [None] * ROUNDS
    assert None not in kept
