"""The tables of auxiliary losses, and runs that learn from the model that another one left."""

from types import SimpleNamespace

import pytest
import torch
import yaml
from made_up import records, sweep_of
from paths import ROOT

from hedgerow.algorithms.optim.local_sgd import LearningRate
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.sources.cache import load_dataset
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import build_algorithms, build_module, check
from hedgerow.platform.storage.checkpoint import latest_checkpoint, read_checkpoint
from hedgerow.searchspaces.extra.table_file import family_tables
from hedgerow.searchspaces.extra.table_result import SweepResult
from hedgerow.searchspaces.results.trials import Trial

TABLES = family_tables("side")
TAUGHT = ("distillation", "both", "disk", "simkd", "simkd_disk")
LINES = [(table, line) for table in TABLES.values() for line in table.rows]
MODEL = {"name": "mlp", "hidden": [4]}


def test_the_published_numbers_are_those_of_the_source():
    """Check 10: the gains are those that are printed."""
    (line,) = (line for line in TABLES["T7.1"].rows if line.name == "cifar100-iid")
    gains = {
        target: [f"{int(cells['FedAvg CE']) / int(cell):.2f}" for cell in cells.values()]
        for target, cells in line.published.items()
    }
    assert gains == {
        0.67: ["1.00", "3.90", "4.05", "2.02", "6.54"],
        0.66: ["1.00", "2.68", "2.81", "1.44", "4.44"],
    }
    assert set(line.methods) - set(line.published[0.67]) == {"FedAvg both", "FedDyn distillation", "FedDyn robustness"}
    (central,) = (line for line in TABLES["central"].rows if line.name == "cifar100")
    assert central.published == {None: {"CE": "74.2%", "distillation": "81.2%", "robustness": "77.8%"}}


@pytest.mark.parametrize(("table", "line"), LINES, ids=[f"{t.name}/{line.name}" for t, line in LINES])
def test_every_line_is_a_valid_sweep(table, line):
    made = sweep_of(table, line)
    assert made.headings == list(line.methods)
    for trial in (made.search.trial(one) for one in made.search.configurations):
        assert trial.task.augment is not None
        assert trial.task.teacher is not None or not (trial.objective and trial.objective.kind in TAUGHT)


def test_hyperparameters_are_those_of_the_source():
    (line,) = (line for line in TABLES["T7.1"].rows if line.name == "cifar100-iid")
    made = sweep_of(TABLES["T7.1"], line)
    trials = [made.search.trial(one) for one in made.search.configurations]
    sections = dict(zip(made.headings, (trial.algorithm.model_dump() for trial in trials), strict=True))
    common = {"batch_size": 50, "epochs": 5, "lr": 0.1, "lr_decay": 0.998, "weight_decay": 5e-4, "momentum": 0.0}
    assert all(section | common == section for section in sections.values())
    assert sections["FedDyn both"]["alpha"] == 0.1
    sides = zip(made.headings, (trial.objective for trial in trials), strict=True)
    weights = {heading: (side.alpha, side.temperature) for heading, side in sides if side}
    assert weights["FedAvg robustness"] == weights["FedDyn robustness"] == (0.5, 3.5)
    assert weights["FedAvg distillation"] == weights["FedAvg both"] == (0.1, 3.5)
    assert trials[0].task.augment.model_dump() == {"crop": 4, "flip": True, "auto": True, "cutout": 16}
    assert (trials[0].cohort_size(100), trials[0].rounds) == (10, 1700)


def test_accuracies_stand_beside_the_rounds_to_the_targets():
    """Rows 1 to 15: those who reach both targets go on to round 1200, where the source prints accuracies."""
    (line,) = (line for line in TABLES["T7.1"].rows if line.name == "cifar100-iid")
    made = sweep_of(TABLES["T7.1"], line)
    trials = [made.search.trial(one) for one in made.search.configurations]
    assert all(trial.evaluation.targets == [0.67, 0.66] and not trial.evaluation.stop for trial in trials)
    assert all(trial.rounds >= 1200 and trial.evaluation.every == 1 for trial in trials)
    runs = {"FedDyn CE": records([0.5] * 418 + [0.68] * 781 + [0.7, 0.9]), "FedAvg robustness": records([0.6] * 1199)}
    finished = SimpleNamespace(
        spec=made.search, trials=[Trial(f"{i:03d}", {}, told) for i, told in enumerate(runs.values())]
    )
    note = {"headings": list(runs), "changed": []}
    shown = SweepResult(line, SimpleNamespace(name="x"), finished, note)  # type: ignore[arg-type]
    high, low, after = shown.rows()
    assert [high["FedDyn CE"], low["FedDyn CE"], high["FedAvg robustness"]] == ["419 [419]", "419 [399]", "1199+ [808]"]
    assert after["target"] == "after 1200 rounds"
    assert [after[heading] for heading in line.methods] == [
        "- [66.4 %]", "70.0 % [71.8 %]", "- [75.8 %]", "-", "- [81.2 %]", "-", "-", "-",
    ]  # fmt: skip


@pytest.mark.parametrize(("data", "error"), [("cifar100", 0.34), ("cifar10", 0.6), ("digits", 0.1)])
def test_a_guide_may_excuse_about_as_much_as_fedavg_errs(data, error):
    (line,) = (line for line in TABLES["next"].rows if line.name == f"{data}-disk")
    made = sweep_of(TABLES["next"], line)
    sides = {h: made.search.trial(o).objective for h, o in zip(made.headings, made.search.configurations, strict=True)}
    guides = {heading: side.guide for heading, side in sides.items() if hasattr(side, "guide")}
    assert set(guides) == {f"{method} {kind}" for method in ("FedAvg", "FedDyn") for kind in ("DiSK", "SimKD+DiSK")}
    assert all(guide.delta == error for guide in guides.values())
    assert f"{error} on" in line.remark
    # As many lessons as a client has, but at most the source's period.
    assert {guide.lambda_period for guide in guides.values()} == {{"cifar100": 50, "cifar10": 3, "digits": 10}[data]}
    # The multiplier of the one rises, of the other it stays.
    ends = {heading: (guide.lambda_min, guide.lambda_max) for heading, guide in guides.items()}
    assert all(ends[h] == ((50.0, 50.0) if "SimKD" in h else (0.1, 50.0)) for h in ends)


@pytest.mark.parametrize("data", ["cifar100", "cifar10", "digits"])
def test_synthetic_samples_are_added_in_every_ratio(data):
    """Part A: q of 0, 0.5, 1 and 2 for either method."""
    (line,) = (line for line in TABLES["next"].rows if line.name == f"{data}-synthetic")
    ratios = [(section["name"], section.get("objective", {}).get("ratio", 0)) for section in line.methods.values()]
    assert sorted(ratios) == [(method, q) for method in ("fedavg", "feddyn") for q in (0, 0.5, 1, 2)]


def test_the_lines_on_cifar10_fit_a_laptop():
    """Of every table, on a folder of its images too; the teacher is that of the same data."""
    lines = {f"{table.name}/{line.name}": (table, line) for table, line in LINES if "cifar10" in line.name.split("-")}
    assert list(lines) == [
        "side/T7.1/cifar10-iid", "side/next/cifar10-limited", "side/next/cifar10-disk", "side/next/cifar10-synthetic",
        "side/central/cifar10", "side/teacher/cifar10",
    ]  # fmt: skip
    folder = "task.data={name: image_folder, path: cifar10.zip}"
    for name, (table, line) in lines.items():
        made = sweep_of(table, line, [folder])
        trials = [made.search.trial(one) for one in made.search.configurations]
        assert all(trial.task.data.name == "image_folder" and trial.rounds <= 30 for trial in trials)
        assert all(sum(trial.task.model.channels) < 200 for trial in trials)
        taught = [trial.task.teacher.run for trial in trials if trial.task.teacher]
        assert all("runs/side-teacher-cifar10" in run for run in taught)
        assert bool(taught) == (name in ("side/T7.1/cifar10-iid", "side/next/cifar10-disk", "side/central/cifar10"))


def test_the_cosine_ends_near_0():
    hyper = LearningRate(name="x", lr=0.4, lr_cosine=4)
    assert [hyper.at(t).lr for t in (1, 3)] == pytest.approx([0.4, 0.2])
    assert 0 < hyper.at(4).lr < 0.06
    assert hyper.at(9).lr == hyper.at(4).lr


# ---- teachers -------------------------------------------------------------------------------------------------------


def experiment(folder, name="student", **task):
    return parse_experiment(
        {
            "name": name,
            "rounds": 1,
            "output": str(folder),
            "task": {
                "data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 10}, "model": MODEL, **task
            },
            "algorithm": {"name": "fedavg", "lr": 0.1},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """The folder of a run, and what it says of its model's parameters."""
    folder = tmp_path_factory.mktemp("runs")
    home = run(experiment(folder, "teacher", model={"name": "mlp", "hidden": [6]})).folder.path
    return home, read_checkpoint(latest_checkpoint(home / "checkpoints")[0])[0]["w"]


def test_a_teacher_is_what_the_newest_run_of_its_name_ended_with(taught, tmp_path):
    home, w = taught
    for name in (home, home.parent / "teacher"):
        one = experiment(tmp_path, teacher={"run": str(name)})
        # What a file is read to mean is written down: a run that is resumed has the same teacher.
        assert one.task.teacher.run == str(home.absolute())
        data, partition = check(one, None)
        task = build_algorithms([one], data, partition)[0].task
        x = task.prepare(torch.tensor(data.x_test[:5]))
        said = task.teacher_logits(x)
        assert said.shape == (5, 10)
        hidden = (x.flatten(1) @ w["1.weight"].T + w["1.bias"]).relu()
        assert torch.allclose(said, hidden @ w["3.weight"].T + w["3.bias"], atol=1e-5)
        assert not said.requires_grad


def test_the_example_learns_from_a_teacher(taught, tmp_path):
    home, _ = taught
    values = yaml.safe_load((ROOT / "examples" / "digits_side.yaml").read_text())
    values["task"] |= {"teacher": {"run": str(home)}, "model": MODEL}
    values |= {
        "rounds": 2,
        "output": str(tmp_path),
        "tracking": {"enabled": False},
        "resources": {"executor": "inline"},
    }
    finished = run(parse_experiment(values))
    assert finished.summary["rounds"] == 2
    assert "test_accuracy" in finished.summary


def test_what_cannot_teach_is_refused(taught, tmp_path):
    def refusal(**task):
        with pytest.raises(UserError) as refused:
            check(experiment(tmp_path, **task), None)
        return str(refused.value)

    assert "there is no run at nowhere" in refusal(teacher={"run": "nowhere"})
    file = taught[0] / "experiment.yaml"
    (tmp_path / "empty-20260101-120000" / "checkpoints").mkdir(parents=True)
    (tmp_path / "empty-20260101-120000" / "experiment.yaml").write_text(file.read_text())
    assert "has no saved model" in refusal(teacher={"run": str(tmp_path / "empty")})
    other = taught[0].parent / "other-20260101-120000"
    (other / "checkpoints").mkdir(parents=True)
    (other / "experiment.yaml").write_text(file.read_text().replace("- 6", "- 7"))
    (other / "metrics.jsonl").symlink_to(taught[0] / "metrics.jsonl")
    for path in (taught[0] / "checkpoints").iterdir():
        (other / "checkpoints" / path.name).symlink_to(path)
    assert "is for other samples or classes" in refusal(teacher={"run": str(other)})


def test_what_cannot_be_augmented_is_refused(tmp_path):
    def refusal(algorithm=None, objective=None, **task):
        values = experiment(tmp_path, **task).model_dump(mode="json")
        values |= {"algorithm": algorithm or values["algorithm"], "objective": objective}
        with pytest.raises(UserError) as refused:
            check(parse_experiment(values), None)
        return str(refused.value)

    assert "digits has fewer bits; remove it" in refusal(augment={"auto": True})
    assert "exceeds the image size 8x8; lower it" in refusal(augment={"crop": 9})
    assert "fedsgd does not augment samples" in refusal({"name": "fedsgd"}, augment={"crop": 1})
    assert "synthetic has no images" in refusal(
        augment={"crop": 1}, data={"name": "synthetic"}, partition={"kind": "natural"}, model={"name": "logreg"}
    )
    assert "pfldyn has its own loss" in refusal({"name": "pfldyn", "adapt": "none"}, {"kind": "stability"})
    assert "compares two augmentations" in refusal({"name": "fedavg"}, {"kind": "robustness"})


def test_group_norm_has_no_running_statistics(tmp_path):
    """Check 9."""
    one = experiment(tmp_path, model={"name": "preact_resnet", "channels": [4], "blocks": [1], "groups": 2})
    module = build_module(one, load_dataset(one.task.data))
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
    assert any(isinstance(layer, torch.nn.GroupNorm) for layer in module.modules())
