"""Budgets of searches: client rounds or seconds, after which a search of any kind ends."""

import gc
import os
import signal

import pytest
from helpers import without_clock
from searches import ROUNDS, plan

from hedgerow import load
from hedgerow.platform.common.errors import Interrupted, UserError
from hedgerow.platform.runs.runner import run
from hedgerow.platform.storage.checkpoint import checkpoints, round_of
from hedgerow.platform.tracking.formatting import scores_text
from hedgerow.platform.tracking.run_folder import new_run
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.extra.replay import replay
from hedgerow.searchspaces.hedge.standing import incomplete
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.recording import Recording
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.tune.search_budget import SearchBudget
from hedgerow.searchspaces.tune.search_command import search_output
from hedgerow.searchspaces.tune.search_runner import check_search, resume_search, search

COHORT = 6
"""Clients of a round: half of twelve."""
ONE = {"concurrency": 1, "pack": "off"}
"""One trial at a time."""


def budgeted(output, budget, **section):
    """Four configurations by default."""
    keys = {"kind": "grid", "space": {"algorithm.lr": [0.01, 0.3], "algorithm.pull": [0.0, 0.1]}, "report_every": 4}
    return plan(output, search={**keys, **section, "budget": budget})


def spent(finished: FinishedSearch) -> int:
    return sum(record["participants"] for trial in finished.trials for record in trial.records)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"budget": {}}, r"search.budget: give either `client_rounds` or `seconds`"),
        ({"budget": {"client_rounds": 9, "seconds": 1.0}}, r"search.budget: give either `client_rounds` or `seconds`"),
        ({"budget": {"client_rounds": 99}, "record": "all"}, r"`record: all` needs every round of every trial, and"),
    ],
)
def test_a_budget_has_one_key_and_no_recording(tmp_path, section, sentence):
    with pytest.raises(UserError, match=sentence):
        budgeted(tmp_path, **section)


@pytest.mark.parametrize(
    ("section", "least", "trials"),
    [
        ({}, 4 * COHORT, "each of the 4 trials"),
        ({"kind": "optuna", "samples": 5}, COHORT, "a trial"),
    ],
)
def test_a_budget_below_one_round_of_each_trial_is_refused_before_any_work(tmp_path, section, least, trials):
    sentence = (
        rf"search.budget.client_rounds: {least - 1} is less than one round of {trials}; set it to at least {least}"
    )
    with pytest.raises(UserError, match=sentence):
        check_search(budgeted(tmp_path, {"client_rounds": least - 1}, **section), None)
    check_search(budgeted(tmp_path, {"client_rounds": least}, **section), None)
    assert not list(tmp_path.iterdir())


class Interrupting:
    """Observer of a search that sends a signal when a trial has reported a round."""

    def __init__(self, trial: int, round: int):
        self.place, self.labels = (trial, round), [""] * 9

    def trial(self, index, record):
        if (index, record["round"]) == self.place:
            os.kill(os.getpid(), signal.SIGINT)

    def state(self, index, text): ...

    def hedge(self, record): ...

    def note(self, text): ...


@pytest.fixture(scope="module")
def undisturbed(ray_here, tmp_path_factory) -> FinishedSearch:
    """The first trial trains to its end, the second one for five of six rounds, and no other one starts."""
    return search(budgeted(tmp_path_factory.mktemp("runs"), {"client_rounds": 11 * COHORT}, **ONE))


def test_a_search_trains_until_its_client_rounds_are_spent(undisturbed, capsys):
    assert [len(trial.records) for trial in undisturbed.trials] == [ROUNDS, ROUNDS - 1]
    assert [trial.status for trial in undisturbed.trials] == ["finished", "stopped"]
    for trial in undisturbed.trials:
        alone = run(undisturbed.spec.trial(trial.overrides | {"resources.executor": "inline"}))
        assert without_clock(trial.records) == without_clock(alone.records[: len(trial.records)])
        # The model that a trial leaves is that of its last round.
        last = checkpoints(expert_folder(undisturbed.folder.path, int(trial.name)).checkpoints)[-1]
        assert round_of(last) == len(trial.records)
    record = undisturbed.folder.record()
    assert record["status"] == "finished"
    assert record["budget"] == {"client_rounds": 66, "spent": 66, "ended": True}
    sentence = "Budget: 66 of 66 client rounds spent, which ended the search (search.budget)."
    search_output(undisturbed).render()
    assert capsys.readouterr().out.count(sentence) == 1
    assert sentence in (undisturbed.folder.path / "results.md").read_text()
    assert load(undisturbed.folder).work_sentences == [
        "Work: 11 rounds, 45.8 % of a full grid (4 trials of 6 rounds).", sentence
    ]  # fmt: skip


@pytest.mark.usefixtures("ray_here")
def test_a_budget_that_is_not_spent_changes_nothing(tmp_path):
    keys = {**ONE, "space": {"algorithm.lr": [0.01]}}
    finished = search(budgeted(tmp_path, {"client_rounds": 37}, **keys))
    assert finished.folder.record()["budget"] == {"client_rounds": 37, "spent": 36, "ended": False}
    assert finished.work_sentences == [
        "Work: 6 rounds, 100.0 % of a full grid (1 trial of 6 rounds).",
        "Budget: 36 of 37 client rounds spent (search.budget).",
    ]
    assert [trial.status for trial in finished.trials] == ["finished"]


@pytest.mark.usefixtures("ray_here")
def test_a_resumed_search_has_spent_what_it_spent_before(undisturbed, tmp_path):
    try:
        search(budgeted(tmp_path, {"client_rounds": 11 * COHORT}, **ONE), show=Interrupting(0, 4))
        pytest.fail("the signal did not interrupt the search")
    except Interrupted:
        pass
    # The frames of the interruption hold the resources of its trial.
    gc.collect()
    (folder,) = tmp_path.iterdir()
    resumed = resume_search(str(folder))
    assert [without_clock(one.records) for one in resumed.trials] == [
        without_clock(one.records) for one in undisturbed.trials
    ]
    assert resumed.folder.record()["budget"] == undisturbed.folder.record()["budget"]


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_promotion_spends_what_it_is_given_and_says_what_it_chose_at_which_price(tmp_path, capsys):
    keys = {**ONE, "kind": "hedge", "allocate": "promote", "grace": 1, "reduction": 2}
    half, whole = (search(budgeted(tmp_path, budget, **keys)) for budget in ({"client_rounds": 12 * COHORT}, None))
    assert [len(trial.records) for trial in whole.trials] == [ROUNDS] * 4
    # Less work ends the same sequence of blocks earlier.
    assert 4 < len(half.blocks) < len(whole.blocks)
    assert half.blocks == whole.blocks[: len(half.blocks)]
    assert sum(len(trial.records) for trial in half.trials) == 12
    assert whole.work_sentences == ["Work: 24 rounds, 100.0 % of a full grid (4 trials of 6 rounds)."]
    search_output(half).render()
    out = capsys.readouterr().out
    assert "Work: 12 rounds, 50.0 % of a full grid (4 trials of 6 rounds)." in out
    assert f"Winner: {half.winner_label} (trial {half.winner_name}" in out
    assert f"): {scores_text(half.winner_scores)}." in out
    assert [*half.winner_scores] == ["validation_accuracy", "test_accuracy", "test_loss"]


KINDS = {
    "hedge": {"kind": "hedge", "concurrency": 2},
    "lock-step": {"kind": "hedge", "ahead": 0, "pack": "off"},
    "turns": {"kind": "hedge", "ahead": 2, "concurrency": 2, "pack": "off"},
    "promote": {"kind": "hedge", "allocate": "promote", "grace": 1, "concurrency": 2},
    "grid": {"concurrency": 2},
    "random": {"kind": "random", "samples": 4, "space": {"algorithm.lr": {"loguniform": [0.01, 0.3]}}},
    "asha": {"kind": "asha", "grace": 2, "reduction": 2, "concurrency": 2},
    "hyperband": {"kind": "hyperband", "reduction": 2, "concurrency": 2, "report_every": 2},
    "pbt": {"kind": "pbt", "interval": 2, "concurrency": 2, "report_every": 2},
    "optuna": {"kind": "optuna", "samples": 9, "pruner": "median", "grace": 2, "concurrency": 2},
    "fedex": {"kind": "fedex", "space": {"algorithm.lr": [0.01, 0.3]}},
}
ALWAYS = ("hedge", "promote", "optuna")
"""Kinds that `make test` runs."""


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    "kind", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.exhaustive("grid")) for name in KINDS]
)
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.exhaustive("grid")), 3], ids=["every round evaluated", "each third"]
)
def test_every_kind_ends_within_a_round_of_each_trial(tmp_path, kind, every):
    limit = 5 * COHORT if kind == "fedex" else 10 * COHORT
    keys = {"algorithm__name": "fedavg"} if kind == "fedex" else {}
    spec = plan(
        tmp_path, **keys, evaluation__every=every,
        search={"kind": "grid", "space": {"algorithm.lr": [0.01, 0.1], "algorithm.momentum": [0.0, 0.5]},
                "report_every": 4, **KINDS[kind], "budget": {"client_rounds": limit}},
    )  # fmt: skip
    finished = search(spec)
    note = finished.folder.record()["budget"]
    assert note["ended"]
    assert limit <= note["spent"] < limit + COHORT * len(finished.trials)
    if kind != "pbt":
        # A trial whose model is a copy has the records of the other one.
        assert note["spent"] == spent(finished)
    assert {trial.status for trial in finished.trials} <= {"finished", "stopped"}
    if spec.search.weighs_rounds and kind != "promote":
        # Every round that all experts have run is complete.
        all_ran = min(len(trial.records) for trial in finished.trials) if len(finished.trials) == 4 else 0
        assert len(finished.hedge) == all_ran // every


@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize("allocate", ["rounds", "promote"])
def test_a_search_by_hedge_that_ends_before_its_first_round_says_so(tmp_path, allocate, capsys):
    finished = search(budgeted(tmp_path, {"seconds": 1e-6}, kind="hedge", allocate=allocate, pack="off"))
    said = incomplete(4) if allocate == "rounds" else "promotion has no weights, because no expert has completed a bloc"
    assert said in finished.warning
    assert "the search has no winner" in finished.warning
    assert finished.hedge == [] == finished.blocks
    assert finished.folder.record()["budget"]["ended"]
    search_output(finished).render()
    assert "which ended the search (search.budget)" in capsys.readouterr().out


def test_a_replay_has_a_budget_of_its_own(tmp_path):
    rounds = {name: [1.0, 1.0] for name in ("configuration", "round", "client_rounds", "sample_gradients")}
    recording = Recording("small", plan(tmp_path).resolved, [{}], rounds)
    with pytest.raises(UserError, match="budget has no effect in a replay; remove it, and give --budget"):
        replay(recording, "hedge", ["search.budget={client_rounds: 99}"])


@pytest.mark.usefixtures("ray_here")
def test_a_resumed_search_pays_no_round_that_a_trial_has_from_a_copy(tmp_path):
    wanted = budgeted(tmp_path, {"client_rounds": 1000})
    with new_run(wanted.experiment, None, wanted.dump()) as (folder, _):
        for number in range(2):
            trial = expert_folder(folder.path, number)
            trial.path.mkdir(parents=True)
            counts = ("dropped", "scalars_down", "scalars_up", "bytes_down", "bytes_up", "exchanges")
            record = {"participants": 6, **dict.fromkeys(counts, 0), "transmissions": 1.0, "seconds": 1.0}
            RunLog(trial.metrics).replace({"round": i, **record} for i in range(1, 11))
            # The second trial has taken over the model of round 8 after its own round 3.
            trial.update(status="running", overrides={}, copied=5 * number)
        folder.update(budget={"client_rounds": 1000, "spent": 12, "ended": False})
        assert SearchBudget(wanted.search.budget, folder, None).spent == 6 * 10 + 6 * 5
