"""Searches of kind fedex: one run, its distributions, and refusals of what clients cannot draw."""

import shutil

import numpy as np
import pytest
from helpers import without_clock
from searches import plan

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial
from hedgerow.searchspaces.spaces.packing import pack_trials
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search, parse_search, read_search
from hedgerow.searchspaces.tune.search_command import search_output
from hedgerow.searchspaces.tune.search_runner import check_search, resume_search, search

SPACE = {"algorithm.lr": [0.01, 0.3], "algorithm.momentum": [0, 0.5, 0.9]}
SLOW_OR_FAST = [{"algorithm.lr": 0.01}, {"algorithm.lr": 0.3}]
KEPT = {"algorithm": {"name": "scaffold", "batch_size": 8}, "rounds": 6, "checkpoints": {"every": 2, "keep": 9}}


def fedex_plan(output, space=SPACE, settings=KEPT, **section) -> SearchSpec:
    return plan(output, **settings, search={"kind": "fedex", "space": space, "report_every": 2, **section})


def wrapped_plan(output, space, **section) -> SearchSpec:
    """A search of another kind over runs whose clients draw lr."""
    search = {"kind": "asha", "space": space, "report_every": 1, "concurrency": 1, **section}
    fedex = {"factors": [SLOW_OR_FAST]}
    return plan(output, **KEPT, task__validation={"fraction": 0.2, "from": "clients"}, fedex=fedex, search=search)


@pytest.fixture(scope="module")
def finished(ray_here, tmp_path_factory) -> FinishedSearch:
    return search(fedex_plan(tmp_path_factory.mktemp("runs")))


def test_a_grid_has_a_distribution_per_key_and_other_spaces_have_one_over_configurations(tmp_path):
    grid = fedex_plan(tmp_path)
    assert grid.configurations == [{}]
    lr, momentum = grid.experiment.fedex.factors
    assert lr == [{"algorithm.lr": 0.01}, {"algorithm.lr": 0.3}]
    assert momentum == [{"algorithm.momentum": value} for value in (0.0, 0.5, 0.9)]
    (joint,) = fedex_plan(tmp_path, joint=True).experiment.fedex.factors
    assert len(joint) == 6
    assert joint[0] == {"algorithm.lr": 0.01, "algorithm.momentum": 0.0}
    space = {"algorithm.lr": {"loguniform": [0.01, 1.0]}, "algorithm.momentum": {"choice": [0.0, 0.9]}}
    (drawn,) = fedex_plan(tmp_path, space, samples=5, schedule="auto").experiment.fedex.factors
    assert len({values["algorithm.lr"] for values in drawn}) == 5
    for one in (grid, fedex_plan(tmp_path, space, samples=5)):
        file = tmp_path / "search.yaml"
        file.write_text(one.dump())
        assert load_search(file).experiment == one.experiment
        assert read_search(file).experiment.fedex == one.experiment.fedex
        assert read_search(file).configurations == [{}]


@pytest.mark.parametrize(
    ("space", "change", "sentence"),
    [
        (
            {"algorithm.lr": [0.1]},
            {},
            "search.space: kind fedex needs at least 2 configurations, and there is 1; add v",
        ),
        (
            {"aggregation.server_optimizer.lr": [0.5, 1.0]},
            {},
            r"clients of scaffold cannot draw aggregation.server_optimizer.lr by FedEx, .* \(algorithm.lr, .*; remove",
        ),
        ({"algorithm.epochs": [1, 2]}, {}, "clients of scaffold cannot draw algorithm.epochs by FedEx, only floats"),
        ({"algorithm.batch_size": [4, 8]}, {}, "clients of scaffold cannot draw algorithm.batch_size by FedEx"),
        ({"clients_per_round": [0.1, 0.2]}, {}, "clients of scaffold cannot draw clients_per_round by FedEx"),
        ({"algorithm.clip_norm": [None, 1.0]}, {}, "search.space.algorithm.clip_norm: kind fedex draws only numbers"),
        (
            {"algorithm.lr": [0.1, 0.2], "algorithm.momentum": {"grid": [0.1], "when": {"algorithm.lr": 0.1}}},
            {},
            "search.space.algorithm.momentum.when: with kind fedex every client draws every key; remove `when`",
        ),
        (
            {"algorithm.lr": [0.1, 0.2]},
            {"algorithm": {"name": "fedsgd"}},
            "clients of fedsgd have no hyperparameters that they can draw by FedEx; use another kind of search",
        ),
        (
            {"algorithm.alpha": [0.1, 0.2]},
            {"algorithm": {"name": "feddyn"}},
            "clients of feddyn cannot draw algorithm.alpha by FedEx",
        ),
        (
            {"algorithm.lr": [0.1, 0.2]},
            {"algorithm": {"name": "ditto"}, "search__score": "server"},
            "clients of ditto have models of their own, so the server has none to score; set `score: client`",
        ),
        (
            {"algorithm.lr": [0.1, 0.2]},
            {"task__validation": {"from": "server"}},
            "task.validation.from: kind fedex scores each client's model on validation samples of the client; set it",
        ),
        (
            {"algorithm.lr": [0.1, 0.2]},
            {"search__metric": "validation_loss"},
            "search.metric: kind fedex minimises the error on the clients' validation samples, not validation_loss; ",
        ),
        ({"algorithm.lr": [0.1, -0.2]}, {}, "algorithm.lr"),
        (
            {"algorithm.lr": [0.1, 0.2]},
            {"fedex": {"factors": [[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.3}]]}, "task__validation": {}},
            "fedex: a search of kind fedex sets this section; remove it",
        ),
    ],
)
def test_what_clients_cannot_draw_is_refused_in_a_sentence(tmp_path, space, change, sentence):
    values = fedex_plan(tmp_path).resolved | {"evaluation": {}}
    values = {key: value for key, value in values.items() if key != "fedex"}
    values["algorithm"] = change.get("algorithm", KEPT["algorithm"])
    values["task"]["validation"] = change.get("task__validation")
    values["search"] |= {"space": space, "metric": change.get("search__metric", "validation_accuracy")}
    values["search"]["score"] = change.get("search__score", "client")
    values["search"]["mode"] = "min" if "loss" in values["search"]["metric"] else "max"
    if "fedex" in change:
        values["fedex"] = change["fedex"]
    with pytest.raises(UserError, match=sentence):
        parse_search(values)


def test_other_kinds_search_over_runs_of_fedex(tmp_path):
    epochs = wrapped_plan(tmp_path, {"algorithm.epochs": [1, 2]})
    assert [epochs.trial(one).algorithm.epochs for one in epochs.configurations] == [1, 2]
    assert all(epochs.trial(one).fedex.factors == [SLOW_OR_FAST] for one in epochs.configurations)
    arms = [[SLOW_OR_FAST], [[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.2}]]]
    lists = wrapped_plan(tmp_path, {"fedex.factors": arms, "algorithm.momentum": [0.0, 0.5]}, kind="grid")
    trials = [lists.trial(one) for one in lists.configurations]
    assert [trial.fedex.factors for trial in trials] == [arms[0], arms[0], arms[1], arms[1]]
    assert pack_trials(trials, 1, None) == [[0, 1, 2, 3]]
    others = wrapped_plan(tmp_path, {"fedex.factors": [arms[0], [[{"algorithm.momentum": m} for m in (0.0, 0.9)]]]})
    assert pack_trials([others.trial(one) for one in others.configurations], 1, None) == [[0], [1]]


def test_the_distributions_of_a_trial_are_over_its_own_lists(tmp_path):
    arms = [[SLOW_OR_FAST], [[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.2}]]]
    lists = wrapped_plan(tmp_path, {"fedex.factors": arms}, kind="grid")
    record = {"round": 1, "theta_0_0": 0.3, "theta_0_1": 0.7, "draws_0_0": 2, "draws_0_1": 4}
    trials = [
        Trial(f"{number:03d}", overrides, [record | {"validation_accuracy": accuracy}])
        for number, (overrides, accuracy) in enumerate(zip(lists.configurations, (0.4, 0.6), strict=True))
    ]
    found = FinishedSearch(RunFolder(tmp_path), lists, trials, [])
    (lr,) = found.thetas
    assert [(row["configuration"], row["probability"]) for row in lr.rows] == [("lr=0.2", 0.7), ("lr=0.1", 0.3)]
    assert found.fedex_warnings == []
    later = {"round": 2, "theta_0_0": 0.02, "theta_0_1": 0.98, "draws_0_0": 2, "draws_0_1": 8}
    trials[1].records.append(later | {"validation_accuracy": 0.5})
    (sentence,) = found.fedex_warnings
    assert sentence.startswith("trial 001, the winner: FedEx settled on algorithm.lr 0.2 in round 2, and since then")


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({"algorithm.lr": [0.1, 0.2]}, "search.space.algorithm.lr has no effect, because the clients draw this key"),
        (
            {"fedex.factors": [[[{"algorithm.lr": 0.1}]], [SLOW_OR_FAST]]},
            "fedex: `factors` has fewer than 2 configurations; give more values",
        ),
    ],
)
def test_a_searched_value_that_no_client_uses_is_refused(tmp_path, space, sentence):
    with pytest.raises(UserError, match=sentence):
        wrapped_plan(tmp_path, space)


def test_a_searched_list_that_clients_cannot_draw_is_refused_before_any_work(tmp_path):
    lists = {"fedex.factors": [[SLOW_OR_FAST], [[{"task.model.p": 0.1}, {"task.model.p": 0.2}]]]}
    with pytest.raises(UserError, match=r"fedex: clients of scaffold cannot draw task.model.p by FedEx"):
        check_search(wrapped_plan(tmp_path, lists), None)


def test_no_validation_samples_are_refused_before_any_work(tmp_path):
    few = fedex_plan(tmp_path, settings={**KEPT, "task__validation": {"fraction": 1e-9}})
    with pytest.raises(
        UserError, match=r"task.validation.fraction: 1e-09 of the clients' 240 training samples is no sam"
    ):
        check_search(few, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("factors", "change", "sentence"),
    [
        (
            [[{"algorithm.lr": 0.1}, {"algorithm.lr": -1.0}]],
            {},
            r"fedex.factors.0.1: a value of algorithm.lr is not valid",
        ),
        (
            [[{"task.model.p": 0.1}, {"task.model.p": 0.2}]],
            {},
            "fedex: clients of scaffold cannot draw task.model.p by",
        ),
        (
            [[{"algorithm.lr": 0.1}, {"algorithm.lr": 1.0}]],
            {"validation": None},
            "`fedex` scores each client's model on",
        ),
        ([[{"algorithm.lr": 0.1}]], {}, "fedex: `factors` has fewer than 2 configurations; give more values"),
    ],
)
def test_a_file_with_a_section_fedex_is_checked_in_the_same_way(tmp_path, factors, change, sentence):
    values = fedex_plan(tmp_path).resolved | {"evaluation": {}}
    del values["search"]
    values |= {"fedex": {"factors": factors}, "task": values["task"] | change}
    with pytest.raises(UserError, match=sentence):
        check(parse_experiment(values), None)


def test_it_is_the_run_that_its_file_describes(finished):
    (trial,) = finished.trials
    alone = run(finished.spec.trial({"resources.executor": "inline"}))
    assert without_clock(trial.records) == without_clock(alone.records)
    assert len({record["theta_0_0"] for record in trial.records}) == 6


def test_the_distributions_and_the_test_score_are_shown(finished, capsys):
    lr, momentum = finished.thetas
    assert (lr.name, lr.labels, momentum.labels) == (
        "lr",
        ["lr=0.01", "lr=0.3"],
        ["momentum=0", "momentum=0.5", "momentum=0.9"],
    )
    for one in (lr, momentum):
        assert np.allclose(one.probabilities.sum(1), 1)
        # Six of twelve clients in each of six rounds.
        assert one.draws[-1].sum() == 36
        assert [row["probability"] for row in one.rows] == sorted(one.probabilities[-1], reverse=True)
    assert finished.figures[:2] == ["fedex_lr", "fedex_momentum"]
    assert all((finished.folder.figures / f"{name}.png").exists() for name in finished.figures)
    assert finished.folder.record()["summary"]["theta"] == {"lr": lr.rows, "momentum": momentum.rows}
    search_output(finished).render()
    shown, written = capsys.readouterr().out, (finished.folder.path / "results.md").read_text()
    for text in (shown, written):
        assert text.count("Final model: validation accuracy ") == 1
        assert text.count("Distribution of ") == 2
        assert "Best by metric" not in text
    assert FinishedSearch.read(finished.folder).thetas[0].rows == lr.rows


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_resumed_search_is_an_undisturbed_one_bit_for_bit(finished, tmp_path):
    copy = tmp_path / finished.folder.name
    shutil.copytree(finished.folder.path, copy)
    trial = copy / "experts" / "000"
    for later in ("round-00000004", "round-00000006"):
        shutil.rmtree(trial / "checkpoints" / later)
    same = FinishedSearch.read(type(finished.folder)(copy))
    same.folder.update(status="interrupted")
    type(finished.folder)(trial).update(status="interrupted")
    resumed = resume_search(str(copy))
    assert without_clock(resumed.trials[0].records) == without_clock(finished.trials[0].records)
    assert resumed.summary == finished.summary


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_with_two_client_actors_it_learns_the_same(finished, tmp_path):
    resources = {"actors": 2, "cpus_per_actor": 0.5}
    two = search(fedex_plan(tmp_path, settings={**KEPT, "resources": resources}))
    for mine, theirs in zip(two.thetas, finished.thetas, strict=True):
        assert np.allclose(mine.probabilities, theirs.probabilities, atol=1e-6)
        assert (mine.draws == theirs.draws).all()


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_asha_over_runs_of_fedex_stops_some_and_shows_the_distribution_of_the_winner(tmp_path):
    finished = search(wrapped_plan(tmp_path, {"algorithm.epochs": [5, 2, 1]}, grace=2, reduction=2))
    lengths = [len(trial.records) for trial in finished.trials]
    assert min(lengths) < max(lengths) == KEPT["rounds"]
    for trial in finished.trials:
        alone = run(finished.spec.trial(trial.overrides | {"resources.executor": "inline"}))
        assert without_clock(trial.records) == without_clock(alone.records[: len(trial.records)])
    (lr,) = finished.thetas
    assert lr.labels == ["lr=0.01", "lr=0.3"]
    assert lr.probabilities[-1].tolist() == [finished.best.records[-1][f"theta_0_{j}"] for j in range(2)]
    assert finished.summary["theta"] == {"lr": lr.rows}
    assert finished.figures[:2] == ["parallel_coordinates", "fedex_lr"]
    assert "## Distribution of lr" in (finished.folder.path / "results.md").read_text()
