"""FedSep's table 1 and figure 5: clients of five capacities learn one ResNet. What the paper leaves open is FedRolex's,
whose protocol it follows; the lines with a small ResNet, for a laptop, are this project's.
"""

from typing import Any

from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

HEADINGS = [
    "FedDF", "DS-FL", "Fed-ET", "HeteroFL", "Federated Dropout", "ZeroFL", "FedDST", "Flash", "FedRolex", "FedSep",
    "smallest", "largest",
]  # fmt: skip
PUBLISHED: dict[tuple[str, int], list[float]] = {
    ("cifar10", 2): [73.81, 65.27, 78.66, 63.90, 46.64, 64.61, 67.65, 67.08, 69.44, 71.13, 38.82, 75.74],
    ("cifar100", 20): [31.87, 29.12, 35.78, 52.38, 45.07, 51.39, 54.21, 54.92, 56.57, 58.16, 12.69, 60.89],
    ("cifar10", 5): [76.55, 68.44, 81.13, 73.19, 76.20, 83.31, 84.57, 84.61, 84.45, 84.61, 46.86, 84.48],
    ("cifar100", 50): [37.87, 33.56, 41.58, 57.44, 46.40, 53.62, 54.97, 55.04, 58.73, 61.41, 19.70, 62.51],
}
METHODS: dict[str, Section] = {
    "FedDF": {"name": "feddf"},
    "DS-FL": {"name": "ds_fl"},
    "Fed-ET": {"name": "fed_et"},
    "HeteroFL": {"name": "heterofl"},
    "Federated Dropout": {"name": "federated_dropout"},
    "ZeroFL": {"name": "zerofl"},
    "FedDST": {"name": "feddst"},
    "Flash": {"name": "flash"},
    "FedRolex": {"name": "fedrolex"},
    "FedSep": {"name": "fedsep_masks"},
    "smallest": {"name": "heterofl", "capacities": [0.0625]},
    "largest": {"name": "heterofl", "capacities": [1.0]},
}
CLASSES = {"cifar10": [2, 4, 5, 8], "cifar100": [5, 10, 20, 50]}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
SMALL = {"name": "resnet_static", "channels": [16, 32, 64], "blocks": [1, 1, 1]}
REMARK = (
    "100 clients, 10 in a round, whose capacities are drawn anew in each, but once for FedDF, DS-FL and Fed-ET; these "
    "learn from public samples too, which are held back from all; parameters are averaged over who holds them; "
    "smallest and largest: all clients have that capacity"
)
OF_LARGE = "; published: ResNet-18, and more than 1600 rounds"


def model_tables() -> dict[str, Table]:
    """By name: T1, F5."""
    first = [_line(data, classes) for data, classes in PUBLISHED]
    first += [_line("cifar10", classes, small=True) for classes in (2, 5)]
    each = [(data, number) for data, some in CLASSES.items() for number in some]
    return {
        "T1": Table("fedsep/T1", "clients of five capacities: test accuracy of the server's model", first),
        "F5": Table(
            "fedsep/F5",
            "FedSep with more and fewer classes per client",
            [_line(data, number, only="FedSep") for data, number in each],
        ),
    }


def _line(data: str, classes: int, small: bool = False, only: str | None = None) -> Line:
    chosen = {only: METHODS[only]} if only else METHODS
    methods = {heading: {**section, **_local(heading, data, classes, small)} for heading, section in chosen.items()}
    printed = zip(HEADINGS, PUBLISHED.get((data, classes), []), strict=False)
    of_methods = {heading: f"{value:.2f}" for heading, value in printed if heading in methods}
    published: dict[float | None, dict[str, str]] = {None: of_methods}
    title = f"{TITLES[data]}, {classes} classes per client" + (", small ResNet" if small else "")
    name = f"{data}-{classes}" + ("-small" if small else "")
    values: Section = {
        "rounds": 100 if small else 2500,
        "clients_per_round": 10,
        "task": {
            "data": {"name": data},
            "partition": {"kind": "labels", "clients": 100, "labels_per_client": classes},
            "model": SMALL if small else {"name": "resnet_static"},
            "public": {"samples": 5000},
        },
        "evaluation": {"every": 10, "clients": 20},
        "checkpoints": {"every": 50, "keep": 1},
    }
    return Line(name, title, values, methods, published={} if only else published, remark=REMARK + OF_LARGE * small)


def _local(heading: str, data: str, classes: int, small: bool) -> Section:
    common: Section = {"optimizer": "adam", "epochs": 1, "batch_size": 10, "weight_decay": 1e-3, "clip_norm": 1.0}
    if small:
        # The server's steps of distillation would take longer than the clients' training.
        few = {"FedDF": {"distillation": {"steps": 20}}, "Fed-ET": {"distillation": {"steps": 20}}}
        return {**common, "lr": 1e-3, "batch_size": 20, **few.get(heading, {})}
    lr = 1e-4 if data == "cifar10" and classes <= 4 else 2e-4
    return {**common, "lr": lr, "lr_decay": 0.25, "lr_decay_after": [800, 1600] if data == "cifar10" else [1200, 1800]}
