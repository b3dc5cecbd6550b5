"""The tables of MOML (thesis, chapter 5 and appendix A.1.4), and streams that the source has not; their rows and the
published numbers are in moml.csv.

What the source leaves open, and what is taken here: all ten classes in an S-MNIST task, with 100 test samples; turned
by up to 30 degrees, mirrored with chance 1/2 per axis, cut by up to 10 per cent and scaled by up to 10 per cent (with
these, training from scratch comes out near its published accuracy); 100 test samples in the other tasks, too; no
padding in the network of two convolutions; 3x3 kernels with padding 1 in the deeper ones, 64 channels everywhere.
"""

from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.published import Table, printed_tables
from hedgerow.searchspaces.reproductions.stream_row_search import StreamLine

Section = dict[str, Any]

TRANSFORMS = {"rotation": 30.0, "flip": 0.5, "crop": 0.1, "scale": 0.1}
DEEP = {"name": "cnn", "kernel": 3, "padding": 1}
METHODS: dict[str, Section] = {
    "TOE": {"name": "toe"},
    "FS": {"name": "fs"},
    "MOGD": {"name": "mogd"},
    "FTML": {"name": "ftml"},
    "MOML": {"name": "moml"},
    "MOML-zero": {"name": "moml_zero"},
    # B-MOML with so many of the latest past tasks, or with random ones.
    "B=5": {"name": "b_moml", "buffer": 5},
    "B=10": {"name": "b_moml", "buffer": 10},
    "random B=5": {"name": "b_moml", "buffer": 5, "policy": "random"},
    "random B=10": {"name": "b_moml", "buffer": 10, "policy": "random"},
}
TITLES = {
    "5.1": "CTM and LTM, per cent",
    "5.2": "K-way CIFAR-100",
    "5.3": "sizes of B-MOML's buffer; MOML has none",
    "5.4": "which tasks B-MOML keeps: the latest, or random ones",
    "A.8": "networks of two and of five convolutions",
    "A.9": "tasks without a class in common",
    "A.10": "without the linear term",
    "efficiency": "with how few samples a new task is learnt (figure A.20)",
    "small": "streams for a laptop, not in the source",
}
EFFICIENCY = {
    "s-mnist": {"threshold": 0.8, "points": [0, 10, 20, 30, 40, 50, 60]},
    "cifar100-5way": {"threshold": 0.55, "points": [0, 50, 100, 150, 200, 250]},
}


def _task(data: Section, model: Section, **stream: Any) -> Section:
    return {"data": data, "partition": {"kind": "stream", **stream}, "model": model}


CIFAR100 = {"name": "cifar100"}
TWO_CNN = {"name": "cnn", "fc": [384, 192]}
STREAMS: dict[str, tuple[str, str, int, Section]] = {
    # name -> title, suffix of its grids, batch size, task
    "s-mnist": (
        "S-MNIST", "s_mnist", 10,
        _task({"name": "mnist"}, {"name": "mlp", "hidden": [200]}, tasks=1000, train=60, transforms=TRANSFORMS),
    ),
    **{
        f"cifar100-{ways}way": (
            f"{ways}-way CIFAR-100", "cifar100", 20, _task(CIFAR100, TWO_CNN, tasks=200, ways=ways, train=50 * ways),
        )
        for ways in (3, 4, 5)
    },
    "cifar100-5way-5cnn": (
        "5-way CIFAR-100, 5 CNN", "cifar100", 20,
        _task(CIFAR100, DEEP | {"channels": [64] * 5, "fc": [384, 192]}, tasks=200, ways=5, train=250),
    ),
    "cifar100-5way-disjoint": (
        "5-way CIFAR-100, disjoint", "cifar100", 20,
        _task(CIFAR100, TWO_CNN, tasks=20, ways=5, train=250, disjoint=True),
    ),
    "miniimagenet-5way": (
        "5-way miniImageNet", "miniimagenet", 50,
        _task(
            {"name": "image_folder", "path": "miniimagenet", "size": 84},
            DEEP | {"channels": [64] * 3, "fc": [400, 100]}, tasks=100, ways=5, train=250,
        ),
    ),
    # Not in the source: small enough for a laptop, with the grids of S-MNIST.
    "digits": (
        "digits", "s_mnist", 10,
        _task({"name": "digits"}, {"name": "mlp", "hidden": [64]}, tasks=200, train=60, transforms=TRANSFORMS),
    ),
    "omniglot-5way": (
        "5-way Omniglot", "s_mnist", 10,
        _task({"name": "omniglot"}, {"name": "mlp", "hidden": [200]}, tasks=200, ways=5, train=50, test=50),
    ),
    "cifar10-5way": (
        "5-way CIFAR-10", "s_mnist", 20,
        _task({"name": "cifar10"}, {"name": "small_cnn"}, tasks=100, ways=5, train=250),
    ),
}  # fmt: skip


@cache
def moml_tables() -> dict[str, Table]:
    """By name: 5.1 to 5.4 and A.8 to A.10 as printed; the learning efficiency; and streams for a laptop."""
    return printed_tables("moml", TITLES, ("stream",), _line)


def _line(table: str, stream: str, rows: list[dict[str, str]]) -> StreamLine:
    title, grid, batch_size, task = STREAMS[stream]
    rounds = task["partition"]["tasks"]
    evaluation: Section = {"every": max(1, rounds // 10)}
    if table == "efficiency":
        evaluation["efficiency"] = EFFICIENCY[stream]
    common = {"lr": 0.1, "weight_decay": 1e-3, "batch_size": batch_size}
    sections = {row["method"]: METHODS[row["method"]] for row in rows}
    return StreamLine(
        stream,
        title,
        {"rounds": rounds, "task": task, "evaluation": evaluation, "checkpoints": {"every": 100, "keep": 1}},
        # From scratch, nothing is learnt.
        {heading: one if one["name"] == "fs" else common | one for heading, one in sections.items()},
        {heading: f"{one['name']}/{grid}" for heading, one in sections.items()},
        {row["method"]: {"ctm": row["ctm"], "ltm": row["ltm"]} for row in rows if row["ctm"]},
    )
