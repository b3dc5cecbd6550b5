"""Side losses (thesis, 7.2): table 7.1, its missing cells and next steps, the central references, and their teachers.

A line with distillation asks the model that `hedgerow table side/teacher/...` of the same data left under runs/.

What the source leaves open, and what is taken here: 32 groups in every GroupNorm, no momentum, a teacher trained on
the pooled samples as the central references are; limits, noise and the lines on CIFAR-10 and on digits are this
project's.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

FEDAVG: Section = {"name": "fedavg"}
FEDDYN: Section = {"name": "feddyn", "alpha": 0.1}
OBJECTIVES: dict[str, Section] = {
    "distillation": {"kind": "distillation", "alpha": 0.1},
    "robustness": {"kind": "robustness", "alpha": 0.5},
    "both": {"kind": "both", "alpha": 0.1},
    "limited": {"kind": "robustness", "limit": 0.1},
    "stability": {"kind": "stability", "alpha": 0.5},
    "synthetic": {"kind": "synthetic", "alpha": 0.5},
    "disk": {"kind": "disk", "alpha": 0.1},
    "simkd": {"kind": "simkd", "alpha": 0.0},
    "simkd_disk": {"kind": "simkd_disk", "alpha": 0.0},
}
PRINTED: dict[str, Section] = {
    "FedAvg CE": FEDAVG,
    "FedDyn CE": FEDDYN,
    "FedAvg distillation": {**FEDAVG, "objective": OBJECTIVES["distillation"]},
    "FedAvg robustness": {**FEDAVG, "objective": OBJECTIVES["robustness"]},
    "FedDyn both": {**FEDDYN, "objective": OBJECTIVES["both"]},
}
ADDED: dict[str, Section] = {
    "FedAvg both": {**FEDAVG, "objective": OBJECTIVES["both"]},
    "FedDyn distillation": {**FEDDYN, "objective": OBJECTIVES["distillation"]},
    "FedDyn robustness": {**FEDDYN, "objective": OBJECTIVES["robustness"]},
}
NEXT: dict[str, Section] = {
    "FedAvg CE": FEDAVG,
    "FedDyn CE": FEDDYN,
    "FedAvg limited": {**FEDAVG, "objective": OBJECTIVES["limited"]},
    "FedDyn limited": {**FEDDYN, "objective": OBJECTIVES["limited"]},
    "FedAvg stability": {**FEDAVG, "objective": OBJECTIVES["stability"]},
    "FedDyn stability": {**FEDDYN, "objective": OBJECTIVES["stability"]},
}
SYNTHETIC: dict[str, Section] = {
    "FedAvg none": FEDAVG,
    "FedDyn none": FEDDYN,
    **{
        f"{name} Gaussian {ratio:g}": {**section, "objective": {**OBJECTIVES["synthetic"], "ratio": ratio}}
        for name, section in (("FedAvg", FEDAVG), ("FedDyn", FEDDYN))
        for ratio in (0.5, 1.0, 2.0)
    },
}
GUIDED: dict[str, Section] = {
    "FedAvg CE": FEDAVG,
    "FedDyn CE": FEDDYN,
    "FedAvg distillation": {**FEDAVG, "objective": OBJECTIVES["distillation"]},
    "FedAvg DiSK": {**FEDAVG, "objective": OBJECTIVES["disk"]},
    "FedDyn DiSK": {**FEDDYN, "objective": OBJECTIVES["disk"]},
    "FedAvg SimKD": {**FEDAVG, "objective": OBJECTIVES["simkd"]},
    "FedDyn SimKD": {**FEDDYN, "objective": OBJECTIVES["simkd"]},
    "FedAvg SimKD+DiSK": {**FEDAVG, "objective": OBJECTIVES["simkd_disk"]},
    "FedDyn SimKD+DiSK": {**FEDDYN, "objective": OBJECTIVES["simkd_disk"]},
}
CENTRAL: dict[str, Section] = {
    "CE": {},
    **{kind: {"objective": OBJECTIVES[kind]} for kind in ("distillation", "robustness", "both")},
}
ROUNDS: dict[float, list[str]] = {
    0.67: ["1634", "419", "403", "808", "250"],
    0.66: ["1071", "399", "381", "742", "241"],
}
PUBLISHED: dict[float | None, dict[str, str]] = {
    target: dict(zip(PRINTED, rounds, strict=True)) for target, rounds in ROUNDS.items()
}
AFTER_1200 = {"FedAvg CE": "66.4%", "FedDyn CE": "71.8%", "FedAvg distillation": "75.8%", "FedDyn both": "81.2%"}
ACCURACIES: dict[float | None, dict[str, str]] = {
    None: {"CE": "74.2%", "distillation": "81.2%", "robustness": "77.8%"}
}  # fmt: skip

TASKS: dict[str, Section] = {
    "cifar100": {
        "data": {"name": "cifar100"},
        "model": {"name": "preact_resnet"},
        "augment": {"crop": 4, "flip": True, "auto": True, "cutout": 16},
    },
    "cifar10": {
        "data": {"name": "cifar10"},
        "model": {"name": "preact_resnet", "channels": [8, 16, 32], "blocks": [1, 1, 1], "groups": 4},
        "augment": {"crop": 4, "flip": True, "cutout": 8},
    },
    "digits": {
        "data": {"name": "digits"},
        "model": {"name": "preact_resnet", "channels": [8, 16], "blocks": [1, 1], "groups": 4},
        "augment": {"crop": 1, "cutout": 2},
    },
}
TEACHERS: dict[str, Section] = {
    "cifar100": {"name": "preact_resnet", "blocks": [3, 4, 6, 3]},
    "cifar10": {"name": "preact_resnet", "channels": [16, 32, 64], "blocks": [1, 1, 1], "groups": 4},
    "digits": {"name": "preact_resnet", "channels": [16, 32], "blocks": [1, 1], "groups": 4},
}
DATA = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10, small network", "digits": "digits"}


@dataclass(frozen=True)
class Size:
    """How much is run on a data set: as published, or what a laptop does in minutes.

    labels: of each client. error: about that of FedAvg CE, the budget of guides. after: the round at which accuracies
    are compared; None: a run ends at its targets. epochs, pooled_batch: of all samples in one place.
    """

    labels: int
    rounds: int
    targets: list[float]
    batch_size: int
    epochs: int
    pooled_batch: int
    error: float
    after: int | None = None


SIZES = {
    "cifar100": Size(
        labels=100,
        rounds=1700,
        targets=list(ROUNDS),
        batch_size=50,
        epochs=300,
        pooled_batch=128,
        error=0.34,
        after=1200,
    ),
    "cifar10": Size(
        labels=10, rounds=30, targets=[0.3, 0.4], batch_size=50, epochs=20, pooled_batch=128, error=0.6, after=30
    ),
    "digits": Size(labels=10, rounds=100, targets=[0.9, 0.95], batch_size=5, epochs=60, pooled_batch=32, error=0.1),
}
PARTICIPATION = 0.1
IID: Section = {"kind": "labels", "clients": 100}
LOCAL: Section = {"lr": 0.1, "lr_decay": 0.998, "epochs": 5, "weight_decay": 5e-4}
REMARK = "scored is the average of all clients' latest models, as elsewhere in the source; its figures are preliminary"
SCORED = "scored is the average of all clients' latest models"
LIMITED = (
    "limited: robustness below 0.1, by a multiplier per client; the source names it, and stability, without details"
)

GUIDES = ("disk", "simkd_disk")
TAUGHT = ("distillation", "both", "disk", "simkd", "simkd_disk")
NAMED = (
    "DiSK and SimKD are named in the source as next steps, without details: each client has a guide of its own, whose "
    "budget is about the error of FedAvg CE (0.34 on CIFAR-100, 0.6 on CIFAR-10, 0.1 on digits); its multiplier rises "
    "with DiSK, to the highest in a client's last lesson of a run, and is 50 in all of them with SimKD+DiSK; SimKD's "
    "model has a projector, which travels with it, so that a round of it costs more than one of FedAvg; the two "
    "together are this project's"
)
EXPERIMENTAL = (
    "experimental: synthetic samples are features drawn from each class's Gaussian, 0.5, 1 or 2 for each real one; "
    "train_synthetic_distance is how near they come to the client's samples, 1 where no nearer than these to one "
    "another, which stand for held-out ones; train_synthetic_duplicates is the share below a threshold, which is this "
    "project's; seconds per sample are not measured apart, since they are drawn within the training steps; GAN and "
    "diffusion are not here"
)


@cache
def side_tables() -> dict[str, Table]:
    """By name: T7.1, next, central, teacher."""
    titles = {
        "T7.1": "side losses: rounds to two accuracies, 100 devices, 10 % participation",
        "next": "its next steps: other splits, limits, stability, DiSK, SimKD; synthetic samples (7.1)",
        "central": "side losses on all data in one place: test accuracy",
        "teacher": "the teachers of these tables",
    }
    compared = {**PRINTED, **ADDED}
    lines = {
        "T7.1": [
            _federated("cifar100", "-iid", compared, REMARK, PUBLISHED),
            *(_federated(data, "-iid", compared) for data in TASKS if data != "cifar100"),
        ],
        "next": [
            *(_federated("cifar100", f"-dirichlet{alpha}", PRINTED, alpha=alpha) for alpha in (0.6, 0.3)),
            *(_federated(data, "-limited", NEXT, LIMITED) for data in TASKS),
            *(_federated(data, "-disk", GUIDED, NAMED) for data in TASKS),
            *(_federated(data, "-synthetic", SYNTHETIC, EXPERIMENTAL) for data in TASKS),
        ],
        "central": [_central(data) for data in TASKS],
        "teacher": [_teacher(data) for data in TASKS],
    }
    return {name: Table(f"side/{name}", title, lines[name]) for name, title in titles.items()}


def _federated(
    data: str,
    suffix: str,
    methods: dict[str, Section],
    remark: str = SCORED,
    published: dict[float | None, dict[str, str]] | None = None,
    alpha: float | None = None,
) -> Line:
    size = SIZES[data]
    local = {**LOCAL, "batch_size": size.batch_size}
    methods = {heading: {**_budgeted(section, size), **local} for heading, section in methods.items()}
    partition: Section = {**IID, "labels_per_client": size.labels}
    if alpha:
        partition = {"kind": "dirichlet", "clients": 100, "alpha": alpha}
    values = _values(data, size.rounds, partition, methods)
    # Where accuracies are compared, nobody ends at the targets.
    values["evaluation"] = {"model": "clients", "clients": 0, "targets": size.targets, "stop": size.after is None}
    return Line(
        data + suffix,
        f"{DATA[data]}, Dirichlet {alpha}" if alpha else f"{DATA[data]}, IID",
        values,
        methods,
        published or {},
        remark=remark,
        unit="rounds",
        after={size.after: AFTER_1200 if published else {}} if size.after else {},
    )


def _budgeted(section: Section, size: Size) -> Section:
    """With what a guide may excuse from, where there is one, and the multiplier's highest in a client's last lesson."""
    objective = section.get("objective", {})
    guide = {"delta": size.error, "lambda_period": min(50, round(size.rounds * PARTICIPATION))}
    return {**section, "objective": {**objective, "guide": guide}} if objective.get("kind") in GUIDES else section


def _central(data: str) -> Line:
    values = _values(data, SIZES[data].epochs, IID | {"labels_per_client": 10}, CENTRAL)
    published = ACCURACIES if data == "cifar100" else {}
    methods = {heading: {**_pooled(data), **section} for heading, section in CENTRAL.items()}
    return Line(data, f"{DATA[data]}, central", values, methods, published, unit="rounds")


def _teacher(data: str) -> Line:
    """Its run is found by its name: side-teacher and the data."""
    values = _values(data, SIZES[data].epochs, IID | {"labels_per_client": 10}, {})
    values["task"]["model"] = TEACHERS[data]
    return Line(data, f"{DATA[data]}, the teacher", values, {"CE": _pooled(data)}, unit="rounds")


def _pooled(data: str) -> Section:
    return {
        "name": "central",
        "lr": 0.1,
        "lr_cosine": SIZES[data].epochs,
        "batch_size": SIZES[data].pooled_batch,
        "weight_decay": 5e-4,
    }


def _values(data: str, rounds: int, partition: Section, methods: dict[str, Section]) -> Section:
    task = {**TASKS[data], "partition": partition}
    if any(section.get("objective", {}).get("kind") in TAUGHT for section in methods.values()):
        task["teacher"] = {"run": f"runs/side-teacher-{data}"}
    return {
        "rounds": rounds,
        "participation": PARTICIPATION,
        "task": task,
        "evaluation": {"clients": 0},
        "checkpoints": {"every": 100, "keep": 1},
    }
