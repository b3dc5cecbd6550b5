"""DiSK's tables (thesis, chapter 6 and appendix A.1.5), and lines for a laptop, which are this project's own.

Table 6.1 is run in full: a hundred students side by side are one program. What the source leaves open there: the
steepness of the intervals' ends, the guide's hidden layer (8 units), which alpha and tau of its grids the counts are of
(0.1 and 1 here; the rest are the defaults that it prints), and mini-batches. It says "gradient steps" of the toys and
"SGD steps over the entire dataset" of images, so a step is one on all samples, and an epoch one step.
"""

from functools import cache
from typing import Any

from hedgerow.searchspaces.reproductions.papers.disk_networks import LARGE, MODELS
from hedgerow.searchspaces.reproductions.papers.disk_plots import draw_toys, study_toys
from hedgerow.searchspaces.reproductions.published import Line, Table

Section = dict[str, Any]

COUNTS = {
    "intervals": {"A": ("35", "30", "9"), "B": ("64", "67", "1"), "C": ("1", "3", "90")},
    "gaussians": {"A": ("73", "1", "0"), "B": ("12", "11", "0"), "C": ("9", "31", "3"), "D": ("6", "57", "97")},
}
TOYS: dict[str, tuple[str, Section, Section]] = {
    # title, the student, the teacher
    "intervals": ("intervals on a line", {"name": "intervals"}, {"name": "intervals", "number": 2}),
    "gaussians": (
        "Gaussians in the plane",
        {"name": "mlp_static", "hidden": [2], "levels": {"A": 0.7, "B": 0.8, "C": 0.9, "D": 1.0}},
        {"name": "mlp_static", "hidden": [8, 16]},
    ),
}
TOY_SGD: Section = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "batch_size": None}
TOY_REMARK = (
    "of the toys' minima B and C on the line have 83.3 % both in expectation: they are told by their ends, (2, 7) and "
    "(5, 7), in the plane by accuracies within 5 % of 70, 80, 90 and 100 % (four clusters of six are 64 to 67 %, so "
    "some of A are among the others); in every round KD and CE have a step on all samples, the guide and the student "
    "of DiSK 3; alpha 0.1 and tau 1 are not searched, as the source's are, so there are no samples for validation; "
    "students of KD and DiSK begin at random, not from one by cross-entropy; on the line an interval's ends have "
    "steepness 10 and a class at least 1e-5 of the probability, and the teacher begins with its intervals evenly "
    "spread; in the plane the last layers have a bias; the guide learns as fast as the student"
)

DATA: dict[str, tuple[str, Section]] = {
    "cifar100": ("CIFAR-100", {"name": "cifar100"}),
    "tiny": ("Tiny-ImageNet", {"name": "image_folder", "path": "tiny-imagenet-200", "size": 64}),
    "imagenet": ("ImageNet-1K", {"name": "image_folder", "path": "imagenet", "size": 224}),
}
RECIPE: Section = {
    "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 200, "lr_cosine": 200, "warm_start": 200,
}  # fmt: skip
SPACES = {"tiny": "tiny_imagenet", "intervals": "toy_intervals", "gaussians": "toy_gaussians"}
"""What the published grids call the data, where they have another name."""
AUGMENT: Section = {"crop": 4, "flip": True, "auto": True, "cutout": 16}
REMARK = (
    "batch norm is static: of the mini-batch in training, of all training samples when a model is scored; the first "
    "200 rounds are the student's cross-entropy, from which KD and DiSK begin; a teacher that a line of disk/6.2 has "
    "trained: --set 'task.teacher={run: FOLDER}', else it is trained in the run, as those of disk/6.2 are; FitNet, "
    "SemCKD and SimKD are published by Chen et al., 2022, in another recipe; the source leaves open how SimKD and DiSK "
    "go together, and how fast a guide learns: here at 0.001, since at the student's rate it is soon 0 or 1 for all"
)

LONGER = (
    "methods of a line have as many rounds, 400; CE, FitNet, SemCKD, SimKD and SimKD+DiSK learn in the first 200, then "
    "their learning rate stays at 6e-6, and SimKD+DiSK's lambda has 4 periods more: alone (--methods) they end there "
    "by --set rounds=200"
)
LARGE_REMARK = (
    "the source takes trained models from timm; here the teacher is trained before the first lesson unless "
    "`task.teacher` names a run, and the student's cross-entropy is the first 200 rounds; images are cropped out of a "
    "frame as wide, in proportion, as that of CIFAR; all of them are held in memory, about 190 GB; KD of ViT is not "
    "printed; CE runs as long as the others, 400 rounds, and learns in the first 200"
)

Cells = dict[str, Any]


@cache
def disk_tables() -> dict[str, Table]:
    """By name."""
    titles = {
        "6.1": "minima that 100 students from random initial parameters end in",
        "6.2": "teachers and students by cross-entropy alone",
        "6.3": "students far smaller than their teachers",
        "6.4": "students near their teachers; of table A.14 the guided SimKD",
        "A.13": "ImageNet",
        "A.14": "those lines of 6.4 with SimKD and the guide",
        "small": "for a laptop, not in the source",
    }
    lines: dict[str, list[Line]] = {
        "6.1": [_toy(data) for data in TOYS],
        "6.2": [_alone(data, name, cell) for data, column in ALONE.items() for name, cell in column.items()],
        "6.3": [_pair(data, one, other, dict(zip(NEAR, row, strict=False))) for data, one, other, row in FAR],
        "6.4": [_pair("cifar100", one, other, dict(zip(NEAR, row, strict=False))) for one, other, row in CLOSE],
        "A.13": [_large(one, other, dict(zip(NEAR, row, strict=False))) for one, other, row in IMAGENET],
        "A.14": [
            _pair("cifar100", one, other, dict(zip(NEAR, row, strict=True)))
            for one, other, row in CLOSE
            if len(row) == len(NEAR)
        ],
        "small": _small(),
    }
    return {name: Table(f"disk/{name}", title, lines[name]) for name, title in titles.items()}


ALONE: dict[str, Cells] = {
    "cifar100": {
        "ResNet10-l": "71.99", "ResNet10": "75.25", "ResNet18": "76.56", "ResNet34": "80.46", "ResNet10-xxs": "32.05",
        "ResNet10-xs": "42.99", "ResNet10-s": "52.16", "ResNet10-m": "65.24", "ResNet32x4": "81.45",
        "WRN-40-2": "78.41", "ResNet8x4": "73.89", "ShuffleNetV2": "73.74", "WRN-16-2": "74.29", "WRN-40-1": "72.81",
        "MobileNetV2x2": "69.24",
    },
    "tiny": {
        "ResNet10-l": "52.14", "ResNet10": "56.04", "ResNet18": "62.48", "ResNet34": "63.06", "ResNet10-xxs": "17.44",
        "ResNet10-xs": "25.89", "ResNet10-s": "34.65", "ResNet10-m": "44.74",
    },
}  # fmt: skip
FAR: list[tuple[str, str, str, tuple[str, str, str]]] = [
    ("cifar100", "ResNet10-l", "ResNet10-xxs", ("32.05", "32.64", "37.56")),
    ("cifar100", "ResNet10-l", "ResNet10-s", ("52.16", "54.92", "58.14")),
    ("cifar100", "ResNet10-l", "ResNet10-m", ("65.24", "66.96", "70.03")),
    ("cifar100", "ResNet10", "ResNet10-xxs", ("32.05", "34.25", "37.84")),
    ("cifar100", "ResNet10", "ResNet10-s", ("52.16", "54.95", "58.36")),
    ("cifar100", "ResNet10", "ResNet10-m", ("65.24", "67.27", "70.15")),
    ("cifar100", "ResNet18", "ResNet10-xxs", ("32.05", "34.16", "37.8")),
    ("cifar100", "ResNet18", "ResNet10-s", ("52.16", "55.76", "58.11")),
    ("cifar100", "ResNet18", "ResNet10-m", ("65.24", "68.09", "69.86")),
    ("cifar100", "ResNet34", "ResNet10-xxs", ("32.05", "33.93", "37.78")),
    ("cifar100", "ResNet34", "ResNet10-s", ("52.16", "54.19", "58.02")),
    ("cifar100", "ResNet34", "ResNet10-m", ("65.24", "66.78", "69.89")),
    ("tiny", "ResNet10-l", "ResNet10-xxs", ("17.44", "17.59", "18.62")),
    ("tiny", "ResNet10-l", "ResNet10-s", ("34.65", "35.77", "37.43")),
    ("tiny", "ResNet10-l", "ResNet10-m", ("44.74", "46.01", "48.03")),
    ("tiny", "ResNet10", "ResNet10-xxs", ("17.44", "17.96", "18.55")),
    ("tiny", "ResNet10", "ResNet10-s", ("34.65", "36.11", "37.37")),
    ("tiny", "ResNet10", "ResNet10-m", ("44.74", "46.08", "48.19")),
    ("tiny", "ResNet18", "ResNet10-xxs", ("17.44", "17.47", "18.53")),
    ("tiny", "ResNet18", "ResNet10-s", ("34.65", "35.59", "37.5")),
    ("tiny", "ResNet18", "ResNet10-m", ("44.74", "45.91", "47.7")),
    ("tiny", "ResNet34", "ResNet10-xxs", ("17.44", "17.67", "18.91")),
    ("tiny", "ResNet34", "ResNet10-s", ("34.65", "35.43", "37.68")),
    ("tiny", "ResNet34", "ResNet10-m", ("44.74", "45.89", "47.6")),
]
NEAR = ("CE", "KD", "DiSK", "FitNet", "SemCKD", "SimKD", "SimKD+DiSK")
CLOSE: list[tuple[str, str, tuple[str, ...]]] = [
    ("ResNet32x4", "ResNet8x4", ("73.89", "76.25", "76.92", "74.32", "76.23", "78.08")),
    ("ResNet32x4", "ShuffleNetV2", ("73.74", "79.13", "80.23", "75.82", "77.62", "78.39")),
    ("ResNet32x4", "WRN-16-2", ("74.26", "76.28", "77.67", "74.70", "75.65", "77.17")),
    ("ResNet32x4", "MobileNetV2x2", ("69.24", "76.05", "77.24", "73.09", "73.98", "75.43")),
    ("WRN-40-2", "ResNet8x4", ("73.89", "75.15", "76.05", "75.02", "75.85", "76.75", "77.13")),
    ("WRN-40-2", "ShuffleNetV2", ("73.74", "75.81", "78.33")),
    ("WRN-40-2", "WRN-40-1", ("72.81", "74.44", "75.92", "74.17", "74.4", "75.56", "76.21")),
    ("WRN-40-2", "MobileNetV2x2", ("69.24", "73.92", "76.32")),
]


IMAGENET: list[tuple[str, str, tuple[str | None, ...]]] = [
    ("ResNet50", "ResNet18", ("69.73", "71.29", "72.35")),
    ("ViT-Large", "ViT-Tiny", ("75.45", None, "77.86")),
]


def _alone(data: str, name: str, printed: str) -> Line:
    title, source = DATA[data]
    section = {"name": "central", **RECIPE}
    del section["warm_start"]
    values = _values(source, MODELS[name], 200) | {"evaluation": {"every": 10, "clients": 1}}
    return Line(
        f"{data}-{name.lower()}",
        f"{title} / {name}",
        values,
        {"CE": section},
        {None: {"CE": f"{printed}%"}},
        {},
        REMARK,
    )


def _pair(data: str, teacher: str, student: str, printed: Cells) -> Line:
    line = _taught(data, teacher, student, MODELS, printed, f"{REMARK}; {LONGER}")
    if data == "cifar100" and (teacher, student) in [pair[:2] for pair in CLOSE]:
        alone = {key: value for key, value in RECIPE.items() if key != "warm_start"}
        line.methods.update({h: {"name": h.lower().replace("+", "_"), **alone} for h in NEAR[3:]})
        line.methods["SimKD+DiSK"] |= {"delta": line.methods["DiSK"]["delta"]}
    line.published["teacher"] = dict.fromkeys(list(line.methods)[1:], f"{ALONE[data][teacher]}%")
    return line


def _large(teacher: str, student: str, printed: Cells) -> Line:
    line = _taught("imagenet", teacher, student, LARGE, printed, LARGE_REMARK)
    line.values["task"]["augment"] = {"crop": 28, "flip": True}
    return line


def _taught(data: str, teacher: str, student: str, models: dict[str, Section], printed: Cells, remark: str) -> Line:
    """With cross-entropy alone, KD and DiSK. printed: None where a cell is empty."""
    title, source = DATA[data]
    values = _values(source, models[student], 400)
    values["task"]["teacher"] = {"model": models[teacher], "epochs": 200, "batch_size": 200, "lr_cosine": 200}
    # The error of the student by cross-entropy alone.
    budget = round(1 - float(printed["CE"]) / 100, 4)
    alone = {key: value for key, value in RECIPE.items() if key != "warm_start"}
    methods: dict[str, Section] = {
        "CE": {"name": "central", **alone},
        "KD": {"name": "kd", **RECIPE},
        "DiSK": {"name": "disk", **RECIPE, "delta": budget},
    }
    cells = {None: {heading: f"{cell}%" for heading, cell in printed.items() if cell}}
    name = f"{data}-{teacher}-{student}".lower()
    return Line(
        name, f"{title} / {teacher} to {student}", values, methods, cells, _grids(SPACES.get(data, data)), remark
    )


def _grids(data: str) -> dict[str, str]:
    return {heading: f"{heading.lower()}/{SPACES.get(data, data)}" for heading in ("KD", "DiSK")}


def _small() -> list[Line]:
    """An MLP of 4 units learns from one of 200 on digits; a CNN from another on a part of CIFAR-10. Half of the rounds
    of KD and DiSK are the warm start; a guide may excuse about the error of cross-entropy."""
    lines = []
    for name, title, source, student, teacher, batch, half, delta in (
        (
            "digits", "digits", {"name": "digits"},
            {"name": "mlp", "hidden": [4]}, {"name": "mlp", "hidden": [200]}, 50, 40, 0.1,
        ),
        (
            "cifar10", "CIFAR-10, 10,000 samples", {"name": "cifar10"},
            {"name": "resnet", "channels": [8, 16], "blocks": [1, 1]},
            {"name": "resnet", "channels": [16, 32, 64], "blocks": [1, 1, 1]}, 100, 20, 0.39,
        ),
    ):  # fmt: skip
        values = _values(source, student, 2 * half)
        del values["task"]["augment"]
        values["task"]["teacher"] = {"model": teacher, "epochs": 30, "lr": 0.05, "batch_size": batch}
        common: Section = {"lr": 0.1, "momentum": 0.9, "batch_size": batch, "lr_cosine": 2 * half}
        taught = {**common, "lr_cosine": half, "warm_start": half, "tau": 2.0}
        methods: dict[str, Section] = {
            "CE": {"name": "central", **common},
            "KD": {"name": "kd", **taught},
            "DiSK": {"name": "disk", **taught, "top_k": 3, "delta": delta, "lambda_period": half},
        }
        if name == "cifar10":
            values["task"]["partition"]["samples_per_client"] = 10_000
            methods |= {h: {"name": h.lower().replace("+", "_"), **common, "tau": 2.0} for h in NEAR[3:]}
            methods["SimKD+DiSK"]["delta"] = delta
            del methods["SimKD"]["tau"]
            # What is matched weighs a hundred times and more.
            methods["FitNet"]["clip_norm"] = methods["SemCKD"]["clip_norm"] = 5.0
        lines.append(Line(name, title, values, methods))
    return lines


def _values(source: Section, model: Section, rounds: int) -> Section:
    return {
        "rounds": rounds,
        "participation": 1.0,
        "task": {"data": source, "partition": {"kind": "iid", "clients": 1}, "model": model, "augment": AUGMENT},
        "evaluation": {"every": 10, "clients": 1},
        "checkpoints": {"every": 10, "keep": 1},
    }


def _toy(data: str) -> Line:
    title, student, teacher = TOYS[data]
    values = {
        "rounds": 200,
        "participation": 1.0,
        "task": {
            "data": {"name": data},
            "partition": {"kind": "iid", "clients": 1},
            "model": student,
            "teacher": {"model": teacher, "epochs": 200, **TOY_SGD},
        },
        "evaluation": {"every": 50, "clients": 1},
        "checkpoints": {"every": 100, "keep": 1},
    }
    common = {**TOY_SGD, "starts": 100}
    methods = {
        "CE": {"name": "central", **common},
        "KD": {"name": "kd", "tau": 1.0, **common},
        "DiSK": {
            "name": "disk",
            "tau": 1.0,
            "top_k": 2,
            "epochs": None,
            "steps": 3,
            "guide_hidden": [8],
            "guide_lr": None,
            **common,
        },
    }
    published = {f"minimum {name}": dict(zip(methods, counts, strict=True)) for name, counts in COUNTS[data].items()}
    return Line(data, title, values, methods, published, _grids(data), TOY_REMARK, draws=draw_toys, studies=study_toys)
