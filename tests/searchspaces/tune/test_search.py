"""Searches over federated runs: on Ray Tune, tracked, resumed, and equal to running one expert after the other."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import numpy as np
import optuna
import pytest
import torch
import yaml
from helpers import without_clock
from mlflow.tracking import MlflowClient
from processes import hedgerow
from searches import ROUNDS, SPACE, one_after_the_other, plan

from hedgerow import load
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.mlflow_store import default_uri
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.mlflow_search import SearchStore
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.tune.search_runner import check_search, push, resume_search, search


def one_round_with(output: Path, rate: float) -> float:
    """The training loss of the first round at a learning rate."""
    alone = plan(output, rounds=1).trial({"algorithm.lr": rate, "resources.executor": "inline"})
    return run(alone).records[0]["train_loss"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> list[dict]:
    return one_after_the_other(plan(tmp_path_factory.mktemp("reference")))


@pytest.fixture(scope="module")
def finished(ray_here, tmp_path_factory) -> FinishedSearch:
    """Two experts at a time, which take turns."""
    return search(plan(tmp_path_factory.mktemp("finished"), search__pack="off"))


@pytest.fixture(scope="module")
def tracked(ray_here, tmp_path_factory) -> FinishedSearch:
    """Two packs of two, with MLflow."""
    return search(plan(tmp_path_factory.mktemp("tracked"), tracking__enabled=True))


def are_those_of(done: FinishedSearch, reference: list[dict]) -> None:
    assert done.hedge == reference
    assert done.warning is None
    assert [trial.status for trial in done.trials] == ["finished"] * 4


def runs_of(finished: FinishedSearch) -> tuple[MlflowClient, list]:
    client = MlflowClient(default_uri(finished.folder.path.parent))
    return client, client.search_runs([client.get_experiment_by_name("hedgerow").experiment_id])


@pytest.mark.usefixtures("ray_here")
class TestHedge:
    def test_the_weights_are_those_of_one_expert_after_the_other_bit_for_bit(self, reference, finished, tracked):
        for done in (finished, tracked):
            are_those_of(done, reference)
        assert not np.allclose(reference[-1]["weights"], 0.25)

    @pytest.mark.exhaustive("processes")
    def test_the_weights_of_one_pack_at_a_time_are_those(self, tmp_path, reference):
        are_those_of(search(plan(tmp_path, search__concurrency=1)), reference)

    @pytest.mark.exhaustive("kills")
    def test_an_expert_whose_process_is_killed_changes_nothing(self, tmp_path, reference):
        death = tmp_path / "death"
        # The toy dies in its third round when it finds the file; an empty name keeps the others alive.
        chosen = plan(tmp_path, algorithm__kill_file=str(death))
        calm = one_after_the_other(chosen)
        death.touch()
        finished = search(chosen)
        assert not death.exists()
        assert finished.hedge == calm
        assert [r["leader"] for r in calm] == [r["leader"] for r in reference]

    @pytest.mark.exhaustive("processes")
    def test_with_client_actors_of_their_own_experts_learn_the_same(self, tmp_path, reference):
        finished = search(plan(tmp_path, resources={"actors": 2, "cpus_per_actor": 1}))
        for mine, theirs in zip(finished.hedge, reference, strict=True):
            assert mine["weights"] == pytest.approx(theirs["weights"], abs=1e-6)

    def test_everything_is_recorded_in_a_parent_run_and_a_child_run_per_expert(self, tracked):
        client, runs = runs_of(tracked)
        parent_id = tracked.folder.record()["mlflow_run_id"]
        assert len(runs) == 5
        assert {found.info.status for found in runs} == {"FINISHED"}
        children = [found for found in runs if found.data.tags.get("mlflow.parentRunId") == parent_id]
        assert len(children) == 4
        for child in children:
            trial = tracked.trials[int(child.data.tags["expert"])]
            assert float(child.data.params["algorithm.lr"]) == trial.overrides["algorithm.lr"]
            accuracies = [m.value for m in client.get_metric_history(child.info.run_id, "validation/accuracy")]
            assert accuracies == [record["validation_accuracy"] for record in trial.records]
        for key, name in [
            ("weight/002", None),
            ("hedge/loss", "hedge_loss"),
            ("hedge/regret", "regret"),
            ("hedge/leader", "leader"),
        ]:
            history = [m.value for m in client.get_metric_history(parent_id, key)]
            assert history == [r["weights"][2] if name is None else r[name] for r in tracked.hedge]
        artifacts = {file.path for file in client.list_artifacts(parent_id)}
        assert {"experiment.yaml", "run.json", "metrics.jsonl", "results.csv", "results.md", "figures"} <= artifacts
        mlflow.set_tracking_uri(default_uri(tracked.folder.path.parent))
        models = mlflow.search_logged_models(output_format="list", experiment_ids=[runs[0].info.experiment_id])
        (model,) = [found for found in models if found.name == "model"]
        # Next to it is the one that Hedge deploys.
        (deployed,) = [found for found in models if found.name == "deployed"]
        leader = next(child for child in children if int(child.data.tags["expert"]) == tracked.deployed.experts[0])
        assert (deployed.source_run_id, deployed.params) == (leader.info.run_id, leader.data.params)
        score = tracked.hedge[-1]["deployed"]["leader"]
        scores = {metric.key: metric.value for metric in deployed.metrics}
        assert scores == {f"deployed/{name}": score[name] for name in ("accuracy", "loss")}
        loaded = mlflow.pytorch.load_model(f"models:/{deployed.model_id}")
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, tracked.deployed.models[tracked.deployed.experts[0]][name])
        # The model is the winner's, and so are its parameters and scores.
        (winner,) = [child for child in children if child.data.tags.get("winner") == "true"]
        assert winner.data.tags["expert"] == tracked.best.name
        assert (model.source_run_id, model.params) == (winner.info.run_id, winner.data.params)
        assert float(model.params["algorithm.pull"]) == tracked.best.overrides["algorithm.pull"]
        assert {metric.key: metric.value for metric in model.metrics} == tracked.winner_scores
        parent = client.get_run(parent_id)
        assert {output.model_id for output in parent.outputs.model_outputs} == {model.model_id, deployed.model_id}

    def test_a_search_shows_its_winner_and_no_value_of_what_it_searched(self, tracked):
        client, runs = runs_of(tracked)
        (parent,) = [found for found in runs if found.info.run_id == tracked.folder.record()["mlflow_run_id"]]
        metrics, scores = parent.data.metrics, tracked.winner_scores
        assert {"validation_accuracy", "test_accuracy", "test_loss"} <= scores.keys()
        assert scores.items() <= metrics.items()
        assert {f"winner/{name}": value for name, value in scores.items()}.items() <= metrics.items()
        assert metrics["winner/trial"] == int(tracked.best.name)
        assert not parent.data.params.keys() & tracked.best.settings.keys()
        assert parent.data.params["algorithm.batch_size"] == "8"
        for key, value in tracked.best.settings.items():
            assert parent.data.tags[f"winner/{key}"] == str(value)
        assert (parent.data.tags["algorithm"], parent.data.tags["dataset"]) == ("toys.Stateful", "digits")
        for child in (found for found in runs if found is not parent):
            expert = int(child.data.tags["expert"])
            weights = client.get_metric_history(child.info.run_id, "hedge/weight")
            assert [(m.step, m.value) for m in weights] == [(r["round"], r["weights"][expert]) for r in tracked.hedge]
            assert child.data.metrics["test_accuracy"] == tracked.trials[expert].records[-1]["test_accuracy"]
            assert [file.path for file in client.list_artifacts(child.info.run_id)] == ["experiment.yaml"]

    def test_a_store_that_is_made_anew_ends_the_runs_of_the_one_before(self, tracked):
        client, runs = runs_of(tracked)
        for found in runs:
            client.set_terminated(found.info.run_id, "RUNNING")
        SearchStore(tracked.folder, tracked.spec).end("FINISHED")
        assert {found.info.status for found in runs_of(tracked)[1]} == {"FINISHED"}
        assert len(runs_of(tracked)[1]) == len(runs)

    @pytest.mark.exhaustive("processes")
    def test_no_run_is_left_open_when_the_search_fails(self, tmp_path):
        space = {"algorithm.lr": [0.01, 0.3]}
        broken = plan(
            tmp_path,
            tracking__enabled=True,
            algorithm={"name": "toys.Broken"},
            search={"space": space, "restarts": 0},
        )
        with pytest.raises(RuntimeError, match=r"every trial failed; first error: .*this algorithm is broken"):
            search(broken)
        client = MlflowClient(default_uri(tmp_path))
        runs = client.search_runs([client.get_experiment_by_name("hedgerow").experiment_id])
        assert runs
        assert {found.info.status for found in runs} == {"FAILED"}

    @pytest.mark.exhaustive("processes")
    def test_a_last_report_outside_the_range_ends_the_search_with_its_sentence(self, tmp_path):
        section = {"kind": "hedge", "space": SPACE, "metric": "validation_percent", "report_every": 10}
        chosen = plan(tmp_path, task__metrics=["toys.percent"], evaluation={"clients": 0}, rounds=2, search=section)
        with pytest.raises(UserError, match=r"expert \d reported validation_percent = .* report a fraction instead"):
            search(chosen)

    @pytest.mark.exhaustive("processes")
    def test_a_trial_that_ends_with_a_sentence_of_its_own_leaves_the_others(self, tmp_path):
        section = {"kind": "grid", "space": {"algorithm.fewer": [1, 0]}}
        algorithm = {"name": "broken_algorithms.LongWeightsLater"}
        finished = search(plan(tmp_path, algorithm=algorithm, rounds=2, search=section))
        assert [len(trial.records) for trial in finished.trials] == [1, 2]
        assert "1 of 2 trials failed; first error: " in finished.warning

    @pytest.mark.exhaustive("processes")
    def test_what_mlflow_missed_is_pushed_later(self, finished):
        assert push(str(finished.folder.path)) == []
        client, runs = runs_of(finished)
        assert len(runs) == 5
        assert {found.info.status for found in runs} == {"FINISHED"}
        models = client.search_logged_models([runs[0].info.experiment_id])
        (model,) = [found for found in models if found.name == "model"]
        assert (
            model.source_run_id
            == expert_folder(finished.folder.path, int(finished.best.name)).record()["mlflow_run_id"]
        )


@pytest.mark.usefixtures("ray_here")
class TestSweeps:
    def test_a_grid_leaves_tables_figures_and_a_run_folder_per_trial(self, tmp_path):
        finished = search(
            plan(
                tmp_path,
                search={"kind": "grid", "concurrency": 1, "space": {"algorithm.lr": [0.01, 0.3], "seed": [0, 1]}},
            )
        )
        with (finished.folder.path / "results.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {(row["algorithm.lr"], row["seed"]) for row in rows} == {(a, b) for a in ("0.01", "0.3") for b in "01"}
        accuracies = [float(row["validation_accuracy"]) for row in rows]
        assert accuracies == sorted(accuracies, reverse=True)
        assert "| trial |" in (finished.folder.path / "results.md").read_text()
        assert (finished.folder.figures / "parallel_coordinates.svg").exists()
        # A trial is what `hedgerow run` makes of the same values.
        trial = finished.trials[3]
        alone = run(finished.spec.trial(trial.overrides | {"resources.executor": "inline"}))
        assert without_clock(trial.records) == without_clock(alone.records)
        record = json.loads((finished.folder.path / "experts" / "003" / "run.json").read_text())
        assert record["summary"]["test_accuracy"] == alone.summary["test_accuracy"]
        assert record["plans"]["train/clients"] == {"mode": "loop", "chunk": 1, "compiled": False}

    def test_a_search_in_which_every_trial_diverges_has_no_winner_and_says_why(self, tmp_path):
        kind = {"kind": "grid", "space": {"algorithm.lr": [1e30, 1e35]}}
        finished = search(plan(tmp_path, rounds=2, algorithm={"name": "fedavg"}, search=kind))
        assert finished.winner is None
        assert "the search has no winner: all 2 trials failed or diverged: the run diverged" in finished.warning
        with pytest.raises(UserError, match="has no best trial"):
            _ = load(finished.folder.path).best
        assert finished.folder.record()["summary"] == {}

    @pytest.mark.exhaustive("processes")
    def test_asha_stops_the_weaker_trials_early(self, tmp_path):
        kind = {"kind": "asha", "grace": 2, "reduction": 2, "report_every": 2, "concurrency": 1}
        finished = search(plan(tmp_path, search=kind | {"space": {"algorithm.lr": [0.5, 0.3, 0.0001, 0.0002]}}))
        lengths = [len(trial.records) for trial in finished.trials]
        assert lengths[0] == ROUNDS
        assert min(lengths) == 2
        assert {t.status for t in finished.trials if len(t.records) < ROUNDS} == {"stopped"}

    @pytest.mark.exhaustive("processes")
    def test_optuna_proposes_configurations_one_after_the_other(self, tmp_path):
        space = {
            "algorithm.lr": {"loguniform": [0.01, 0.5]},
            "algorithm.momentum": {"choice": [0.0, 0.5]},
            "algorithm.pull": {"uniform": [0.0, 0.2], "when": {"algorithm.momentum": 0.5}},
        }
        finished = search(plan(tmp_path, search={"kind": "optuna", "samples": 4, "concurrency": 1, "space": space}))
        assert len(finished.trials) == 4
        for trial in finished.trials:
            assert 0.01 <= trial.overrides["algorithm.lr"] <= 0.5
            assert ("algorithm.pull" in trial.overrides) == (trial.overrides["algorithm.momentum"] == 0.5)
            assert len(trial.records) == ROUNDS

    @pytest.mark.exhaustive("processes")
    def test_hyperband_halves_its_brackets(self, tmp_path):
        # Six rounds in brackets of halving by 6: two trials that run to the end, and up to six with one such trial.
        kind = {"kind": "hyperband", "reduction": 6, "report_every": 1}
        space = {"algorithm.lr": [0.3, 0.2, 0.1, 0.0001, 0.0002]}
        # Room for one at a time, since processes are slow to start: they take turns.
        finished = search(plan(tmp_path, resources={"cpus_per_actor": 3}, search={**kind, "space": space}))
        lengths = [len(trial.records) for trial in finished.trials]
        assert lengths[:2] == [ROUNDS, ROUNDS]
        assert sorted(lengths[2:]) == [1, 1, ROUNDS]
        assert {t.status for t in finished.trials if len(t.records) < ROUNDS} == {"stopped"}

    @pytest.mark.exhaustive("processes")
    def test_a_pruner_of_optuna_stops_the_weaker_trials_early(self, tmp_path):
        space = {"algorithm.lr": [0.3, 0.0001]}
        storage = f"sqlite:///{tmp_path / 'study.db'}"
        kind = {"kind": "optuna", "samples": 8, "sampler": "random", "pruner": "halving", "grace": 2, "reduction": 2}
        kind |= {"report_every": 1, "concurrency": 1, "storage": storage, "space": space}
        finished = search(plan(tmp_path, search=kind))
        lengths = [len(trial.records) for trial in finished.trials]
        assert max(lengths) == ROUNDS
        assert min(lengths) == 2
        study = optuna.load_study(study_name="small", storage=storage)
        for one, trial in zip(study.trials, finished.trials, strict=True):
            assert one.params == trial.overrides
            assert list(one.intermediate_values) == list(range(1, len(trial.records) + 1))
            assert one.state.name == ("COMPLETE" if len(trial.records) == ROUNDS else "PRUNED")
            # Smoothed: the mean of the last half.
            values = [record["validation_accuracy"] for record in trial.records][len(trial.records) // 2 :]
            assert one.value == pytest.approx(sum(values) / len(values))

    @pytest.mark.exhaustive("processes")
    def test_population_based_training_copies_the_better_trials(self, tmp_path):
        kind = {"kind": "pbt", "interval": 2, "report_every": 2, "quantile": 0.5, "budget": {"client_rounds": 1000}}
        # Room for one at a time: they take turns, so each sees what the other has reached.
        alone = {"cpus_per_actor": 3}
        space = {"algorithm.lr": [0.0001, 0.3]}
        tracking = {"tracking__enabled": True, "tracking__also": ["deciding_loggers.Diary"]}
        finished = search(plan(tmp_path, **tracking, resources=alone, search=kind | {"space": space}))
        assert [len(trial.records) for trial in finished.trials] == [ROUNDS, ROUNDS]
        # The weak one goes on from the other's checkpoint, whatever its next learning rate is: they share their past.
        weak, strong = (without_clock(trial.records) for trial in finished.trials)
        assert weak[:2] == strong[:2]
        assert weak[0]["train_loss"] != one_round_with(tmp_path, 0.0001)
        # Record, metrics and MLflow agree on the configuration, the rounds and their origin.
        records = [expert_folder(finished.folder.path, i).record() for i in (0, 1)]
        # The lineage has the configuration of every round.
        first, *later = records[0]["lineage"]
        assert (first["donor"], first["donor_overrides"]) == (1, {"algorithm.lr": 0.3})
        assert [copy["donor_overrides"] for copy in later] == [copy["overrides"] for copy in records[0]["lineage"][:-1]]
        assert records[0]["lineage"][-1]["overrides"] == records[0]["overrides"] == finished.trials[0].overrides
        assert "lineage" not in records[1]
        # Loggers follow one model: a copy ends those of the model before, and starts others with its first round.
        rounds = [f"log {number}" for number in range(1, ROUNDS + 1)]
        for folder, record in zip((expert_folder(finished.folder.path, i) for i in (0, 1)), records, strict=True):
            *before, last = (folder.path / "diary.txt").read_text().split("start\n")[1:]
            assert last.splitlines() == [*rounds, "end finished"]
            assert len(before) == len(record.get("lineage", []))
            assert all(one.endswith("end stopped\n") for one in before)
        # Work is what the trials trained, with rounds that copies replaced and without those that came from them.
        spent, cohort = finished.folder.record()["budget"]["spent"], finished.trials[0].records[0]["participants"]
        assert finished.work_sentences[0].startswith(f"Work: {spent // cohort} rounds,")
        assert spent > 2 * ROUNDS * cohort
        client, runs = runs_of(finished)
        children = [found for found in runs if "expert" in found.data.tags]
        assert len(children) == 2
        for child in children:
            trial = finished.trials[int(child.data.tags["expert"])]
            assert float(child.data.params["algorithm.lr"]) == trial.overrides["algorithm.lr"]
            losses = client.get_metric_history(child.info.run_id, "train/loss")
            assert [one.value for one in losses] == [record["train_loss"] for record in trial.records]

    def test_more_than_the_cluster_has_is_refused_before_any_work(self, tmp_path):
        with pytest.raises(UserError, match="64 client actors of 1 CPU and 0 GPU each cannot be placed on this"):
            search(plan(tmp_path, resources={"actors": 64}))


def test_a_partition_that_does_not_fit_is_refused_before_any_work(tmp_path):
    bad = plan(tmp_path, search__space={"task.partition.clients": [12, 5000]})
    with pytest.raises(UserError, match="5000 clients"):
        check_search(bad, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
def test_a_driver_killed_in_mid_search_resumes_to_the_same_end(tmp_path):
    settings = {"rounds": 60, "search__report_every": 5, "search__ahead": 5}
    chosen = plan(tmp_path, **settings)
    file = tmp_path / "file.yaml"
    file.write_text(chosen.dump())
    victim = hedgerow("search", str(file), "--import", "toys", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ThreadPoolExecutor() as pool:
        expected = pool.submit(one_after_the_other, plan(tmp_path / "alone", **settings))
        while not (folders := list(tmp_path.glob("small-*"))) or _rounds(folders[0]) < 10:
            assert victim.poll() is None, "the search ended before it could be killed"
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert 10 <= _rounds(folders[0]) < 60
        resumed: FinishedSearch = resume_search(str(folders[0]))
    assert resumed.hedge == expected.result()
    assert [len(trial.records) for trial in resumed.trials] == [60] * 4
    with pytest.raises(UserError, match="is finished: there is nothing to resume"):
        resume_search(str(folders[0]))


REPORTING = {"concurrency": 1, "report_every": 2, "space": {"algorithm.lr": {"loguniform": [0.001, 0.8]}}}


@pytest.mark.exhaustive("kills")
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "asha", "samples": 6, "grace": 2},
        {"kind": "hyperband", "samples": 6},
        {"kind": "pbt", "samples": 4, "interval": 4},
        {"kind": "optuna", "samples": 7, "pruner": "median", "grace": 2},
        {"kind": "hedge", "allocate": "promote", "samples": 5},
    ],
    ids=lambda kind: kind["kind"],
)
def test_a_kind_that_is_killed_between_two_reports_resumes_to_the_same_decisions(tmp_path, kind):
    settings = {
        "rounds": 12,
        "algorithm": {"name": "fedavg", "batch_size": 8},
        "checkpoints": {"every": 1},
        "search": {**REPORTING, **kind},
    }
    calm = search(plan(tmp_path / "calm", **settings))
    reports = sum('"report"' in line for line in (calm.folder.path / "reports.jsonl").open())
    file = tmp_path / "file.yaml"
    file.write_text(plan(tmp_path / "killed", **settings).dump())
    victim = hedgerow("search", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def reported() -> int:
        journals = list((tmp_path / "killed").glob("*/reports.jsonl"))
        return sum('"report"' in line for line in journals[0].open()) if journals else 0

    while reported() < reports // 2:
        assert victim.poll() is None, "the search ended before it could be killed"
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    (folder,) = (tmp_path / "killed").glob("small-*")
    resumed = resume_search(str(folder))

    def decisions(finished: FinishedSearch) -> list[tuple]:
        return [(trial.overrides, trial.status, without_clock(trial.records)) for trial in finished.trials]

    assert decisions(resumed) == decisions(calm)
    assert resumed.best.name == calm.best.name
    # Of a search that promotes experts: all blocks, in their order, with the weights.
    assert resumed.blocks == calm.blocks


def _rounds(folder: Path) -> int:
    return len(RunLog(folder / "metrics.jsonl").read())


def test_a_search_file_is_yaml_that_a_person_reads(tmp_path):
    text = plan(tmp_path).dump()
    assert yaml.safe_load(text)["search"]["space"]["algorithm.lr"]["grid"] == [0.01, 0.3]


@pytest.mark.exhaustive("processes")
def test_a_search_whose_ray_cannot_start_is_not_advised_to_run_without_ray(tmp_path):
    taken, file = tmp_path / "file", tmp_path / "file.yaml"
    taken.touch()
    file.write_text(plan(tmp_path / "runs", resources={"executor": "inline"}).dump())
    environment = os.environ | {"RAY_TMPDIR": str(taken)}
    ended = hedgerow("search", str(file), env=environment, stderr=subprocess.PIPE, text=True)
    _, words = ended.communicate()
    assert ended.returncode == 2
    assert words.startswith("hedgerow: Ray failed to start on this machine (")
    assert words.count("\n") == 1
    assert words.endswith("unusable; try again\n")


@pytest.mark.exhaustive("processes")
def test_a_search_without_mlflow_imports_no_library_of_a_logger_and_leaves_those_of_tune_usable(tmp_path):
    section = {"kind": "grid", "space": {"algorithm.lr": [0.1]}}
    (tmp_path / "search.yaml").write_text(
        plan(tmp_path, rounds=2, algorithm={"name": "fedavg", "batch_size": 8}, search=section).dump()
    )
    script = (
        "import sys, hedgerow\n"
        "print(hedgerow.search('search.yaml').status)\n"
        "print([name for name in ('mlflow', 'wandb') if name in sys.modules])\n"
        "from ray.air.integrations import mlflow, wandb\n"
        "print(mlflow.mlflow is not None, wandb.wandb is not None)"
    )
    shown = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-3:] == ["finished", "[]", "True True"]
