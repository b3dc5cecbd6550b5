"""FedDyn, SCAFFOLD, FedSplit and the central reference on the platform: identities, traffic, and the reported model."""

import numpy as np
import pytest
import torch
from helpers import (
    Quadratics,
    SingleRun,
    blobs,
    check_resuming,
    distance,
    identical,
    model,
    partition,
    run_inline,
    small_task,
)
from toys import Diverging

from hedgerow.algorithms.core.pytree import count, tree_map
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.algorithms.federated.fedsplit import FedSplit
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.platform.config.experiment import EngineConfig, Evaluation
from hedgerow.platform.data.sampling import sample_clients
from hedgerow.platform.runtime.worker import LATEST_CLIENT_MODEL

DATA = blobs()
SAMPLES = len(DATA.y_train)
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)
BY_CLIENTS = Evaluation(model="clients", clients=3)
STATEFUL = [FedDyn, Scaffold, FedSplit]


def ragged(kind, hyper=None, folder=None, **settings) -> SingleRun:
    """A run over six clients of very different sizes, half of them active."""
    values = {"lr": 0.2, "batch_size": 8, **({} if kind in (FedSGD,) else {"epochs": 2}), **(hyper or {})}
    return run_inline(
        kind, small_task(DATA), DATA, RAGGED, values, folder, **{"rounds": 4, "clients_per_round": 0.5, **settings}
    )


def states_of(run: SingleRun) -> dict[int, dict]:
    """The final states of the clients that took part, by id."""
    initial = run.servers[0].algorithm.init_client()
    rows = (run.states.read(np.array([client])) for client in range(len(RAGGED)))
    states = enumerate(tree_map(lambda leaf: leaf[0], row) for row in rows)
    return {client: state for client, state in states if not identical(state, initial)}


# ---- identities -----------------------------------------------------------------------------------------------------


def test_scaffolds_first_round_is_fedavgs():
    uniform = {"aggregation": {"weighting": "uniform"}}
    runs = [ragged(Scaffold, rounds=1), ragged(FedAvg, uniform, rounds=1)]
    [list(r) for r in runs]
    assert identical(model(runs[0]), model(runs[1]))


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_scaffold_counts_the_steps_that_each_client_took(momentum):
    # After one round from c = 0, c_k = (w - w_k) / (K lr), with K = epochs * ceil(n / batch size). With momentum, K is
    # the sum of the weights that the gradients of the steps have in w - w_k.
    first = ragged(Scaffold, {"momentum": momentum}, rounds=1, clients_per_round="all", evaluation=BY_CLIENTS)
    list(first)
    start = small_task(DATA).init()
    for k, state in states_of(first).items():
        number = 2 * -(-int(RAGGED.train_sizes[k]) // 8)
        steps = sum(momentum**i for last in range(1, number + 1) for i in range(last))
        expected = {name: (start[name] - p) / (steps * 0.2) for name, p in state[LATEST_CLIENT_MODEL].items()}
        assert distance(state["c"], expected) < 1e-6


def test_feddyns_clients_are_fedproxs_in_the_first_round():
    # g starts at 0, and then only the quadratic penalty is left.
    runs = [
        ragged(kind, {**weight, "lr": 0.1}, rounds=1, evaluation=BY_CLIENTS)
        for kind, weight in ((FedDyn, {"alpha": 2.0}), (FedProx, {"mu": 2.0}), (FedProx, {"mu": 1e-6}))
    ]
    [list(r) for r in runs]
    dyn, prox, without = (states_of(r) for r in runs)
    for k in dyn:
        assert distance(dyn[k][LATEST_CLIENT_MODEL], prox[k][LATEST_CLIENT_MODEL]) < 1e-6
    assert max(distance(dyn[k][LATEST_CLIENT_MODEL], without[k][LATEST_CLIENT_MODEL]) for k in dyn) > 1e-2


@pytest.mark.parametrize("kind", [FedDyn, Scaffold])
def test_server_states_are_means_over_the_population_in_rounds_of_half_of_it(kind):
    """Acar et al., Algorithm 1, and Karimireddy et al., Algorithm 1, option II: three rounds in NumPy."""
    problem, lr, alpha, steps = Quadratics(), 0.3, 0.5, 2
    w, server, states = np.zeros(4), np.zeros(4), np.zeros((6, 4))
    for number in (1, 2, 3):
        cohort = sample_clients(0, number, 6, 3)
        models, before = np.tile(w, (3, 1)), states[cohort]
        for _ in range(steps):
            slopes = np.einsum("kij,kj->ki", problem.A[cohort], models - problem.c[cohort])
            slopes += alpha * (models - w) - before if kind is FedDyn else server - before
            models = models - lr * slopes
        if kind is FedDyn:
            states[cohort] = before - alpha * (models - w)
            server = server - alpha / 6 * (models - w).sum(0)
            w = models.mean(0) - server / alpha
        else:
            states[cohort] = before - server + (w - models) / (steps * lr)
            server = server + (states[cohort] - before).sum(0) / 6
            w = models.mean(0)
    hyper = {"lr": lr, "epochs": None, "steps": steps, "batch_size": None}
    done = run_inline(
        kind, problem.task, problem.dataset, problem.partition,
        hyper | ({"alpha": alpha} if kind is FedDyn else {}), rounds=3, clients_per_round=0.5,
        evaluation=Evaluation(every=1000, clients=0),
    )  # fmt: skip
    list(done)
    assert np.abs(model(done)["x"].numpy() - w).max() < 1e-5
    assert np.abs(done.server["h" if kind is FedDyn else "c"]["x"].numpy() - server).max() < 1e-5


def test_fedsplit_averages_all_or_the_active_which_is_the_same_when_all_are():
    everybody = [ragged(FedSplit, {"average": which}, clients_per_round="all") for which in ("all", "active")]
    half = [ragged(FedSplit, {"average": which}) for which in ("all", "active")]
    [list(r) for r in (*everybody, *half)]
    assert distance(model(everybody[0]), model(everybody[1])) < 1e-5
    assert distance(model(half[0]), model(half[1])) > 1e-3


@pytest.mark.exhaustive("convergence")
def test_fedsplit_with_exact_solves_reaches_the_optimum_and_its_active_form_does_not():
    problem = Quadratics()
    found = {}
    for average, clients in (("all", 6), ("active", 6), ("all", 2), ("active", 2)):
        split = run_inline(
            FedSplit, problem.task, problem.dataset, problem.partition,
            {"solver": "newton", "step_size": 1.0, "average": average}, rounds=80 if clients == 6 else 200,
            clients_per_round=clients, engine=EngineConfig(mode="loop"),
            evaluation=Evaluation(every=1000, clients=0),
        )  # fmt: skip
        list(split)
        found[average, clients] = np.abs(model(split)["x"].numpy() - problem.optimum).max()
    assert max(found["all", 6], found["active", 6], found["all", 2]) < 1e-5
    assert found["active", 2] > 1e-2


def test_central_is_fedavg_with_one_client_that_has_everything():
    alone = partition(np.array([SAMPLES]))
    hyper = {"lr": 0.2, "epochs": 2, "batch_size": 7, "lr_decay": 0.5, "lr_decay_every": 2}
    loop = {"engine": EngineConfig(mode="loop"), "rounds": 5}
    pooled = run_inline(Central, small_task(DATA), DATA, alone, hyper, **loop)
    average = run_inline(FedAvg, small_task(DATA), DATA, alone, hyper, **loop)
    records, others = list(pooled), list(average)
    assert identical(model(pooled), model(average))
    assert records[-1]["train_loss"] == others[-1]["train_loss"]
    assert (records[-1]["transmissions"], records[-1]["scalars_down"], records[-1]["scalars_up"]) == (0, 0, 0)


def test_central_pools_what_clients_train_on_and_nothing_that_they_hold_out():
    held = partition(np.array([30, 50, SAMPLES - 80]), seed=2)
    held = type(held)(held.order, held.offsets, np.array([20, 50, SAMPLES - 100]))
    assert sorted(held.rows("train")) == sorted(
        np.concatenate([held.samples(k)[: held.train_sizes[k]] for k in range(3)])
    )
    assert len(held.rows("train")) == held.train_sizes.sum()


def test_the_learning_rate_decays_every_so_many_rounds():
    hyper = Central.Hyper(lr=0.4, lr_decay=0.5, lr_decay_every=50)
    assert [hyper.at(t).lr for t in (1, 50, 51, 100, 101)] == [0.4, 0.4, 0.2, 0.2, 0.1]


@pytest.mark.grid
@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_loop_equals_vmap(kind, clip):
    hyper = {"weight_decay": 1e-2, "momentum": 0.5, "clip_norm": clip}
    runs = []
    for mode, chunk in (("loop", "auto"), ("vmap", 2), ("vmap", 3)):
        one = ragged(kind, hyper, rounds=5, engine=EngineConfig(mode=mode, chunk=chunk), evaluation=BY_CLIENTS)
        runs.append((one, [record["train_loss"] for record in one]))
    for other, losses in runs[1:]:
        assert distance(model(runs[0][0]), model(other)) < 2e-5
        assert distance(runs[0][0].server["client_average"], other.server["client_average"]) < 2e-5
        assert losses == pytest.approx(runs[0][1], abs=1e-5)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_newton_solves_the_local_problem_exactly(mode):
    # A convex problem, logistic regression, with FedDyn's terms: the new g is the gradient at the new model.
    torch.manual_seed(0)
    task = small_task(DATA)
    task = type(task)(torch.nn.Linear(DATA.sample_shape[0], DATA.classes), task.mean, task.std)
    hyper = {"solver": "newton", "alpha": 0.5}
    one = run_inline(
        FedDyn, task, DATA, RAGGED, hyper, rounds=3, clients_per_round="all", engine=EngineConfig(mode=mode, chunk=6),
        evaluation=BY_CLIENTS,
    )  # fmt: skip
    list(one)
    for k, state in states_of(one).items():
        rows = torch.from_numpy(RAGGED.samples(k))
        w = {name: p.clone().requires_grad_() for name, p in state[LATEST_CLIENT_MODEL].items()}
        logits = task.logits(w, task.prepare(torch.from_numpy(DATA.x_train)[rows]))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(DATA.y_train)[rows])
        slope = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
        assert distance(slope, state["g"]) < 1e-5


# ---- traffic --------------------------------------------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize(("kind", "units"), [(FedAvg, 1), (FedProx, 1), (FedDyn, 1), (FedSplit, 1), (Scaffold, 2)])
@pytest.mark.parametrize("reported", ["server", "clients"])
def test_traffic_is_two_models_per_client_and_scaffolds_is_twice_that(kind, units, reported):
    one = ragged(kind, rounds=3, evaluation=Evaluation(model=reported))
    records = list(one)
    size = count(model(one))
    assert [r["scalars_down"] + r["scalars_up"] for r in records] == [2 * units * 3 * size] * 3
    assert records[-1]["transmissions"] == 3 * units


# ---- the average of all clients' models -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedAvg, *STATEFUL])
def test_the_reported_model_is_the_average_of_all_clients_latest_models(kind):
    reported = ragged(kind, evaluation=BY_CLIENTS)
    plain = ragged(kind, evaluation=Evaluation(clients=3))
    records, others = list(reported), list(plain)
    states = states_of(reported)
    start = small_task(DATA).init()
    latest = [states[k][LATEST_CLIENT_MODEL] if k in states else start for k in range(6)]
    mean = {name: torch.stack([one[name] for one in latest]).mean(0) for name in start}
    assert distance(reported.server["client_average"], mean) < 1e-6
    # Training is not altered by it, and the server's own model is scored, too.
    assert identical(model(reported), model(plain))
    assert [r["server_test_accuracy"] for r in records] == [r["test_accuracy"] for r in others]
    assert [r["server_test_loss"] for r in records] == [r["test_loss"] for r in others]
    task = small_task(DATA)
    hits = task.logits(mean, torch.from_numpy(DATA.x_test)).argmax(-1) == torch.from_numpy(DATA.y_test)
    assert records[-1]["test_accuracy"] == pytest.approx(float(hits.float().mean()))


def test_a_client_that_diverged_keeps_its_latest_model():
    ones = blobs(seed=3)
    run = run_inline(
        Diverging, small_task(ones), ones, partition(np.full(6, 30)), {"lr": 0.2, "batch_size": 1, "steps": 3},
        rounds=5, clients_per_round=0.5, evaluation=BY_CLIENTS,
    )  # fmt: skip
    records = list(run)
    assert 0 < sum(r["dropped"] for r in records) < 15
    states, start = states_of(run), small_task(ones).init()
    latest = [states[k][LATEST_CLIENT_MODEL] if k in states else start for k in range(6)]
    mean = {name: torch.stack([one[name] for one in latest]).mean(0) for name in start}
    assert distance(run.server["client_average"], mean) < 1e-6


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_resumed_run_is_undisturbed(kind, tmp_path):
    check_resuming(lambda folder: ragged(kind, folder=folder, rounds=6, evaluation=BY_CLIENTS), 3, tmp_path)


# ---- ending at the targets ------------------------------------------------------------------------------------------


def test_a_run_ends_when_its_last_target_is_reached():
    whole = ragged(FedAvg, rounds=40)
    accuracies = [record["test_accuracy"] for record in whole]
    first = next(i for i, accuracy in enumerate(accuracies) if accuracy >= 0.7)
    stopped = ragged(FedAvg, rounds=40, evaluation=Evaluation(targets=[0.7, 0.4], stop=True))
    assert [record["test_accuracy"] for record in stopped] == accuracies[: first + 1]
    assert first < 39


def test_a_training_loss_can_be_the_target():
    wanted = Evaluation(targets=[0.5], target_metric="client_loss", stop=True, clients=6)
    uniform = {"aggregation": {"weighting": "uniform"}}
    records = list(ragged(FedAvg, uniform, rounds=60, evaluation=wanted))
    assert records[-1]["client_loss"] <= 0.5 < records[-2]["client_loss"]


def test_the_clients_loss_is_the_objective():
    # The mean over clients of their mean losses, whatever their sizes.
    one = ragged(FedAvg, rounds=2, evaluation=Evaluation(clients=6))
    record = list(one)[-1]
    task = small_task(DATA)
    losses = []
    for k in range(6):
        rows = torch.from_numpy(RAGGED.samples(k))
        logits = task.logits(model(one), torch.from_numpy(DATA.x_train)[rows])
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(DATA.y_train)[rows])))
    assert record["client_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
