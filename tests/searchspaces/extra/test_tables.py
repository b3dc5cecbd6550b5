"""FedDyn's tables: every line is there and runs, with the hyperparameters and next to the numbers of the source."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from made_up import sweep_of

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.storage.sealed_json import seal
from hedgerow.platform.tracking import run_folder
from hedgerow.platform.tracking.run_folder import SOURCE, RunFolder, git_commit, now, source_commit, versions
from hedgerow.searchspaces.extra import shared_trainings as sharing
from hedgerow.searchspaces.extra.shared_trainings import taken_over, trained_before, training
from hedgerow.searchspaces.extra.table_file import FAMILIES, family_tables, find_rows
from hedgerow.searchspaces.extra.table_result import SweepResult
from hedgerow.searchspaces.extra.table_search import row_searches
from hedgerow.searchspaces.results.trials import Trial, expert_folder
from hedgerow.searchspaces.spaces.search_file import load_search

TABLES = family_tables("feddyn")
LINES = [(table, line) for table in TABLES.values() for line in table.rows]
BY_VALIDATION = ["task.validation.fraction=0.1", "search.metric=validation_accuracy"]
PRINTED = ("T2.1", "T2.2", "T2.3", "TA.2", "TA.3", "TA.4")


def plan(name: str, *changed: str, methods=(), grid=False):
    table, (line,) = find_rows(f"feddyn/{name}")
    return sweep_of(table, line, changed, methods, grid)


def sections(name: str, **options) -> dict[str, dict]:
    """The resolved hyperparameters of each method of a line."""
    made = plan(name, **options)
    trials = [made.search.trial(overrides) for overrides in made.search.configurations]
    return dict(zip(made.headings, (trial.algorithm.model_dump() for trial in trials), strict=True))


def test_every_line_of_the_specification_is_there():
    counts = {name: len(TABLES[name].rows) for name in PRINTED}
    assert counts == {"T2.1": 8, "T2.2": 14, "T2.3": 10, "TA.2": 8, "TA.3": 14, "TA.4": 4}
    assert set(TABLES) == {*PRINTED, "A1", "A2", "A11", "central"}
    for name in PRINTED:
        for line in TABLES[name].rows:
            assert list(line.methods) == ["FedDyn", "SCAFFOLD", "FedAvg", "FedProx"]
            assert len(line.published) == (1 if name == "TA.4" else 2)
            for cells in line.published.values():
                assert all(re.fullmatch(r"\d+\+?", cell) for cell in cells.values())


@pytest.mark.parametrize(
    ("name", "target", "cells"),
    [
        ("T2.1/cifar10-iid", 0.845, ["637", "1852", "1000+", "1000+"]),
        ("T2.1/cifar100-dirichlet0.3-massive", 0.399, ["467", "2266", "1913", "1794"]),
        ("T2.2/mnist-dirichlet0.3", 0.971, ["10", "24", "49", "44"]),
        ("T2.3/shakespeare-natural", 0.476, ["63", "102", "169", "133"]),
        ("TA.2/cifar10-dirichlet0.3-unbalanced", 0.801, ["274", "652", "893", "1000+"]),
        ("TA.3/emnist-iid", 0.949, ["483", "1136", "826", "1000+"]),
        ("TA.4/synthetic-type3", 0.0854, ["34", "260", "79", "106"]),
    ],
)
def test_the_published_numbers_are_those_of_the_source(name, target, cells):
    _, (line,) = find_rows(f"feddyn/{name}")
    assert list(line.published[target].values()) == cells


@pytest.mark.parametrize(("table", "line"), LINES, ids=[f"{t.name}/{line.name}" for t, line in LINES])
def test_every_line_is_a_valid_sweep_with_and_without_its_grids(table, line):
    made = sweep_of(table, line)
    assert made.headings == list(line.methods)
    assert len(made.search.configurations) == len(line.methods)
    if line.grids:
        searched = sweep_of(table, line, grid=True)
        assert set(searched.headings) == set(line.methods)
        assert len(searched.headings) == len(searched.search.configurations) >= len(line.methods)
    else:
        with pytest.raises(UserError, match="no grid is published"):
            sweep_of(table, line, grid=True)


def test_hyperparameters_are_those_of_the_source():
    full = sections("T2.2/mnist-iid")
    assert full["FedAvg"] | {"epochs": 20, "lr": 0.1, "lr_decay": 1.0, "weight_decay": 1e-4} == full["FedAvg"]
    assert full["FedDyn"] | {"epochs": 50, "alpha": 0.01, "batch_size": 50} == full["FedDyn"]
    assert (full["SCAFFOLD"]["steps"], full["FedProx"]["mu"]) == (600, 1e-4)
    tenth = sections("T2.3/mnist-iid")
    assert (tenth["FedDyn"]["alpha"], tenth["FedAvg"]["epochs"], tenth["FedAvg"]["lr_decay"]) == (0.03, 10, 0.998)
    alphas = {
        "T2.2/emnist-iid": 0.005, "T2.3/emnist-iid": 0.003, "T2.3/emnist-dirichlet0.6": 0.005,
        "T2.3/emnist-dirichlet0.3": 0.01, "TA.3/emnist-dirichlet0.6": 0.001, "TA.3/emnist-dirichlet0.3": 0.005,
        "T2.2/shakespeare-iid": 0.009, "T2.3/shakespeare-natural": 0.015, "TA.3/shakespeare-iid": 0.001,
        "T2.1/cifar100-iid-massive": 0.01, "TA.2/cifar100-iid-unbalanced": 0.1,
    }  # fmt: skip
    assert {name: sections(name)["FedDyn"]["alpha"] for name in alphas} == alphas
    steps = {
        "T2.1/cifar10-iid": 50, "T2.1/cifar10-iid-massive": 5, "T2.1/cifar100-iid-massive": 4,
        "TA.2/cifar100-dirichlet0.3-unbalanced": 20, "T2.2/shakespeare-iid": 100, "T2.3/emnist-iid": 500,
    }  # fmt: skip
    assert {name: sections(name)["SCAFFOLD"]["steps"] for name in steps} == steps
    assert all(section["clip_norm"] == 10 for section in full.values())


def test_settings_are_those_of_the_source():
    massive = plan("T2.1/cifar10-dirichlet0.3-massive").search.experiment
    assert (massive.task.partition.clients, massive.clients_per_round, massive.rounds) == (1000, 0.1, 2000)
    assert plan("TA.3/mnist-iid").search.experiment.clients_per_round == 0.01
    assert plan("T2.2/shakespeare-iid").search.experiment.rounds == 150
    assert plan("TA.2/cifar100-iid-unbalanced").search.experiment.task.partition.sizes.sigma == 0.3
    third = plan("TA.4/synthetic-type3").search.experiment
    assert (third.task.data.gamma1, third.task.data.gamma2, third.task.data.gamma3) == (0, 0, 1)
    assert third.evaluation.target_metric == "client_loss"


def belongs(made, heading: str, overrides: dict) -> bool:
    return overrides["algorithm"]["name"] == heading.lower()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("T2.3/mnist-iid", {"FedDyn": 24, "SCAFFOLD": 6, "FedAvg": 6, "FedProx": 18}),
        ("T2.1/cifar10-iid", {"FedDyn": 9, "SCAFFOLD": 3, "FedAvg": 3, "FedProx": 9}),
        ("T2.1/cifar100-iid-massive", {"FedDyn": 18, "SCAFFOLD": 6, "FedAvg": 6, "FedProx": 6}),
        ("T2.2/shakespeare-iid", {"FedDyn": 8, "SCAFFOLD": 2, "FedAvg": 2, "FedProx": 4}),
        ("TA.4/synthetic-type1", {"FedDyn": 18, "SCAFFOLD": 6, "FedAvg": 6, "FedProx": 12}),
    ],
)
def test_grids_are_the_published_ones(name, counts):
    made = plan(name, grid=True)
    assert {heading: made.headings.count(heading) for heading in made.headings} == counts
    assert all(belongs(made, h, o) for h, o in zip(made.headings, made.search.configurations, strict=True))


def test_changes_never_move_a_trial_to_another_method():
    # Of the grid's two learning rates one is left.
    made = plan("T2.3/mnist-iid", "algorithm.lr=0.1", grid=True)
    assert {h: made.headings.count(h) for h in made.headings} == {
        "FedDyn": 12,
        "SCAFFOLD": 3,
        "FedAvg": 3,
        "FedProx": 9,
    }
    assert all(belongs(made, h, o) for h, o in zip(made.headings, made.search.configurations, strict=True))
    with pytest.raises(UserError, match=r"with these --set values, alpha 0.01 equals alpha 0.1; exclude one"):
        plan("A1/cifar10-iid", "algorithm.alpha=0.3")


# ---- results of made-up runs ----------------------------------------------------------------------------------------


def curve(values: list[float], units: int = 1, metric: str = "test_accuracy", **more) -> list[dict]:
    return [
        {"round": i, "transmissions": float(units * i), metric: v, "seconds": 1.0, "dropped": 0, "scalars_down": 0,
         "scalars_up": 0, "bytes_down": 0, "bytes_up": 0, "test_accuracy": v, **more}
        for i, v in enumerate(values, 1)
    ]  # fmt: skip


def result(name: str, trials: list[tuple[str, list[dict], str]], *changed: str) -> SweepResult:
    _, (line,) = find_rows(f"feddyn/{name}")
    finished = SimpleNamespace(
        spec=plan(name, *changed).search,
        trials=[Trial(f"{i:03d}", {"algorithm": {"lr": i}}, r, status) for i, (_, r, status) in enumerate(trials)],
    )
    note = {"headings": [heading for heading, *_ in trials], "changed": []}
    return SweepResult(line, SimpleNamespace(name="x"), finished, note)  # type: ignore[arg-type]


def test_a_methods_best_configuration_reaches_the_first_target_first():
    shown = result("T2.3/mnist-iid", [
        ("FedDyn", curve([0.9, 0.975, 0.98, 0.983]), "finished"),
        ("FedDyn", curve([0.9, 0.96, 0.9825, 0.97]), "finished"),
        ("SCAFFOLD", curve([0.9, 0.973, 0.983], units=2), "finished"),
        ("FedAvg", curve([0.9, 0.973, 0.974, 0.975, 0.976, 0.977]), "finished"),
        ("FedProx", curve([0.9, 0.91]), "failed"),
    ])  # fmt: skip
    high, low = shown.rows()
    # FedDyn's second configuration needs three rounds to 98.2 %, and is shown for both targets.
    assert [high[m] for m in ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")] == [
        "3 (1.0 × FedDyn) [100]", "6 (2.0 × FedDyn) [142]", "6+ (>2.0 × FedDyn) [588]", "2+ [362]",
    ]  # fmt: skip
    assert [low[m] for m in ("FedDyn", "SCAFFOLD", "FedAvg")] == [
        "3 (1.0 × FedDyn) [31]", "4 (1.3 × FedDyn) [52]", "2 (0.7 × FedDyn) [49]",
    ]  # fmt: skip
    remarks = "\n".join(shown.remarks())
    assert "FedDyn: lr=1" in remarks
    assert "FedProx: the run failed before its end" in remarks


def test_a_line_without_targets_shows_the_best_accuracy():
    shown = result("central/shakespeare-natural", [("central", curve([0.3, 0.52, 0.51], units=0), "finished")])
    assert shown.rows() == [{"setting": "Shakespeare / natural", "target": "best", "central": "52.0 % [51.2 %]"}]


def test_a_line_names_the_accuracy_that_it_shows():
    first, second = curve([0.3, 0.6], units=0), curve([0.5, 0.52], units=0)
    for records, accuracy in ((first, 0.2), (second, 0.4)):
        records[-1]["validation_accuracy"] = accuracy
    trials = [("central", records, "finished") for records in (first, second)]
    shown = result("central/shakespeare-natural", trials, *BY_VALIDATION)
    assert (shown.rows()[0]["target"], shown.rows()[0]["central"]) == ("best validation accuracy", "40.0 % [51.2 %]")
    assert [row["target"] for row in result("T2.3/mnist-iid", [], *BY_VALIDATION).rows()] == [
        "98.2 % validation accuracy", "97.2 % validation accuracy",
    ]  # fmt: skip


def test_where_no_configuration_reaches_a_loss_the_lowest_is_shown():
    worse, better = curve([0.5, 0.4], metric="client_loss"), curve([0.5, 0.13], metric="client_loss")
    worse[-1]["test_accuracy"], better[-1]["test_accuracy"] = 0.9, 0.89
    shown = result("TA.4/synthetic-type3", [("FedAvg", worse, "finished"), ("FedAvg", better, "finished")])
    assert shown.best("FedAvg")[0].name == "001"


SMALL = [
    "task.data={name: digits}", "task.model.hidden=[8]", "task.partition.clients=10", "rounds=4",
    "clients_per_round=0.5", "evaluation.targets=[0.99, 0.2]", "algorithm.batch_size=10", "tracking.enabled=false",
]  # fmt: skip


def hedgerow(*arguments: str):
    return CliRunner().invoke(main, [*arguments], catch_exceptions=False)


@pytest.mark.exhaustive("processes")
def test_a_line_runs_and_is_printed_beside_the_published_numbers(ray_here, tmp_path):
    changed = [word for change in SMALL for word in ("--set", change)]
    told = hedgerow(
        "table", "feddyn/T2.3/mnist-iid", *changed, "--methods", "scaffold,FedAvg", "--output", str(tmp_path)
    )
    assert told.exit_code == 0, told.output
    folder = tmp_path / "tables" / "feddyn-T2.3-mnist-iid"
    text = (folder / "table.md").read_text()
    # Four rounds of SCAFFOLD are eight transmissions; the published cells belong to targets that were changed.
    assert re.search(r"\| MNIST / IID \* \| 99 % \| - \| 8\+ \| 4\+ \| - \|", text)
    assert "data digits; rounds run (of 4): SCAFFOLD 4, FedAvg 4" in text
    assert "changed from the source: task.data={name: digits}" in text
    record = json.loads((folder / "table.json").read_text())
    assert [c["heading"] for c in record["lines"][0]["targets"]["0.99"]] == ["SCAFFOLD", "FedAvg"]
    assert f"figures: hedgerow report {folder}" in told.output
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    again = hedgerow("table", "feddyn/T2.3", "--report", "--output", str(tmp_path))
    assert again.exit_code == 0
    assert (tmp_path / "tables" / "feddyn-T2.3" / "table.md").read_text() == text


def test_the_rounds_of_a_killed_table_are_reported_as_those_of_an_interrupted_one(tmp_path):
    # Targets of test samples choose, whatever the metric of the search.
    changed = ["evaluation.target_metric=test_accuracy", "evaluation.stop=false", *BY_VALIDATION]
    made = plan("T2.3/mnist-iid", "output=" + str(tmp_path), *changed, methods=["FedDyn", "FedAvg"])
    assert not made.search.selects_on_test
    folder = RunFolder(tmp_path / "killed")
    # A process that ends without releasing the lock.
    leave = "import os, pathlib; from hedgerow.platform.storage.run_lock import RunLock; "
    leave += f"RunLock(pathlib.Path({str(folder.path)!r})).__enter__(); os._exit(0)"
    folder.path.mkdir()
    subprocess.run([sys.executable, "-c", leave], check=True)
    record = {"status": "running", "created": now(), "versions": {}, "git_commit": None, "command": []}
    folder.update(kind="search", table=made.note, **record)
    folder.experiment.write_text(made.search.dump())
    for heading, values in (("FedDyn", [0.5, 0.975, 0.983]), ("FedAvg", [0.5, 0.6])):
        number = made.headings.index(heading)
        trial = expert_folder(folder.path, number)
        trial.path.mkdir(parents=True)
        trial.update(status="running", overrides=made.search.configurations[number])
        trial.metrics.write_text("".join(f"{seal(record)}\n" for record in curve(values)))
    told = hedgerow("table", "feddyn/T2.3/mnist-iid", "--report", "--output", str(tmp_path))
    assert told.exit_code == 0, told.output
    text = (tmp_path / "tables" / "feddyn-T2.3-mnist-iid" / "table.md").read_text()
    # 98.2 % after 3 rounds; FedAvg not within its 2. 97.2 % after 2 rounds.
    assert "| 98.2 % | 3 (1.0 × FedDyn) [100] | - [142] | 2+ [588] | - [362] |" in text
    assert "| 97.2 % | 2 (1.0 × FedDyn) [31] | - [52] | 2+" in text
    for heading in ("FedDyn", "FedAvg"):
        assert f"MNIST / IID: {heading}: the run was interrupted before its end" in text
    assert "scores on test samples choose configurations" in text
    # Of a search that runs, nothing is final.
    with RunLock(folder.path):
        told = hedgerow("table", "feddyn/T2.3/mnist-iid", "--report", "--output", str(tmp_path))
    assert "no run that has ended is stored under" in told.output


@pytest.mark.parametrize("family", FAMILIES)
def test_no_table_trains_the_same_experiment_twice(family):
    for table in family_tables(family).values():
        found: dict = {}
        done: list[str] = []
        for plan in [plan for row in table.rows for plan in row_searches(table, row)]:
            fingerprints = plan.note["trainings"]
            done += [one for one in fingerprints if one not in found]
            found |= dict.fromkeys(fingerprints, plan.name)
        assert len(set(done)) == len(done), table.name


@pytest.mark.exhaustive("processes")
def test_runs_that_rows_share_are_trained_once_and_continue_to_each_rows_targets(ray_here, tmp_path, monkeypatch):
    monkeypatch.setenv(SOURCE, "0" * 40)

    def run(name: str, folder: str, target: float) -> tuple[dict, list[list[dict]]]:
        sets = [word for one in SMALL if "targets" not in one for word in ("--set", one)]
        sets += ["--set", "task.model.name=mlp", "--set", f"evaluation.targets=[{target}]"]
        place = tmp_path / folder
        done = hedgerow("table", f"feddyn/{name}/cifar10-iid", *sets, "--methods", "fedavg", "--output", str(place))
        assert done.exit_code == 0, done.output
        document = json.loads((place / "tables" / f"feddyn-{name}-cifar10-iid" / "table.json").read_text())
        latest = max(place.glob(f"feddyn-{name}-*"))
        (metrics,) = latest.glob("experts/*/metrics.jsonl")
        assert json.loads((latest / "experts" / "000" / "run.json").read_text())["status"] == "finished"
        return document["lines"][0], [json.loads(line) for line in metrics.read_text().splitlines()]

    # The first stops at its target, the second continues from there to its own, the third trains by itself.
    first, short = run("T2.1", "shared", 0.01)
    # What is no run, or a damaged one, is passed over.
    (tmp_path / "shared" / "torn").mkdir()
    (tmp_path / "shared" / "torn" / "run.json").write_text("{")
    second, long = run("TA.2", "shared", 0.99)
    third, alone = run("TA.2", "alone", 0.99)
    assert (len(short), len(long), len(alone)) == (1, 4, 4)
    assert (first["taken_from"], third["taken_from"]) == ({}, {})
    (source,) = second["taken_from"].values()
    assert re.fullmatch(r"feddyn-T2\.1-cifar10-iid-[\d-]+/experts/000", source)
    assert f"FedAvg: trained once, in {source}" in next((tmp_path / "shared").glob("tables/*TA*/table.md")).read_text()
    # Its first round was not run again: it took as long as before.
    assert long[0] == short[0]
    clock = {"seconds", "sha256"}
    assert [{k: v for k, v in r.items() if k not in clock} for r in long] == [
        {k: v for k, v in r.items() if k not in clock} for r in alone
    ]
    # A line that is run again is trained again.
    assert run("T2.1", "shared", 0.01)[0]["taken_from"] == {}


def row(targets, **task):
    """The search of a row with one trial, on a small data set, that stops when it has reached its targets."""
    sets = [one for one in SMALL if "targets" not in one] + ["task.model.name=mlp", f"evaluation.targets={targets}"]
    sets += [f"task.{key}={value}" for key, value in task.items()]
    return plan("T2.1/cifar10-iid", *sets, "resources.executor=inline", methods=["FedAvg"]).search


def ran(search, output):
    """(its only trial, run to its end; its data)."""
    (overrides,) = search.configurations
    trial = search.trial(overrides)
    data = check(trial, None)
    return run(trial.model_copy(update={"output": str(output)}), data=data).folder, data


def test_a_row_continues_a_run_on_the_same_data_that_is_whole_and_not_longer_than_its_own(tmp_path):
    search = row([0.99])
    folder, data = ran(search, tmp_path)
    found = {training(search.trial(search.configurations[0])): folder}

    def taken(search=search, data=data):
        return taken_over(search, data, found)

    assert taken() == {0: folder}
    dataset, partition = data
    assert taken(data=(replace(dataset, x_train=dataset.x_train[::-1].copy()), partition)) == {}
    assert taken(data=(dataset, replace(partition, order=partition.order[::-1].copy()))) == {}
    # It would have stopped after its first round, the run went on.
    assert taken(row([0.01])) == {}
    # Another that stopped then serves both: the longer one continues from it.
    (short, _), long = ran(row([0.01]), tmp_path / "short"), folder
    found = dict.fromkeys(found, short)
    assert (taken(row([0.01])), taken()) == ({0: short}, {0: short})
    found = dict.fromkeys(found, long)
    metrics = long.metrics.read_bytes()
    long.metrics.unlink()
    assert taken() == {}
    long.metrics.write_bytes(metrics)
    (tensors,) = sorted(long.checkpoints.glob("round-*"))[-1].glob("server.safetensors")
    content = tensors.read_bytes()
    tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert taken() == {}
    tensors.write_bytes(content)
    assert taken() == {0: long}
    shutil.rmtree(long.checkpoints)
    assert taken() == {}


def test_rows_share_across_commands_where_the_source_is_known(tmp_path, monkeypatch):
    def search_folder(name: str, fingerprint: str | None = None) -> None:
        expert = RunFolder(tmp_path / name / "experts" / "000")
        expert.path.mkdir(parents=True)
        table = {"line": f"a/{name}", "changed": [], "trainings": [name if fingerprint is None else fingerprint]}
        RunFolder(tmp_path / name).update(
            status="finished", created="", data_root=None, git_commit=None, versions=versions(), table=table,
            source_commit=source_commit(),
        )  # fmt: skip
        expert.update(status="finished", overrides={})

    monkeypatch.setenv(SOURCE, "0" * 40)
    search_folder("one")
    # The source of the user's own classes may have changed.
    search_folder("own", "")
    assert set(trained_before(tmp_path, [])) == {"one"}
    own = row([0.5]).experiment
    assert training(own)
    model = own.task.model.model_copy(update={"name": "toys.FrozenFirst"})
    assert training(own.model_copy(update={"task": own.task.model_copy(update={"model": model})})) == ""
    assert trained_before(tmp_path, ["a/one"]) == {}
    monkeypatch.setenv(SOURCE, "1" * 40)
    assert trained_before(tmp_path, []) == {}
    monkeypatch.setenv(SOURCE, "0" * 40 + "-dirty")
    search_folder("dirty")
    assert trained_before(tmp_path, []) == {}
    monkeypatch.setattr(sharing, "source_commit", lambda: None)
    RunFolder(tmp_path / "one").update(source_commit=None)
    assert trained_before(tmp_path, []) == {}


def test_the_commit_of_the_source_is_that_of_the_package_and_not_of_the_working_folder(tmp_path, monkeypatch):
    package = tmp_path / "env" / "hedgerow"
    (package / "platform").mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "mine.py").touch()

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "x")
    monkeypatch.chdir(tmp_path)
    here, real = git_commit(), source_commit()
    assert here
    assert real != here
    # An environment inside another project's repository has no commit, unless the package is tracked there.
    monkeypatch.setattr(run_folder, "__file__", str(package / "platform" / "tracking" / "run_folder.py"))
    assert source_commit() is None
    git("add", "-f", "env")
    assert source_commit() == f"{here}-dirty"
    git("commit", "-qm", "y")
    monkeypatch.chdir("/")
    assert (git_commit(), len(source_commit() or "")) == (None, 40)


def test_published_numbers_stand_beside_measured_ones(ray_here, tmp_path):
    changed = [word for change in SMALL if "targets" not in change for word in ("--set", change)]
    told = hedgerow("table", "feddyn/T2.2/mnist-iid", *changed, "--methods", "feddyn", "--output", str(tmp_path))
    assert told.exit_code == 0, told.output
    text = (tmp_path / "tables" / "feddyn-T2.2-mnist-iid" / "table.md").read_text()
    assert "| 98.2 % | 4+ [38] | - [72] | - [194] | - [445] |" in text


@pytest.mark.exhaustive("processes")
def test_cells_of_runs_with_diverged_clients_are_marked(ray_here, tmp_path):
    changed = [word for change in SMALL for word in ("--set", change)]
    changed += ["--set", "algorithm.lr=1e6", "--set", "algorithm.clip_norm=null", "--methods", "fedavg"]
    told = hedgerow("table", "feddyn/T2.3/mnist-iid", *changed, "--output", str(tmp_path))
    assert told.exit_code == 0, told.output
    text = (tmp_path / "tables" / "feddyn-T2.3-mnist-iid" / "table.md").read_text()
    assert re.search(r"\| 99 % \| - \| - \| 4\+† \| - \|", text)
    assert re.search(r"- † MNIST / IID, FedAvg: warning: \d+ client answers were not finite and left out", text)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["feddin/T2.1"], "'feddin' is not a family of tables; did you mean 'feddyn'?"),
        (["feddyn/T2.4"], "there is no such table; did you mean"),
        (["feddyn/T2.1/cifar10-idd"], "feddyn/T2.1 has no such line; did you mean 'cifar10-iid'?"),
        (["feddyn/T2.1", "--methods", "fedavgg"], "--methods: feddyn/T2.1 has no 'fedavgg'; did you mean 'FedAvg'?"),
        (["feddyn/T2.3/emnist-iid", "--grid"], "no grid is published"),
        (["feddyn/T2.1", "--set", "roundz=3"], "--set roundz=3: roundz is not a key here; did you mean 'rounds'?"),
        (["feddyn/T2.3/mnist-iid"], "it should contain MNIST/raw/train-images-idx3-ubyte"),
        (["feddyn/T2.3/shakespeare-natural"], "it should contain train/*.json and test/*.json"),
        (["feddyn/T2.1", "--report"], "no run that has ended is stored under"),
        (["feddyn/T2.1/cifar10-iid", "--set", "evaluation=3"], "--set evaluation=3: evaluation"),
        (["feddyn/T2.1/cifar10-iid", "--set", "search=5"], "--set search: set one key of this section"),
        (["feddyn/T2.1/cifar10-iid", "--set", "search.kind=asha"], "--set search: set one key of this section"),
        (["feddyn/T2.1/cifar10-iid", "--output", "it's: here"], "it should contain cifar-10-batches-py/data_batch_1"),
    ],
)
def test_mistakes_end_in_one_sentence_before_any_work(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDGEROW_DATA_ROOT", raising=False)
    told = hedgerow("table", *arguments)
    assert told.exit_code == 2
    assert sentence in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_experiment_file_of_a_line_can_be_had(tmp_path):
    shown = hedgerow("table", "feddyn/T2.3/mnist-iid", "--show", "--set", "rounds=7").output
    (tmp_path / "line.yaml").write_text(shown)
    again = load_search(tmp_path / "line.yaml")
    assert again.configurations == plan("T2.3/mnist-iid", "rounds=7").search.configurations
    assert again.experiment.rounds == 7


def test_tables_and_lines_are_listed():
    told = hedgerow("table").output
    for table, line in LINES:
        assert f"{table.name}/{line.name}" in told
    own = hedgerow("table", "feddyn").output
    assert own in told
    assert "moml/5.1" in told
    assert "moml" not in own
