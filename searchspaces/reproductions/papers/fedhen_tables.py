"""FedHeN's tables 4.1 and 4.2: rounds in which the simple and the complex network reach accuracies (thesis, chapter 4);
and what either reaches with all samples, or half of them, in one place.

Batch size, weight decay and Dirichlet's parameter are not printed: they are those of the thesis's other experiments.
"""

from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]
Row = tuple[float, str, str, str]

HEADINGS = ("FedHeN", "Decouple", "NoSide")
TITLES = {"T4.1": "two architectures, IID", "T4.2": "two architectures, Dirichlet .3"}
PRINTED: dict[tuple[str, str, str], list[Row]] = {
    ("T4.1", "simple", "cifar10"): [(0.844, "289", "943", "805"), (0.834, "249", "731", "669")],
    ("T4.1", "simple", "cifar100"): [(0.464, "296", "864", "984"), (0.454, "250", "588", "807")],
    ("T4.1", "complex", "cifar10"): [(0.885, "649", "991", "941"), (0.875, "456", "739", "669")],
    ("T4.1", "complex", "cifar100"): [(0.468, "468", "963", "614"), (0.458, "376", "752", "472")],
    ("T4.2", "simple", "cifar10"): [(0.794, "295", "986", "810"), (0.784, "256", "816", "676")],
    ("T4.2", "simple", "cifar100"): [(0.438, "278", "978", "914"), (0.428, "239", "813", "762")],
    ("T4.2", "complex", "cifar10"): [(0.842, "596", "1000", "857"), (0.832, "519", "887", "751")],
    ("T4.2", "complex", "cifar100"): [(0.448, "450", "997", "498"), (0.438, "372", "754", "456")],
}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
PARTITIONS: dict[str, Section] = {
    "T4.1": {"kind": "iid", "clients": 100},
    "T4.2": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
}
SMALL: dict[str, Section] = {
    "digits": {
        "data": {"name": "digits"},
        "model": {"name": "resnet_exit", "channels": [8, 16], "blocks": [1, 1], "exit_after": 1},
    },
    "cifar10-small": {
        "data": {"name": "cifar10"},
        "model": {"name": "resnet_exit", "channels": [8, 16, 32], "blocks": [1, 1, 1]},
    },
}
"""For a laptop: both networks after as many rounds as there is time for."""
CENTRAL = {
    ("complex", "all"): {"cifar10": "93%", "cifar100": "73.5%"},
    ("complex", "half"): {"cifar10": "90.5%", "cifar100": "62.6%"},
    ("simple", "all"): {"cifar10": "86%", "cifar100": "63.2%"},
    ("simple", "half"): {"cifar10": "84.5%", "cifar100": "55.7%"},
}
HALF = {"cifar10": 25_000, "cifar100": 25_000, "digits": 719}

METRICS = {"complex": "test_accuracy", "simple": "simple_test_accuracy"}
REMARK = "clients 1 to 50 have the simple network, 51 to 100 the complex one; ten take part in a round"
ALONE = "the source does not say how the networks alone are trained: here 200 epochs, decay .99"
FINAL = "published of FedHeN within 1000 rounds, CIFAR-10, IID: simple 88.6 %, complex 89.6 %"


@cache
def fedhen_tables() -> dict[str, Table]:
    """By name: T4.1, T4.2, central."""
    printed = {
        name: Table(
            f"fedhen/{name}",
            title,
            [_line(*key, rows) for key, rows in PRINTED.items() if key[0] == name]
            + [_small(name, data) for data in SMALL],
        )
        for name, title in TITLES.items()
    }
    return {**printed, "central": _central()}


def _line(table: str, which: str, data: str, rows: list[Row]) -> Line:
    published: dict[float | None, dict[str, str]] = {
        target: dict(zip(HEADINGS, printed, strict=True)) for target, *printed in rows
    }
    task = {"data": {"name": data}, "model": {"name": "resnet_exit"}}
    targets = [target for target, *_ in rows]
    values = _values(table, which, task, targets, 1000)
    return Line(
        f"{data}-{which}",
        f"{DATA[data]}, {which}",
        values,
        _methods(),
        published=published,
        remark=f"{REMARK}; {FINAL}" if (table, data) == ("T4.1", "cifar10") else REMARK,
        unit="rounds",
    )


def _small(table: str, data: str) -> Line:
    values = _values(table, "complex", SMALL[data], [], 100)
    title = f"{data.removesuffix('-small')}, small networks"
    return Line(data, title, values, _methods(batch_size=10 if data == "digits" else 50), remark=REMARK, unit="rounds")


def _methods(**local: Any) -> dict[str, Section]:
    common = {"lr": 0.1, "epochs": 5, "batch_size": 50, "weight_decay": 1e-3, "clip_norm": 10.0, "latest": True}
    return {heading: {"name": heading.lower(), **common, **local} for heading in HEADINGS}


def _values(table: str, which: str, task: Section, targets: list[float], rounds: int) -> Section:
    return {
        "rounds": rounds,
        "participation": 0.1,
        "task": {**task, "partition": PARTITIONS[table]},
        "evaluation": {"clients": 0, "targets": targets, "target_metric": METRICS[which]},
        "checkpoints": {"every": 100, "keep": 1},
    }


def _central() -> Table:
    lines = [
        _alone(which, share, data, {"data": {"name": data}, "model": {"name": "resnet_exit"}}, 50, accuracy)
        for (which, share), accuracies in CENTRAL.items()
        for data, accuracy in accuracies.items()
    ]
    lines += [_alone(which, share, "digits", SMALL["digits"], 10) for which, share in CENTRAL]
    return Table("fedhen/central", "either network alone, with all samples or half of them; a round is an epoch", lines)


def _alone(which: str, share: str, data: str, task: Section, batch_size: int, accuracy: str = "") -> Line:
    """One network and one client, who has all the samples: Decouple is then SGD on them."""
    samples = None if share == "all" else HALF[data]
    section = {
        "name": "decouple", "simple": float(which == "simple"), "lr": 0.1, "lr_decay": 0.99, "epochs": 1,
        "batch_size": batch_size, "weight_decay": 1e-3, "clip_norm": 10.0,
    }  # fmt: skip
    values = {
        "rounds": 200 if accuracy else 50,
        "participation": 1.0,
        "task": {**task, "partition": {"kind": "iid", "clients": 1, "samples_per_client": samples}},
        "evaluation": {"clients": 0, "target_metric": METRICS[which]},
        "checkpoints": {"every": 50, "keep": 1},
    }
    published: dict[Any, dict[str, str]] = {None: {"central": accuracy}} if accuracy else {}
    title = f"{DATA.get(data, data)}, {which}, {share}" + ("" if share == "all" else " of the samples")
    remark = ALONE if accuracy else ""
    return Line(f"{data}-{which}-{share}", title, values, {"central": section}, published, {}, remark, unit="rounds")
