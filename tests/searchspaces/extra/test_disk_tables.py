"""DiSK's tables: what is printed, with which hyperparameters (disk.md, 4.3 and 5), and the ablations (138 to 145)."""

import math

import pytest
import yaml
from click.testing import CliRunner
from made_up import sweep_of

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.searchspaces.extra.table_file import family_tables, find_rows
from hedgerow.searchspaces.spaces.published_spaces import named_space
from hedgerow.searchspaces.spaces.space import with_overrides

TABLES = family_tables("disk")
PAIR = "cifar100-resnet10-l-resnet10-m"


def line_of(name):
    return find_rows(f"disk/{name}")[1][0]


def sections(name):
    """The resolved hyperparameters of each method of a line."""
    table, (line,) = find_rows(f"disk/{name}")
    made = sweep_of(table, line)
    assert made.headings == list(line.methods)
    trials = [made.search.trial(overrides) for overrides in made.search.configurations]
    return dict(zip(made.headings, (trial.algorithm.model_dump() for trial in trials), strict=True))


def gains(table, one, other):
    cells = [line.published[None] for line in TABLES[table].rows]
    return [f"{float(cell[one][:-1]) - float(cell[other][:-1]):.2f}" for cell in cells]


def test_the_printed_gains_are_the_differences_of_the_printed_accuracies():
    """Of tables 6.3 (CIFAR-100, then Tiny-ImageNet), 6.4 and A.14: they are printed next to them."""
    assert gains("6.3", "DiSK", "KD") == [
        "4.92", "3.22", "3.07", "3.59", "3.41", "2.88", "3.64", "2.35", "1.77", "3.85", "3.83", "3.11",
        "1.03", "1.66", "2.02", "0.59", "1.26", "2.11", "1.06", "1.91", "1.79", "1.24", "2.25", "1.71",
    ]  # fmt: skip
    assert gains("6.4", "DiSK", "KD") == ["0.67", "1.10", "1.39", "1.19", "0.90", "2.52", "1.48", "2.40"]
    assert gains("A.14", "DiSK", "KD") == ["0.90", "1.48"]
    assert gains("A.14", "SimKD+DiSK", "SimKD") == ["0.38", "0.65"]


def test_students_alone_are_the_same_in_all_tables_but_one():
    """Of the CE column; WRN-16-2 is printed as 74.29 in the appendix and as 74.26 in table 6.4."""
    alone = {line.name: line.published[None]["CE"] for line in TABLES["6.2"].rows}
    assert len(alone) == 23
    others = set()
    for table, known in (("6.3", 24), ("6.4", 8)):
        assert len(TABLES[table].rows) == known
        for line in TABLES[table].rows:
            data, _, rest = line.name.partition("-")
            (student,) = (name for name in alone if name.startswith(f"{data}-") and rest.endswith(name[len(data) :]))
            if alone[student] != line.published[None]["CE"]:
                others.add((student, alone[student], line.published[None]["CE"]))
    assert others == {("cifar100-wrn-16-2", "74.29%", "74.26%")}


def test_hyperparameters_are_those_of_the_source():
    made = sections(f"6.3/{PAIR}")
    common = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 200, "lr_cosine": 200}
    assert all(section | common == section for section in made.values())
    assert made["KD"]["tau"] == made["DiSK"]["tau"] == 4.0
    own = {"student_tau": "teacher", "top_k": 20, "lambda_min": 0.1, "lambda_max": 50.0, "lambda_period": 50}
    assert made["DiSK"] | own | {"delta": 0.3476, "guide_hidden": [64, 128], "warm_start": 200} == made["DiSK"]
    task = line_of(f"6.3/{PAIR}").values["task"]
    assert task["augment"] == {"crop": 4, "flip": True, "auto": True, "cutout": 16}
    toy = sections("6.1/intervals")
    common = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "starts": 100, "warm_start": 0}
    assert all(toy[heading] | common == toy[heading] for heading in ("KD", "DiSK"))
    own = {"student_tau": "teacher", "top_k": 2, "lambda_min": 0.1, "lambda_max": 50.0, "lambda_period": 50, "steps": 3}
    assert toy["DiSK"] | own | {"delta": 0.0} == toy["DiSK"]


ABLATIONS = {
    "warm-start": [{"warm_start": 0}],
    "budget": [{"lambda_min": 0.0, "lambda_max": 0.0}],
    "delta": [{"delta": delta} for delta in (0.1476, 0.2476, 0.4476, 0.5476)],
    "classes": [{"top_k": k} for k in (1, 3, 5, 10, 50)],
    "lambda": [{"lambda_min": 1.0, "lambda_max": 1.0}, {"lambda_min": 10.0, "lambda_max": 10.0}, {"lambda_min": 50.0}],
    "count": [{"budget_over": "all"}, {"budget_of": "wrong"}],
    "epochs": [{"epochs": 3}],
    "temperature": [{"student_tau": 1.0}, {"student_tau": "fit"}],
}


@pytest.mark.parametrize("part", ABLATIONS)
def test_an_ablation_changes_one_part_of_disk(part):
    """As it stands in table 6.3; the budgets are within 0.2 of the student's error."""
    name = f"ablations/cifar100-{part}"
    made = sections(name)
    whole = sections(f"6.3/{PAIR}")["DiSK"]
    assert made.pop("DiSK") == whole
    assert [{key: one[key] for key in one if one[key] != whole[key]} for one in made.values()] == ABLATIONS[part]
    assert line_of(name).values == line_of(f"6.3/{PAIR}").values


def test_every_ablation_is_there_for_digits_too():
    names = [line.name for line in TABLES["ablations"].rows]
    assert names == [f"{data}-{part}" for data in ("cifar100", "digits") for part in ABLATIONS]
    whole = sections("small/digits")["DiSK"]
    for part in ABLATIONS:
        made = sections(f"ablations/digits-{part}")
        assert made.pop("DiSK") == whole
        changed = [{key for key in one if one[key] != whole[key]} for one in made.values()]
        assert all(keys <= set(ABLATIONS[part][0]) | {"budget_of"} and keys for keys in changed)
    # Ten classes, and a budget of 0.1.
    assert list(sections("ablations/digits-classes")) == ["DiSK", "K 1", "K 5", "K 10"]
    assert list(sections("ablations/digits-delta")) == ["DiSK", "delta 0", "delta 0.2", "delta 0.3"]


@pytest.mark.parametrize("toy", ["intervals", "gaussians"])
def test_what_was_searched_is_of_the_published_grids_and_the_rest_as_in_table_6_1(toy):
    found, plain = sections(f"searched/{toy}"), sections(f"6.1/{toy}")
    assert found["CE"] == plain["CE"]
    for heading in ("KD", "DiSK"):
        space = named_space(f"{heading.lower()}/toy_{toy}")
        grids = {key.removeprefix("algorithm."): entry["grid"] for key, entry in space.items()}
        changed = {key: value for key, value in found[heading].items() if value != plain[heading][key]}
        assert changed
        assert all(value in grids[key] for key, value in changed.items())
    assert line_of(f"searched/{toy}").published == line_of(f"6.1/{toy}").published


# ---- teachers, lengths, grids ----------------------------------------------------------------------------------------


def test_teachers_are_trained_by_the_recipe_and_printed_beside_their_scores():
    """SGD, 200 epochs along a cosine, as the students (4.3)."""
    wanted = {"epochs": 200, "lr": 0.1, "lr_cosine": 200, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 200}
    for name in ("6.3", "6.4", "A.13", "A.14"):
        for line in TABLES[name].rows:
            values = {**line.values, "name": "x", "algorithm": line.methods["KD"]}
            plan = parse_experiment(values, source=line.name).task.teacher.teacher_training
            assert {key: getattr(plan, key) for key in wanted} == wanted
    printed = {line.name: set(line.published["teacher"].values()) for line in TABLES["6.3"].rows}
    assert printed[PAIR] == {"71.99%"}
    assert printed["tiny-resnet34-resnet10-xxs"] == {"63.06%"}
    assert "CE" not in line_of(f"6.3/{PAIR}").published["teacher"]
    assert line_of("6.4/cifar100-wrn-40-2-wrn-40-1").published["teacher"]["SimKD+DiSK"] == "78.41%"


def test_a_pair_says_which_of_its_methods_have_learnt_after_half_of_the_rounds():
    line = line_of("6.4/cifar100-wrn-40-2-wrn-40-1")
    made = sections("6.4/cifar100-wrn-40-2-wrn-40-1")
    half = [heading for heading, section in made.items() if section.get("warm_start", 0) + section["lr_cosine"] == 200]
    assert half == ["CE", "FitNet", "SemCKD", "SimKD", "SimKD+DiSK"]
    assert line.values["rounds"] == 400
    assert "CE, FitNet, SemCKD, SimKD and SimKD+DiSK learn in the first 200" in line.remark


GRIDS = {
    "6.1/intervals": "toy_intervals",
    "6.1/gaussians": "toy_gaussians",
    f"6.3/{PAIR}": "cifar100",
    "6.3/tiny-resnet34-resnet10-m": "tiny_imagenet",
    "6.4/cifar100-resnet32x4-shufflenetv2": "cifar100",
    "A.13/imagenet-resnet50-resnet18": "imagenet",
    "A.14/cifar100-wrn-40-2-wrn-40-1": "cifar100",
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids_are_the_published_ones(name):
    """KD's as `--grid --show` prints it; of DiSK's thousands the corners."""
    assert all(line.grids for line in TABLES[name.split("/")[0]].rows)
    line = line_of(name)
    assert line.grids == {"KD": f"kd/{GRIDS[name]}", "DiSK": f"disk/{GRIDS[name]}"}
    told = CliRunner().invoke(main, ["table", f"disk/{name}", "--methods", "KD", "--grid", "--show"])
    assert told.exit_code == 0, told.output
    shown = yaml.safe_load(told.stdout)["search"]["space"]["algorithm"]["grid"]
    space = named_space(line.grids["KD"])
    assert len(shown) == math.prod(len(entry["grid"]) for entry in space.values())
    values = [{key.removeprefix("algorithm.") for key in space} & set(section) for section in shown]
    assert all(found == {"alpha", "tau"} for found in values)
    assert [section["alpha"] for section in shown if section["tau"] == 4.0] == [0.0, 0.1, 0.5, 0.9, 1.0]
    for end in (0, -1):
        corner = {key: entry["grid"][end] for key, entry in named_space(line.grids["DiSK"]).items()}
        section = with_overrides({"algorithm": line.methods["DiSK"]}, corner)["algorithm"]
        found = parse_experiment({**line.values, "name": "x", "algorithm": section}, source=name).algorithm
        assert {key: getattr(found, key.removeprefix("algorithm.")) for key in corner} == corner


def test_the_whole_grid_of_disk_is_a_sweep():
    table, (line,) = find_rows(f"disk/6.3/{PAIR}")
    made = sweep_of(table, line, grid=True)
    assert {heading: made.headings.count(heading) for heading in made.headings} == {"CE": 1, "KD": 5, "DiSK": 6300}
    assert len(made.search.configurations) == 6306
    own = [one["algorithm"] for one in made.search.configurations if one["algorithm"]["name"] == "disk"]
    assert all(section["delta"] == 0.3476 and section["warm_start"] == 200 for section in own)


def test_what_has_no_published_grid_says_so():
    for name in ("6.2/cifar100-resnet10", "small/digits", "searched/intervals", "ablations/digits-delta"):
        table, (line,) = find_rows(f"disk/{name}")
        with pytest.raises(UserError, match="no grid is published"):
            sweep_of(table, line, grid=True)
