"""FedEx: its step on theta, the draws of clients, and runs with it."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import (
    PackRun,
    SingleRun,
    blobs,
    build,
    check_resuming,
    distance,
    experiment,
    identical,
    partition,
    small_task,
)

from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.slots.fedex import FedEx, draw, initial_state, theta, updated, updated_by_next
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.validation_samples import hold_back_shares
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.tracking.summary import fedex_warnings

DRAWS = [[0, 1, 2, 0], [1, 1, 2, 0], [2, 0, 1, 1], [1, 2, 1, 0], [1, 1, 1, 2]]
ERRORS = [
    [0.80, 0.60, 0.90, 0.82],
    [0.55, 0.57, 0.88, 0.79],
    [0.86, 0.78, 0.50, 0.52],
    [0.47, 0.85, 0.45, 0.77],
    [0.42, 0.40, 0.41, 0.83],
]
SIZES = [[10, 20, 30, 40], [10, 20, 30, 40], [25, 25, 25, 25], [40, 30, 20, 10], [10, 20, 30, 40]]


def settings(*counts: int, **values) -> FedEx:
    """Distributions of these numbers of values."""
    factors = [[{f"algorithm.k{i}": float(j)} for j in range(n)] for i, n in enumerate(counts)]
    return FedEx(factors=factors, **values)


def thetas(fedex: FedEx, draws=DRAWS, errors=ERRORS, sizes=SIZES) -> list[list[float]]:
    """Theta of the first distribution before the first and after each round."""
    state = initial_state([len(factor) for factor in fedex.factors])
    result = [theta(state["distributions"]["0"]).tolist()]
    for drawn, error, size in zip(draws, errors, sizes, strict=True):
        columns = [torch.tensor(drawn)] * len(fedex.factors)
        state = updated(state, columns, torch.tensor(error, dtype=torch.float64), torch.tensor(size), fedex)
        result.append(theta(state["distributions"]["0"]).tolist())
    return result


WORKED = [
    "adaptive, 0 | .181879 .517843 .300278 | .173983 .571202 .254816 | .116248 .820929 .062823",
    "adaptive, .9 | .181879 .517843 .300278 | .173983 .571202 .254816 | .105110 .817746 .077144",
    "aggressive, 1 | .181879 .517843 .300278 | .083992 .869156 .046852 | .048880 .950773 .000347",
    "auto, 0 | .155125 .558326 .286548 | .149880 .602498 .247622 | .114730 .775950 .109320",
    "constant, 1 | .155125 .558326 .286548 | .147368 .620158 .232474 | .074286 .886974 .038741",
]
"""Schedule and discount; theta after rounds 1, 2 and 5."""


@pytest.mark.parametrize("row", WORKED)
def test_theta_is_that_of_the_worked_example(row):
    (schedule, discount), *expected = (part.replace(",", "").split() for part in row.split("|"))
    found = thetas(settings(3, schedule=schedule, discount=float(discount)))
    assert found[0] == pytest.approx([1 / 3] * 3)
    for number, values in zip((1, 2, 5), expected, strict=True):
        assert found[number] == pytest.approx([float(value) for value in values], abs=6e-7)


def test_one_round_in_closed_form():
    # w = (1/4, 3/4), e = (0.4, 0.8), b = 0 and theta = 1/2: g = (0.2, 1.2), and D = 1.2.
    one = thetas(settings(2), [[0, 1]], [[0.4, 0.8]], [[1, 3]])[1]
    rate = math.sqrt(2 * math.log(2)) / 1.2
    first, second = math.exp(-rate * 0.2), math.exp(-rate * 1.2)
    assert one == pytest.approx([first / (first + second), second / (first + second)], abs=1e-15)


def test_clients_without_validation_samples_move_nothing_but_the_counts():
    start = initial_state([2])
    after = updated(start, [torch.tensor([0, 1])], torch.tensor([math.nan, math.nan]), torch.zeros(2), settings(2))
    assert after["distributions"]["0"]["log_theta"].equal(start["distributions"]["0"]["log_theta"])
    assert after["distributions"]["0"]["draws"].tolist() == [1, 1]
    some = [thetas(settings(2), [[0, 1, 1]], [[0.4, 0.8, e]], [[1, 3, 0]])[1] for e in (0.1, math.nan)]
    assert some[0] == some[1] == thetas(settings(2), [[0, 1]], [[0.4, 0.8]], [[1, 3]])[1]


def server_thetas(fedex: FedEx, draws, errors, sizes, contributed) -> list[list[float]]:
    """Theta of the first distribution before the first and after each round, with `score: server`."""
    state = initial_state([len(factor) for factor in fedex.factors])
    result = [theta(state["distributions"]["0"]).tolist()]
    for drawn, error, size, kept in zip(draws, errors, sizes, contributed, strict=True):
        columns = [torch.tensor(drawn)] * len(fedex.factors)
        errors_of, sizes_of = torch.tensor(error, dtype=torch.float64), torch.tensor(size, dtype=torch.float64)
        state = updated_by_next(state, columns, errors_of, sizes_of, torch.tensor(kept), fedex)
        result.append(theta(state["distributions"]["0"]).tolist())
    return result


def reference_of_the_server_score(n, schedule, discount, draws, errors, sizes, contributed) -> list[list[float]]:
    """The formulas of the docstring of `updated_by_next`, client by client, in NumPy."""
    logs, squares, values, before, result = np.log(np.full(n, 1 / n)), 0.0, [], None, [[1 / n] * n]
    for drawn, error, size, kept in zip(draws, errors, sizes, contributed, strict=True):
        now = (drawn, np.array(size) / sum(size), kept, np.exp(logs)) if sum(size) else None
        if before and now:
            score = sum(w * e for w, e in zip(now[1], error, strict=True) if w)
            ages = discount ** np.arange(len(values))[::-1] if values else np.zeros(0)
            baseline = ages @ np.array(values) / ages.sum() if values else 0.0
            g, value = np.zeros(n), 0.0
            for choice, w, is_kept in zip(*before[:3], strict=True):
                e = score if is_kept else 1.0
                g[choice] += w * (e - baseline) / before[3][choice]
                value += w * e
            values.append(value)
            largest = np.abs(g).max()
            squares += largest**2
            divisor = {"adaptive": squares**0.5, "aggressive": largest, "auto": len(values) ** 0.5, "constant": 1.0}
            logs = logs - math.sqrt(2 * math.log(n)) / divisor[schedule] * g
            logs -= np.log(np.exp(logs).sum())
        before = now
        result.append(np.exp(logs).tolist())
    return result


@pytest.mark.parametrize("discount", [0.0, 0.9])
@pytest.mark.parametrize("schedule", ["adaptive", "aggressive", "auto", "constant"])
def test_the_score_of_the_server_is_that_of_a_plain_reference(schedule, discount):
    rng = np.random.default_rng(0)
    rounds, clients = 8, 6
    draws, errors = rng.integers(0, 4, (rounds, clients)).tolist(), rng.random((rounds, clients)).tolist()
    sizes, contributed = rng.integers(0, 9, (rounds, clients)), (rng.random((rounds, clients)) < 0.8).tolist()
    # A round whose clients have no validation samples.
    sizes[4] = 0
    given = draws, errors, sizes.tolist(), contributed
    found = server_thetas(settings(4, score="server", schedule=schedule, discount=discount), *given)
    assert np.allclose(found, reference_of_the_server_score(4, schedule, discount, *given), atol=1e-12)
    assert found[0] == found[1]
    assert found[4] == found[5] == found[6] != found[7]


def test_one_round_scored_by_the_next_in_closed_form():
    # Round 1 draws (0, 1) with w = (1/4, 3/4) from theta = 1/2; in round 2, E = (0.4 + 0.8) / 2 = 0.6 and b = 0, so
    # that g = (0.3, 0.9) and D = 0.9. The client with w = 3/4 has error 1 if it diverged: g = (0.3, 1.5), D = 1.5.
    given = [[0, 1], [1, 1]], [[0.1, 0.2], [0.4, 0.8]], [[1, 3], [5, 5]]
    for kept, g in (([True, True], [0.3, 0.9]), ([True, False], [0.3, 1.5])):
        p = np.exp(-math.sqrt(2 * math.log(2)) * np.array(g) / max(g))
        found = server_thetas(settings(2, score="server"), *given, [kept, [True, True]])
        assert found[1] == pytest.approx([0.5, 0.5])
        assert found[2] == pytest.approx((p / p.sum()).tolist(), abs=1e-15)


def test_parameters_have_distributions_of_their_own():
    fedex = settings(3, 2)
    state, drawn = initial_state([3, 2]), [torch.tensor(DRAWS[0]), torch.tensor([0, 1, 1, 0])]
    after = updated(state, drawn, torch.tensor(ERRORS[0]), torch.tensor(SIZES[0]), fedex)["distributions"]
    assert theta(after["0"]).tolist() == pytest.approx(thetas(settings(3))[1], abs=1e-7)
    w, e = np.array(SIZES[0]) / 100, np.array(ERRORS[0])
    g = np.array([(w * e)[[0, 3]].sum(), (w * e)[[1, 2]].sum()]) * 2
    p = np.exp(-math.sqrt(2 * math.log(2)) * g / g.max())
    assert theta(after["1"]).tolist() == pytest.approx((p / p.sum()).tolist(), abs=1e-7)
    assert after["1"]["draws"].tolist() == [2, 2]


def test_a_settled_distribution_uses_its_most_probable_value_and_learns_no_more():
    entropies = [-sum(p * math.log(p) for p in one) for one in thetas(settings(3))]
    assert entropies[1] > 0.95 > entropies[3]
    found = thetas(settings(3, cutoff=0.95))
    settled = next(i for i, one in enumerate(found) if -sum(p * math.log(p) for p in one) < 0.95)
    assert found[settled:] == [found[settled]] * (6 - settled)
    state = initial_state([3])
    state["distributions"]["0"]["log_theta"] = torch.tensor(found[settled], dtype=torch.float64).log()
    cohort = Cohort(7, np.arange(40), np.ones(40), 40)
    assert draw(state, cohort, 0.95)[0].tolist() == [1] * 40
    assert set(draw(state, cohort, 0.0)[0].tolist()) == {0, 1, 2}


def test_draws_are_keyed_by_seed_round_and_client_and_follow_theta():
    state = initial_state([3, 3])
    state["distributions"]["0"]["log_theta"] = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    everyone = Cohort(4, np.arange(20_000), np.ones(20_000), 20_000, seed=3)
    first, second = draw(state, everyone, 0.0)
    assert np.bincount(first) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    assert np.bincount(second) / 20_000 == pytest.approx([1 / 3] * 3, abs=0.015)
    some = np.array([5, 77, 19_999])
    assert draw(state, Cohort(4, some, np.ones(3), 20_000, seed=3), 0.0)[0].tolist() == first[some].tolist()
    for other in (
        Cohort(5, everyone.clients, everyone.sizes, 20_000, seed=3),
        Cohort(4, everyone.clients, everyone.sizes, 20_000),
    ):
        assert (draw(state, other, 0.0)[0] == first).double().mean() < 0.45


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        ([], "fewer than 2 configurations"),
        ([[{"algorithm.lr": 0.1}]], "fewer than 2 configurations"),
        ([[{"algorithm.lr": 0.1}, {"algorithm.momentum": 0.1}]], "need the same keys"),
        ([[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.2}]] * 2, "algorithm.lr in two lists"),
    ],
)
def test_wrong_factors_are_refused_in_a_sentence(factors, sentence):
    with pytest.raises(ValueError, match=sentence):
        FedEx(factors=factors)


# ---- runs ------------------------------------------------------------------------------------------------------------

DATA = blobs(samples=200)
CLIENTS = hold_back_shares(partition(np.array([40, 35, 30, 25, 20]), seed=0), 0.3, 0)
LOOP, VMAP = ("loop", 1), ("vmap", 3)
RATES = [[{"algorithm.lr": 0.01}, {"algorithm.lr": 0.5}], [{"algorithm.momentum": m} for m in (0.0, 0.5, 0.9)]]
SECTION = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": 8, "lr_decay": 0.9}
SCORES = ["client", "server"]
ALGORITHMS = ["fedavg", "fedprox", "feddyn", "scaffold", "fedsplit"]


def run(
    name, mode=VMAP, folder=None, factors=RATES, shares=1, rounds=4, section=None, clients=CLIENTS, seed=0, **fedex
):
    """Run of FedEx, ready to be iterated. factors: None for the plain algorithm."""
    hyper = SECTION | (section or {})

    def one():
        own = FedEx(factors=factors, **fedex) if factors else None
        return build(algorithm_class(name), hyper, small_task(DATA), fedex=own)

    hosted, driven = one(), one()
    spec = experiment(hosted.inner.hyper, rounds=rounds, seed=seed, engine=EngineConfig(mode=mode[0], chunk=mode[1]))
    worker = Worker([hosted], DATA, clients, spec.seed, spec.resources)
    return SingleRun([FederatedServer(spec, driven, clients, len(DATA.y_test))], worker, [folder], shares)


def last(run):
    """A run that has reached its end, and its last record."""
    return run, list(run)[-1]


@pytest.mark.grid
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_configurations_are_the_plain_run_bit_for_bit(name, mode, score):
    plain, fedex = run(name, mode, factors=None), run(name, mode, factors=[[{"algorithm.lr": 0.2}] * 3], score=score)
    new = {f"{what}_0_{j}" for what in ("theta", "draws") for j in range(3)}
    new |= {"train_validation_error", "train_validation_samples"}
    for one, other in zip(plain, fedex, strict=True):
        assert other.keys() - one.keys() == new
        kept = {key: value for key, value in other.items() if key in one and key != "seconds"}
        assert kept == {key: value for key, value in one.items() if key != "seconds"}
    states = fedex.server.copy()
    # The draws of the last round are not scored by a next one.
    assert states.pop("fedex")["updates"] == (4 if score == "client" else 3)
    assert identical(flatten(plain.server), flatten(states))


@pytest.mark.grid
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("section", [{}, {"transforms": [{"kind": "clip", "norm": 0.5}]}], ids=["bare", "slots"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_in_a_loop_it_is_that_under_vmap(name, section, score):
    (loop, first), (vmap, second) = (last(run(name, mode, section=section, score=score)) for mode in (LOOP, VMAP))
    assert distance(flatten(loop.server), flatten(vmap.server)) < 2e-6
    for key, value in first.items():
        if key.startswith("draws_"):
            assert second[key] == value
    assert sum(first[f"draws_1_{j}"] for j in range(3)) == 4 * 5
    plain, _ = last(run(name, factors=None, section=section))
    assert max(float((plain.server["w"][key] - w).abs().max()) for key, w in loop.server["w"].items()) > 1e-3


ALONE = hold_back_shares(partition(np.array([60]), seed=0), 0.3, 0)
"""One client."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_client_trains_with_the_values_that_it_drew_and_reports_the_error_of_its_model(mode, seed):
    fedex, record = last(run("fedavg", mode, rounds=1, clients=ALONE, schedule="constant", seed=seed))
    numbers = [next(j for j in range(len(factor)) if record[f"draws_{i}_{j}"]) for i, factor in enumerate(RATES)]
    drawn = {"lr": RATES[0][numbers[0]]["algorithm.lr"], "momentum": RATES[1][numbers[1]]["algorithm.momentum"]}
    plain, _ = last(run("fedavg", mode, factors=None, rounds=1, section=drawn, clients=ALONE, seed=seed))
    most = 0.0 if mode == LOOP else 1e-6
    assert distance(plain.server["w"], fedex.server["w"]) <= most
    rows = ALONE.rows("selection")
    logits = small_task(DATA).logits(fedex.server["w"], small_task(DATA).prepare(torch.from_numpy(DATA.x_train[rows])))
    error = float((logits.argmax(1) != torch.from_numpy(DATA.y_train[rows])).double().mean())
    assert record["train_validation_error"] == pytest.approx(error)
    assert record["train_validation_samples"] == len(rows) == 18
    for i, (factor, number) in enumerate(zip(RATES, numbers, strict=True)):
        n = len(factor)
        expected = np.ones(n)
        expected[number] = math.exp(-math.sqrt(2 * math.log(n)) * record["train_validation_error"] * n)
        assert [record[f"theta_{i}_{j}"] for j in range(n)] == pytest.approx((expected / expected.sum()).tolist())


@pytest.mark.grid
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_score_the_model_that_they_receive_and_the_draws_of_the_round_before_are_credited(name, mode):
    fedex = run(name, mode, score="server", schedule="constant", section={"lr_decay": 1.0})
    states, records = [fedex.server], []
    for record in fedex:
        states.append(fedex.server)
        records.append(record)
    task, scores = small_task(DATA), []
    samples = np.split(CLIENTS.rows("selection"), np.cumsum(CLIENTS.selection_sizes)[:-1])
    sizes = np.array([len(rows) for rows in samples])
    for state, record in zip(states, records, strict=False):
        inputs = [task.prepare(torch.from_numpy(DATA.x_train[rows])) for rows in samples]
        found = [task.logits(state["w"], x).argmax(1).numpy() for x in inputs]
        hits = [(one == DATA.y_train[rows]).sum() for one, rows in zip(found, samples, strict=True)]
        scores.append(1 - sum(hits) / sum(sizes))
        assert record["train_validation_error"] == pytest.approx(1 - np.mean(hits / sizes), abs=1e-6)
    weights = sizes / sum(sizes)
    for number, (before, state) in enumerate(pairwise(states[1:])):
        # Without a discount, the baseline is the score before.
        excess = scores[number + 1] - (scores[number] if number else 0.0)
        for i, factor in enumerate(RATES):
            n, key = len(factor), str(i)
            cohort = Cohort(number + 1, np.arange(5), np.ones(5), 5)
            drawn = draw(states[number]["fedex"], cohort, 0.0)[i].numpy()
            p = theta(states[number]["fedex"]["distributions"][key]).numpy()
            g = np.bincount(drawn, weights * excess, n) / p
            logs = before["fedex"]["distributions"][key]["log_theta"].numpy() - math.sqrt(2 * math.log(n)) * g
            expected = np.exp(logs) / np.exp(logs).sum()
            assert np.allclose(theta(state["fedex"]["distributions"][key]), expected, atol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_settled_run_is_the_plain_run_of_its_configuration_bit_for_bit(name):
    """All clients use the first value; the learning rate decays from round to round."""
    fedex, plain = run(name, LOOP, cutoff=9.0), run(name, LOOP, factors=None, section={"lr": 0.01, "momentum": 0.0})
    list(fedex), list(plain)
    states = {key: value for key, value in fedex.server.items() if key != "fedex"}
    assert identical(flatten(plain.server), flatten(states))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_client_that_diverges_is_left_out_and_has_the_largest_error(mode, score):
    calm, wild = ({"algorithm.lr": lr, "algorithm.weight_decay": decay} for lr, decay in ((0.1, 0.0), (1e38, 1e38)))
    factors = [[calm, wild]]
    rounds = 1 if score == "client" else 2
    fedex = run("fedavg", mode, rounds=rounds, factors=factors, schedule="constant", score=score)
    first = next(fedex)
    _, record = last(fedex) if score == "server" else (fedex, first)
    draws = [first["draws_0_0"], first["draws_0_1"]]
    assert min(draws) > 0
    assert first["dropped"] == draws[1]
    assert all(leaf.isfinite().all() for leaf in fedex.server["w"].values())
    assert record["theta_0_1"] < record["theta_0_0"]


def test_a_round_in_which_all_clients_diverge_counts():
    wild = [
        [{"algorithm.lr": 0.1, "algorithm.weight_decay": 0.0}, {"algorithm.lr": 1e38, "algorithm.weight_decay": 1e38}]
    ]
    found = set()
    for seed in range(8):
        done = run("fedavg", LOOP, rounds=12, factors=wild, clients=ALONE, schedule="constant", seed=seed)
        initial, record = done.server, next(done)
        if record["draws_0_1"]:
            # g = (0, 1 / 0.5), and eta = sqrt(2 ln 2).
            assert record["theta_0_1"] == pytest.approx(1 / (1 + math.exp(2 * math.sqrt(2 * math.log(2)))))
            assert identical(initial["w"], done.server["w"])
        found.add(record["draws_0_1"])
        _, record = last(done)
        assert record["draws_0_0"] + record["draws_0_1"] == 12
        assert record["theta_0_1"] < 0.1
    assert found == {0, 1}


def test_variants_of_a_run_are_packed():
    """Two values of mu side by side, and two other lists of values, each with its own theta."""
    fewer = [RATES[0], RATES[1][:1]]
    other = [[{"algorithm.lr": lr} for lr in (0.1, 0.2, 0.3)], RATES[1][1:]]
    variants = [(0.0, RATES), (1.0, RATES), (0.0, other), (0.0, fewer)]
    apart = [last(run("fedprox", section={"mu": mu}, factors=factors)) for mu, factors in variants]
    algorithms = [
        [
            build(algorithm_class("fedprox"), {**SECTION, "mu": mu}, small_task(DATA), fedex=FedEx(factors=factors))
            for mu, factors in variants
        ]
        for _ in range(2)
    ]
    spec = apart[0][0].servers[0].experiment
    worker = Worker(algorithms[0], DATA, CLIENTS, spec.seed, spec.resources)
    servers = [FederatedServer(spec, one, CLIENTS, len(DATA.y_test)) for one in algorithms[1]]
    pack = PackRun(servers, worker, [None] * len(variants))
    records = list(pack)[-1]
    for variant, (alone, record) in enumerate(apart):
        assert distance(flatten(alone.server), flatten(pack.servers[variant].state)) < 1e-6
        assert [records[variant][key] for key in record if key.startswith("draws")] == [
            value for key, value in record.items() if key.startswith("draws")
        ]
    assert all(distance(apart[0][0].server["w"], alone.server["w"]) > 1e-3 for alone, _ in apart[1:])


@pytest.mark.parametrize("score", SCORES)
def test_two_shares_are_one(score):
    (one, first), (two, second) = (last(run("scaffold", shares=shares, score=score)) for shares in (1, 2))
    assert distance(flatten(one.server), flatten(two.server)) < 1e-6
    assert [second[key] for key in first if key.startswith("draws_")] == [
        first[key] for key in first if key.startswith("draws_")
    ]


@pytest.mark.grid
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mode", [LOOP, VMAP], ids=["loop", "vmap"])
def test_a_resumed_run_is_an_undisturbed_one(mode, score, tmp_path):
    check_resuming(lambda folder: run("scaffold", mode, folder=folder, discount=0.9, score=score), 2, tmp_path)


# ---- the warning -----------------------------------------------------------------------------------------------------


def settled_records(probabilities, accuracies):
    """Records of a run with one distribution over two values. accuracies: None where a round was not evaluated."""
    return [
        {"round": number, "theta_0_0": 1 - p, "theta_0_1": p}
        | ({} if accuracy is None else {"validation_accuracy": accuracy})
        for number, (p, accuracy) in enumerate(zip(probabilities, accuracies, strict=True), 1)
    ]


@pytest.mark.parametrize(
    ("probabilities", "accuracies", "warns"),
    [
        ([0.5, 0.7, 0.9, 0.95], [0.3, 0.6, 0.2, 0.54], True),
        # One evaluation since then is within five points.
        ([0.5, 0.7, 0.9, 0.95], [0.3, 0.6, 0.55, 0.2], False),
        # It settled in round 4, after the worst accuracy.
        ([0.95, 0.95, 0.5, 0.95], [0.6, 0.3, 0.2, 0.56], False),
        ([0.95, 0.95, 0.5, 0.95], [0.6, 0.3, 0.2, 0.54], True),
        # It has not settled, or never was another one.
        ([0.5, 0.95, 0.95, 0.89], [0.6, 0.3, 0.2, 0.1], False),
        ([0.9, 0.95, 0.95, 0.9], [0.6, 0.3, 0.2, 0.1], False),
        # Rounds without an evaluation do not count.
        ([0.5, 0.7, 0.9, 0.95], [0.6, None, None, 0.2], True),
        ([0.5, 0.7, 0.9, 0.95], [None, None, 0.6, 0.2], False),
    ],
)
def test_a_distribution_that_settles_while_the_servers_model_gets_worse_is_a_warning(probabilities, accuracies, warns):
    fedex = settings(2)
    found = fedex_warnings(fedex, settled_records(probabilities, accuracies))
    assert len(found) == warns
    assert fedex_warnings(None, settled_records(probabilities, accuracies)) == []


def test_the_warning_names_values_rounds_and_accuracies_and_is_given_once():
    one = settled_records([0.5, 0.7, 0.9, 0.95], [0.3, 0.6, 0.2, 0.19])
    two = [record | {"theta_1_0": 0.99, "theta_1_1": 0.01} for record in one]
    fix = {"client": "remove these values, or set `score: server`", "server": "remove these values"}
    for score in SCORES:
        assert fedex_warnings(settings(2, 2, score=score), two) == [
            "FedEx settled on algorithm.k0 1 in round 3, and since then the server's model has a lower validation "
            f"accuracy than in round 2 (19.0 % at the end, 60.0 % then); {fix[score]}"
        ]
