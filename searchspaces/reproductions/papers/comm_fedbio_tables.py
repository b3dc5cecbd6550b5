"""The experiments of Comm-FedBiO: accuracy of all methods at rate 20 (its figure 1), and how wrong labels are found
at other rates (figure 2). The paper prints no numbers, nor rounds, solver steps or the layout of its network: those are
this project's, and so are the lines with small models and with digits (at rate 5), for a laptop. FEMNIST, of which the
paper shows the same, has no loader here.
"""

from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

ESTIMATORS: dict[str, Section] = {
    "Iter-topK": {"name": "comm_fedbio_topk"},
    "Iter-sketch": {"name": "comm_fedbio_sketch"},
    "Non-iter": {"name": "comm_fedbio_non_iter"},
}
PLAIN: dict[str, Section] = {
    "FedAvg": {"name": "fedavg"},
    "FedAvg-Oracle": {"name": "fedavg_oracle"},
    "FOCUS": {"name": "focus"},
    "Preprocess": {"name": "preprocess"},
}
NOISES: dict[str, Any] = {"": 0.4, "-noniid": [0.2, 0.9]}
"""What the paper calls i.i.d. and non-i.i.d.: how many labels are wrong, alike or different among clients."""

CONV = {"name": "cnn", "channels": [64, 64, 64, 64], "kernel": 3, "padding": 1, "fc": []}
SETTINGS: dict[str, Section] = {
    "mnist": {"title": "MNIST", "data": {"name": "mnist"}, "model": CONV, "lr": 0.01, "batch": 256},
    "cifar10": {"title": "CIFAR-10", "data": {"name": "cifar10"}, "model": CONV, "lr": 0.01, "batch": 32},
    "mnist-mlp": {
        **{"title": "MNIST, MLP", "data": {"name": "mnist"}, "model": {"name": "mlp", "hidden": [128]}},
        **{"lr": 0.1, "batch": 256, "products": 128},
    },
    "cifar10-small": {
        **{"title": "CIFAR-10, small CNN", "data": {"name": "cifar10"}, "lr": 0.1, "batch": 32, "products": 32},
        "model": {"name": "cnn", "channels": [16, 32], "kernel": 3, "padding": 1, "fc": []},
        "solver": {"u_steps": 5, "power_steps": 2},
    },
    "digits": {
        **{"title": "digits", "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}},
        **{"lr": 0.1, "batch": 50, "per_client": None, "compression": 5},
    },
}
RATES = [1, 10, 20, 50, 100, 500, 1000]
REMARK = (
    "10 clients; the server's clean samples are what each of them sets aside, an eleventh; a wrong label is any other "
    "class; Gauss-Newton products; a message of a solver's step has so many times fewer numbers than the model"
)


@cache
def comm_fedbio_tables() -> dict[str, Table]:
    """By name: F1, F2."""
    first = [_line(setting, noise) for setting in SETTINGS for noise in NOISES]
    second = [
        _rates(setting, noise, heading)
        for setting in ("mnist", "mnist-mlp")
        for heading in ESTIMATORS
        for noise in NOISES
    ]
    return {
        "F1": Table("comm_fedbio/F1", "noisy labels: test accuracy, compressed 20 times", first),
        "F2": Table("comm_fedbio/F2", "F1 of finding wrong labels at compression rates from 1 to 1000", second),
    }


def _line(setting: str, noise: str) -> Line:
    given = SETTINGS[setting]
    methods = {heading: _robust(given, section) for heading, section in ESTIMATORS.items()}
    methods |= {heading: _plain(given, section) for heading, section in PLAIN.items()}
    space = "cifar10" if setting.startswith("cifar10") else "mnist"
    grids = {"FOCUS": f"focus/{space}", "Preprocess": f"preprocess/{space}"}
    values = _values(given, noise, 200)
    return Line(f"{setting}{noise}", _title(given, noise), values, methods, grids=grids, remark=REMARK)


def _rates(setting: str, noise: str, heading: str) -> Line:
    given = SETTINGS[setting]
    section = _robust(given, ESTIMATORS[heading])
    methods = {f"{rate}x": {**section, "compression": rate} for rate in RATES}
    name = f"{heading.lower()}-{setting}{noise}"
    title = f"{heading}, {_title(given, noise)}"
    return Line(name, title, _values(given, noise, 100), methods, remark=REMARK, shows="cleaning_f1")


def _title(given: Section, noise: str) -> str:
    share = NOISES[noise]
    return f"{given['title']}, " + ("20 to 90 % wrong labels" if isinstance(share, list) else "40 % wrong labels")


def _robust(given: Section, section: Section) -> Section:
    common = {"lr": given["lr"], "upper_lr": 0.1, "steps": 5, "batch_size": given["batch"], "ridge": 1e-3}
    common |= {"product_batch_size": given.get("products"), "compression": given.get("compression", 20)}
    solver = {} if section["name"] == "comm_fedbio_non_iter" else given.get("solver", {"u_steps": 10})
    return {**section, **common, **solver}


def _plain(given: Section, section: Section) -> Section:
    common = {"lr": given["lr"], "epochs": None, "steps": 5, "batch_size": given["batch"], "weight_decay": 1e-3}
    return {**section, **common, "weighting": "samples"}


def _values(given: Section, noise: str, rounds: int) -> Section:
    per_client = {"samples_per_client": given.get("per_client", 550)}
    return {
        "rounds": rounds,
        "participation": 1.0,
        "task": {
            "data": given["data"],
            "partition": {
                **{"kind": "iid", "clients": 10, "validation": 1 / 11, "label_noise": NOISES[noise]},
                **per_client,
            },
            "model": given["model"],
            "problem": {"kind": "cleaning", "weights": "clipped"},
        },
        "evaluation": {"every": 10, "clients": 0},
        "checkpoints": {"every": 100, "keep": 1},
    }
