"""Studies of FedBiO and what it is compared with: data cleaning, with one lower level for all clients, and
hyper-representation learning, with one per client. The paper prints no experiments: tasks and settings are this
project's. `--grid` searches each method's learning rates, as many configurations for each.
"""

from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

STEPS = {"steps": 5, "batch_size": 50, "share_batches": True}
CLEANING = {**STEPS, "lr": 0.1, "upper_lr": 300.0, "u_lr": 0.03, "ridge": 0.01}
CLEANERS: dict[str, Section] = {
    "FedBiOAcc": {"name": "fedbioacc", "lr": 0.3, "upper_lr": 1000.0},
    "FedBiO": {"name": "fedbio"},
    "FedNest": {"name": "fednest", "u_steps": 10, "anchor_batch_size": 50},
    "LFedNest": {"name": "lfednest", "neumann_terms": 10},
    "local": {"name": "local_bo", "neumann_terms": 10},
    "full": {"name": "full_hypergradient", "u_steps": 5},
    "MRBO (pooled)": {"name": "mrbo", "neumann_terms": 10, "lr": 0.3, "upper_lr": 1000.0},
    "StocBiO (pooled)": {"name": "stocbio", "neumann_terms": 10},
}
PLAIN: Section = {"name": "fedavg", "lr": 0.1, "epochs": None, "steps": 5, "batch_size": 50, "weight_decay": 0.01}
REPRESENTATION = {
    **STEPS,
    **{"batch_size": 20, "lr": 0.1, "upper_lr": 0.1, "u_lr": 0.01, "neumann_terms": 3, "ridge": 0.01},
    # As features grow, so does the Hessian of the heads, until the Neumann series no longer converges.
    "clip_norm": 1.0,
}
REPRESENTERS: dict[str, Section] = {
    "FedBiOAcc-Local": {"name": "fedbioacc_local"},
    "FedBiO-Local": {"name": "fedbio_local"},
    "FedBiOAcc-Local, I = 1": {"name": "fedbioacc_local", "steps": 1},
    "FedBiO-Local, I = 1": {"name": "fedbio_local", "steps": 1},
    "MRBO (pooled)": {"name": "mrbo"},
    "StocBiO (pooled)": {"name": "stocbio"},
}
LOGREG = {"name": "logreg"}
REMARK = (
    "the pooled methods have one head for all classes, scored on the shared test set; the others one per client, "
    "scored on what the client holds out"
)


@cache
def fedbio_tables() -> dict[str, Table]:
    """By name: cleaning and hyper-representation."""
    cleaning = [
        _cleaning("mnist", "MNIST, 40 % wrong labels", {"samples_per_client": 600}),
        _cleaning("mnist-harsh", "MNIST, validation by class", {"samples_per_client": 600, "validation_by": "class"}),
        _cleaning("digits", "digits, 40 % wrong labels", {}),
        _cleaning("digits-harsh", "digits, validation by class", {"validation_by": "class"}),
    ]
    representation = [
        _representation(
            "omniglot",
            "Omniglot, 5 characters per client",
            {"name": "omniglot", "test_fraction": 0.05},
            {"name": "cnn", "channels": [16, 16], "kernel": 3, "padding": 1, "fc": [64]},
            20,
        ),
        _representation(
            "digits", "digits, 3 classes per client", {"name": "digits"}, {"name": "mlp", "hidden": [64]}, 10
        ),
    ]
    titles = {
        "fedbio/cleaning": "data cleaning: test accuracy, and finding wrong labels",
        "fedbio/representation": "hyper-representation: accuracy of the clients' own heads",
    }
    lines = {"fedbio/cleaning": cleaning, "fedbio/representation": representation}
    return {name.partition("/")[2]: Table(name, title, lines[name]) for name, title in titles.items()}


def _cleaning(name: str, title: str, partition: Section) -> Line:
    data = name.partition("-")[0]
    task = {
        "data": {"name": data},
        "partition": {"kind": "iid", "clients": 10, "validation": 1 / 6, "label_noise": 0.4, **partition},
        "model": LOGREG,
        "problem": {"kind": "cleaning"},
    }
    methods = {heading: {**CLEANING, **section} for heading, section in CLEANERS.items()}
    methods["FedAvg"] = PLAIN
    grids = {heading: f"{section['name']}/cleaning_study" for heading, section in methods.items()}
    return Line(name, title, _values(task, 300, clients=0), methods, grids=grids)


def _representation(name: str, title: str, data: Section, model: Section, clients: int) -> Line:
    partition = {"kind": "labels", "clients": clients, "labels_per_client": 5 if name == "omniglot" else 3}
    task = {
        "data": data,
        "partition": {**partition, "validation": 0.4, "holdout": 0.2},
        "model": model,
        "problem": {"kind": "hyper_representation"},
    }
    methods = {heading: {**REPRESENTATION, **section} for heading, section in REPRESENTERS.items()}
    grids = {heading: f"{section['name']}/representation_study" for heading, section in methods.items()}
    return Line(name, title, _values(task, 100, clients=100), methods, grids=grids, remark=REMARK)


def _values(task: Section, rounds: int, clients: int) -> Section:
    return {
        "rounds": rounds,
        "participation": 1.0,
        "task": task,
        "evaluation": {"every": 10, "clients": clients},
        "checkpoints": {"every": 100, "keep": 1},
    }
