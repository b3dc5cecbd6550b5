"""Deployed policies: scores in closed form, draws by seed and round, and a state that is always of a complete round."""

import json
import math
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from hedgerow.algorithms.core.messages import Predictions
from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.deployment import (
    STATE,
    DeployedState,
    Deployment,
    draw,
    keep_round,
    kept_file,
    mixture_score,
)
from hedgerow.searchspaces.hedge.weights import Exp3, Hedge

EXPERTS, ROUNDS, SAMPLES, CLASSES = 3, 6, 20, 4


def predictions(logits: np.ndarray, labels: np.ndarray) -> Predictions:
    return Predictions(torch.tensor(logits, dtype=torch.float32).log_softmax(-1).numpy(), labels)


def drawn(expert: int, round: int) -> Predictions:
    """Predictions of an expert on the samples of a round, which all experts share."""
    labels = np.random.default_rng(round).integers(CLASSES, size=SAMPLES)
    logits = np.random.default_rng((expert, round)).normal(size=(SAMPLES, CLASSES))
    logits[np.arange(SAMPLES), labels] += 0.5 * expert
    return predictions(logits, labels)


def scores(one: Predictions) -> dict[str, float]:
    right = one.log_probabilities[np.arange(len(one.labels)), one.labels]
    hits = one.log_probabilities.argmax(1) == one.labels
    return {"test_accuracy": float(hits.mean()), "test_loss": float(-right.astype(float).mean())}


class TestMixture:
    def test_the_score_of_two_experts_on_two_samples_by_hand(self):
        labels = np.array([0, 1])
        first = predictions(np.log([[0.6, 0.4], [0.7, 0.3]]), labels)
        second = predictions(np.log([[0.2, 0.8], [0.1, 0.9]]), labels)
        # 0.25 and 0.75: probabilities of class 0 are 0.3 and 0.25.
        accuracy, loss = mixture_score({0: 1.0, 1: 3.0}, {0: first, 1: second})
        assert accuracy == 0.5
        assert loss == pytest.approx(-(math.log(0.3) + math.log(0.75)) / 2, abs=1e-6)

    def test_one_expert_alone_is_that_expert(self):
        one = drawn(2, 1)
        accuracy, loss = mixture_score({2: 0.7}, {2: one})
        assert (accuracy, loss) == (scores(one)["test_accuracy"], pytest.approx(scores(one)["test_loss"], abs=1e-6))

    @pytest.mark.parametrize("seed", range(20))
    def test_its_loss_is_at_most_the_weighted_loss_by_jensen(self, seed):
        weights = dict(enumerate(np.random.default_rng(seed).dirichlet(np.ones(EXPERTS))))
        every = {expert: drawn(expert, seed + 1) for expert in range(EXPERTS)}
        expected = sum(weights[i] * scores(one)["test_loss"] for i, one in every.items())
        assert mixture_score(weights, every).loss <= expected + 1e-9

    def test_a_probability_of_zero_in_double_precision_still_has_a_finite_loss(self):
        far = predictions(np.array([[0.0, 1000.0]]), np.array([0]))
        assert mixture_score({0: 0.5, 1: 0.5}, {0: far, 1: far}).loss == pytest.approx(1000)

    def test_diverged_experts_are_left_out_and_other_samples_cannot_be_mixed(self):
        one, bad = drawn(0, 1), predictions(np.full((SAMPLES, CLASSES), math.nan), drawn(0, 1).labels)
        assert mixture_score({0: 0.1, 1: 0.9}, {0: one, 1: bad}) == mixture_score({0: 1.0}, {0: one})
        assert mixture_score({1: 1.0}, {1: bad}) is None
        assert mixture_score({0: 0.5, 1: 0.5}, {0: one, 1: drawn(1, 2)}) is None


def test_a_draw_depends_on_seed_and_round_alone_and_follows_the_weights():
    weights = np.array([0.5, 0.3, 0.2])
    counts = np.bincount([draw(7, round, weights) for round in range(4000)], minlength=3) / 4000
    assert_allclose(counts, weights, atol=0.03)
    assert draw(7, 3, weights) == draw(7, 3, weights)
    assert [draw(0, round, weights) for round in range(9)] != [draw(1, round, weights) for round in range(9)]


class Experts:
    """Experts that write their rounds to files, and Hedge's rounds over them. A round may be reported once written."""

    def __init__(self, folder, policy="leader", every=1, rounds=ROUNDS, hedge=None):
        self.folder, self.records, self.warnings = folder, [], []
        self.deployment = Deployment(folder / "deployed", self.home, policy, every, rounds, True, self.warnings.append)
        self.hedge = HedgeRounds(
            hedge or Hedge(EXPERTS, 0.1), "test_accuracy", "max", averaged=["test_loss"], on_round=self.records.append,
            journal=folder / "journal", seed=5, deployment=self.deployment,
        )  # fmt: skip

    def home(self, expert: int):
        (home := self.folder / str(expert)).mkdir(parents=True, exist_ok=True)
        return home

    def write(self, expert: int, round: int) -> None:
        keep_round(self.home(expert), round, drawn(expert, round), {"w": torch.tensor([expert, round], dtype=float)})

    def report(self, expert: int, round: int) -> None:
        self.hedge.report(expert, round, scores(drawn(expert, round)))

    def run(self, order) -> None:
        for round, expert in order:
            self.write(expert, round)
            self.report(expert, round)


IN_ORDER = [(round, expert) for round in range(1, ROUNDS + 1) for expert in range(EXPERTS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    experts = Experts(tmp_path_factory.mktemp("undisturbed"))
    experts.run(IN_ORDER)
    return experts


class TestRecords:
    def test_each_policy_has_the_scores_of_its_experts_under_the_weights_before_the_round(self, undisturbed):
        for record in undisturbed.records:
            round, weights, deployed = record["round"], np.array(record["weights"]), record["deployed"]
            every = {expert: drawn(expert, round) for expert in range(EXPERTS)}
            assert deployed["leader"]["expert"] == weights.argmax() == record["leader"]
            assert deployed["sample"]["expert"] == draw(5, round - 1, weights)
            for policy in ("leader", "sample"):
                theirs = scores(every[deployed[policy]["expert"]])
                assert deployed[policy]["accuracy"] == theirs["test_accuracy"]
                assert deployed[policy]["loss"] == theirs["test_loss"]
            mixture = mixture_score(dict(enumerate(weights)), every)
            assert deployed["mixture"] == {"accuracy": mixture.accuracy, "loss": pytest.approx(mixture.loss)}
            assert deployed["mixture"]["loss"] <= record["expected"]["test_loss"] + 1e-9
        assert undisturbed.warnings == []

    def test_the_order_of_reports_changes_nothing(self, tmp_path, undisturbed):
        experts = Experts(tmp_path)
        experts.run(sorted(IN_ORDER, key=lambda one: one[1]))
        assert experts.records == undisturbed.records

    def test_the_expert_that_a_bandit_observes_is_the_one_that_is_sampled(self, tmp_path):
        experts = Experts(tmp_path, hedge=Exp3(EXPERTS, ROUNDS, seed=5))
        experts.run(IN_ORDER)
        assert [r["deployed"]["sample"]["expert"] for r in experts.records] == [r["played"] for r in experts.records]

    def test_an_expert_that_failed_is_not_deployed(self, tmp_path):
        experts = Experts(tmp_path)
        experts.run(IN_ORDER[:3])
        leader = int(experts.hedge.hedge.probs().argmax())
        experts.hedge.retire(leader, penalised=True)
        experts.run([one for one in IN_ORDER[3:] if one[1] != leader])
        deployed = [record["deployed"] for record in experts.records[1:]]
        assert leader not in {one[policy]["expert"] for one in deployed for policy in ("leader", "sample")}
        assert all(one["mixture"] is not None for one in deployed)

    def test_predictions_that_are_missing_are_a_warning_once(self, tmp_path):
        experts = Experts(tmp_path)
        for round, expert in IN_ORDER:
            if round > 1:
                experts.report(expert, round)
            else:
                experts.run([(round, expert)])
        assert [record["deployed"]["mixture"] for record in experts.records] == [ANY] + [None] * (ROUNDS - 1)
        assert [record["deployed"]["leader"]["loss"] is not None for record in experts.records] == [True] * ROUNDS
        leader = experts.records[2]["leader"]
        assert experts.warnings == [
            "no mixture is recorded in round 2: expert 0 did not return its predictions",
            f"the deployed state is still that of round 1 after round 2: expert {leader} kept no model of that round",
        ]


class TestState:
    @pytest.mark.parametrize("policy", ["leader", "sample", "mixture"])
    def test_it_is_that_of_the_experts_that_the_policy_deploys_in_the_next_round(self, tmp_path, policy):
        experts = Experts(tmp_path, policy)
        for round in range(1, ROUNDS + 1):
            experts.run([(round, expert) for expert in range(EXPERTS)])
            state, weights = DeployedState.read(tmp_path / "deployed"), experts.hedge.hedge.probs()
            chosen = {"leader": [weights.argmax()], "sample": [draw(5, round, weights)], "mixture": range(EXPERTS)}
            assert (state.round, state.policy, list(state.weights)) == (round, policy, list(chosen[policy]))
            assert list(state.weights.values()) == (weights.tolist() if policy == "mixture" else [1.0])
            for expert, model in state.models.items():
                assert model["w"].tolist() == [expert, round]

    def test_it_stays_until_the_round_is_complete_and_files_of_complete_rounds_are_deleted(self, tmp_path):
        experts = Experts(tmp_path)
        experts.run(IN_ORDER[:5])
        assert DeployedState.read(tmp_path / "deployed").round == 1
        assert [kept_file(experts.home(expert), 1).exists() for expert in range(EXPERTS)] == [False] * 3
        assert [kept_file(experts.home(expert), 2).exists() for expert in range(EXPERTS)] == [True, True, False]
        assert sorted(path.name for path in (tmp_path / "deployed").iterdir()) == [STATE]

    def test_it_is_replaced_every_few_rounds_and_after_the_last(self, tmp_path):
        experts = Experts(tmp_path, every=4)
        rounds = []
        for round in range(1, ROUNDS + 1):
            experts.run([(round, expert) for expert in range(EXPERTS)])
            state = DeployedState.read(tmp_path / "deployed")
            rounds.append(state and state.round)
        assert rounds == [None, None, None, 4, 4, 6]

    def test_with_every_0_there_is_none(self, tmp_path):
        Experts(tmp_path, every=0).run(IN_ORDER)
        assert DeployedState.read(tmp_path / "deployed") is None

    def test_a_damaged_file_is_one_sentence(self, tmp_path):
        (tmp_path / STATE).write_bytes(b"no tensors")
        with pytest.raises(UserError, match=r"state\.safetensors cannot be read .*; delete it"):
            DeployedState.read(tmp_path)


def written_together(experts: Experts, begin: int, end: int) -> None:
    """Rounds that all experts write before one of them reports."""
    for round in range(begin, end):
        for expert in range(EXPERTS):
            experts.write(expert, round)


def reported_together(experts: Experts, begin: int, end: int) -> None:
    for expert in range(EXPERTS):
        experts.hedge.accept((expert, round, scores(drawn(expert, round))) for round in range(begin, end))
    experts.hedge.settle()


@pytest.mark.parametrize("every", [1, 2])
def test_rounds_that_are_reported_together_have_the_same_records_and_deploy_the_last_state(
    tmp_path, undisturbed, every
):
    for folder in ("apart", "together"):
        (tmp_path / folder).mkdir()
    apart, experts = Experts(tmp_path / "apart", every=every), Experts(tmp_path / "together", every=every)
    for begin, end in [(1, 4), (4, ROUNDS + 1)]:
        written_together(experts, begin, end)
        reported_together(experts, begin, end)
        apart.run([one for one in IN_ORDER if begin <= one[0] < end])
        state, expected = (DeployedState.read(one.folder / "deployed") for one in (experts, apart))
        assert (state.round, state.weights) == (expected.round, expected.weights)
        assert [model["w"].tolist() for model in state.models.values()] == [[*state.weights, state.round]]
        assert not any(kept_file(experts.home(expert), begin).exists() for expert in range(EXPERTS))
    assert experts.records == undisturbed.records
    assert experts.warnings == []


@pytest.mark.parametrize("cut", range(1, 26))
def test_a_search_that_was_killed_while_it_settled_rounds_together_continues_alike(tmp_path, undisturbed, cut):
    first = Experts(tmp_path)
    for begin, end in [(1, 4), (4, ROUNDS + 1)]:
        written_together(first, begin, end)
        reported_together(first, begin, end)
    lines = first.hedge.journal.read_text().splitlines(keepends=True)
    first.hedge.journal.write_text("".join(lines[:cut]))
    # The files of rounds that are reported together are deleted once the mixtures of all are in the journal.
    mixed = sum('"mixed"' in line for line in lines[:cut])
    written_together(first, 1 if mixed < 3 else 4, ROUNDS + 1)
    second = Experts(tmp_path)
    second.run(IN_ORDER)
    assert second.records == undisturbed.records
    assert second.warnings == []


@pytest.mark.parametrize("cut", range(1, 26))
def test_a_killed_search_continues_with_the_same_deployed_sequence(tmp_path, undisturbed, cut):
    """Killed after any line of the journal: experts run the rounds after their last report again."""
    first = Experts(tmp_path)
    journal = first.hedge.journal
    whole = undisturbed.hedge.journal.read_text().splitlines(keepends=True)
    reported = [json.loads(line) for line in whole[:cut]]
    # All reports, without the files of complete rounds, and one round more that was not reported.
    for line in reported:
        if "round" in line:
            first.write(line["expert"], line["round"])
    first.write(0, ROUNDS)
    journal.write_text("".join(whole[:cut]))
    for line in reported[:-1]:
        if "mixed" in line:
            first.deployment.forget(line["mixed"], range(EXPERTS))
    second = Experts(tmp_path)
    second.run(IN_ORDER)
    assert second.records == undisturbed.records
    assert DeployedState.read(tmp_path / "deployed").round == ROUNDS
    assert [line for line in journal.read_text().splitlines() if "mixed" in line] == [
        line.strip() for line in whole if "mixed" in line
    ]
