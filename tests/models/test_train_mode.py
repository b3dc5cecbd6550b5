"""Batch norm, dropout and attention: torch modules as torch runs them, with seeded random numbers and buffers."""

from functools import partial

import mode_models
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers import read_states
from mode_models import Normed
from ray_runs import one_by_one, same
from torch.nn import functional as F  # noqa: N812

import hedgerow
from hedgerow.algorithms.core.client_data import EVAL_BATCH_SIZE
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.sampling import client_keys, draw_batches
from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.probe import probe_samples, vmap_objection
from hedgerow.platform.models.vmap_check import vmap_reason
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, build_module, check

VALIDATION = {"validation": {"fraction": 0.2, "from": "clients"}}
STATISTICS = {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


def experiment(model, algorithm="fedavg", mode="loop", buffers="average", clients=6, **more):
    sections = {key: more.pop(key) for key in ("args", "freeze", "init") if key in more}
    local = {} if algorithm == "fedsgd" else {"epochs": 2, "batch_size": 8}
    hyper = {"lr": 0.1, **local, **more.pop("hyper", {})}
    values = {
        "name": "mode",
        "seed": 3,
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            # 21 samples in mini-batches of 8: the last one of an epoch is padded.
            "partition": {"kind": "dirichlet", "clients": clients, "alpha": 0.5, "samples_per_client": 21},
            "model": {"name": f"mode_models.{model}", "buffers": buffers, **sections},
            **more.pop("task", {}),
        },
        "algorithm": {"name": algorithm, **hyper},
        "engine": {"mode": mode, "chunk": 4 if mode == "vmap" else "auto"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        **more,
    }
    return parse_experiment(values)


def coordinator_of(wanted, folder=None):
    return build_coordinator([wanted], *build_data(wanted, None), [folder])


def done(wanted, rounds=2):
    """Coordinator after some rounds."""
    coordinator = coordinator_of(wanted)
    for _ in range(rounds):
        coordinator.next_round()
    return coordinator


def state_of(wanted, rounds=2):
    return flatten(done(wanted, rounds).servers[0].state)


def close(a, b, tolerance=1e-5):
    assert a.keys() == b.keys()
    has(a, b, tolerance)


def has(state, expected, tolerance=1e-5):
    """The entries of a state that are expected have their values."""
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=tolerance, atol=tolerance, msg=f"{name} differs")


# ---- batch norm ------------------------------------------------------------------------------------------------------


def reference_round(wanted, module, make=Normed, number=1):
    """A round of FedAvg with plain torch: models and buffers of all clients, and their numbers of samples. Each client
    seeds torch's generator by its key.

    make: returns a new model, with which each client begins.
    """
    data, partition = build_data(wanted, None)
    x = (torch.tensor(data.x_train).float() - torch.tensor(data.mean)) / torch.tensor(data.std)
    y, sizes, slices = torch.tensor(data.y_train), partition.train_sizes, partition.splits()["train"]
    states = []
    for client in range(len(partition)):
        net = make()
        net.load_state_dict(module.state_dict())
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        first, second = client_keys((wanted.seed, number, 0), np.array([client]))[0].tolist()
        torch.manual_seed(first << 32 | second)
        spec, key = wanted.algorithm.batches["train"], (wanted.seed, number, 0, "train")
        positions, mask = draw_batches(spec, key, np.array([client]), sizes[[client]])
        for rows, real in zip(positions[0], mask[0], strict=True):
            rows = partition.places[rows[real] + slices.offsets[client]]
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        states.append(net.state_dict())
    return states, sizes


@pytest.mark.parametrize("weighting", [None, "uniform"])
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_round_of_fedavg_with_batch_norm_is_that_of_plain_torch(mode, weighting):
    # Equal weights of clients in the mean of parameters differ from those in the mean of buffers.
    task = {"partition": {"kind": "dirichlet", "clients": 5, "alpha": 0.5}}
    wanted = experiment("Normed", mode=mode, task=task, aggregation={"weighting": weighting})
    data, _ = build_data(wanted, None)
    module = build_module(wanted, data)
    states, sizes = reference_round(wanted, module)
    assert len(set(sizes.tolist())) > 1
    weights = torch.from_numpy(sizes / sizes.sum())
    server = done(wanted, 1).servers[0].state
    assert server["buffers"].keys() == STATISTICS
    for name, value in server["w"].items():
        p = weights.float() if weighting is None else torch.full((len(sizes),), 1 / len(sizes))
        expected = torch.einsum("c,c...->...", p, torch.stack([state[name] for state in states]))
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    for name in ("2.running_mean", "2.running_var"):
        expected = torch.einsum("c,cw->w", weights, torch.stack([state[name] for state in states]).double())
        torch.testing.assert_close(server["buffers"][name].double(), expected, rtol=1e-5, atol=1e-5)
    batches = float(sum(w * int(s["2.num_batches_tracked"]) for w, s in zip(weights, states, strict=True)))
    assert server["buffers"]["2.num_batches_tracked"].dtype == torch.int64
    assert int(server["buffers"]["2.num_batches_tracked"]) == round(batches)


@pytest.mark.grid
@pytest.mark.parametrize("size", [7, 8], ids=["full", "padded"])
@pytest.mark.parametrize("buffers", ["average", "local", "ignore"])
@pytest.mark.parametrize("model", ["Normed", "NormedImages"])
def test_batch_norm_is_the_same_in_loop_and_vmap(model, buffers, size):
    """21 samples in full mini-batches of 7 are batched; a chunk with padded ones runs in turn."""
    args, hyper = {"p": 0.0} if model == "NormedImages" else {}, {"batch_size": size}
    wanted = {mode: experiment(model, mode=mode, buffers=buffers, args=args, hyper=hyper) for mode in ("loop", "vmap")}
    runs = {mode: done(one) for mode, one in wanted.items()}
    assert runs["loop"].plans()["train/clients"]["mode"] == "loop"
    assert runs["vmap"].plans()["train/clients"]["mode"] == "vmap"
    close(*(flatten(one.servers[0].state) for one in runs.values()))
    states = [read_states(one.executor.stores[0], np.arange(6)) for one in runs.values()]
    assert bool(flatten(states[0])) == (buffers == "local")
    close(*(flatten(state) for state in states))
    scores = [one.servers[0].history[-1] for one in runs.values()]
    assert scores[0]["test_loss"] == pytest.approx(scores[1]["test_loss"], rel=1e-4)
    assert scores[0]["client_accuracy"] == pytest.approx(scores[1]["client_accuracy"], abs=0.05)


@pytest.mark.parametrize(
    ("algorithm", "slots"),
    [
        ("fedprox", {"hyper": {"mu": 0.1}}),
        ("feddyn", {"hyper": {"alpha": 0.1}}),
        ("scaffold", {}),
        ("fedsplit", {}),
        ("central", {}),
        ("fedavg", {"transforms": [{"kind": "top_k", "entries": 50}]}),
        ("fedavg", {"aggregation": {"rule": {"kind": "mode_models.Median"}}}),
        ("fedavg", {"aggregation": {"weighting": "samples"}}),
        ("fedavg", {"fedex": {"factors": [[{"algorithm.lr": 0.1}, {"algorithm.lr": 0.05}]]}, "task": VALIDATION}),
    ],
)
def test_other_methods_and_slots_have_the_same_buffers_in_loop_and_vmap(algorithm, slots):
    states = [state_of(experiment("Normed", algorithm, mode, **slots), 1) for mode in ("loop", "vmap")]
    close(*states, 1e-4)
    if "fedex" in slots:
        assert float(states[0]["fedex/updates"]) == 1
    assert all(f"buffers/{name}" in states[0] for name in STATISTICS)
    plain = build_module(experiment("Normed"), build_data(experiment("Normed"), None)[0])
    assert not torch.equal(states[0]["buffers/2.running_mean"], plain.get_buffer("2.running_mean"))


def test_weights_of_clients_do_not_change_the_weights_of_buffers():
    task = {"partition": {"kind": "dirichlet", "clients": 5, "alpha": 0.5}}
    uniform = state_of(experiment("Normed", task=task, aggregation={"weighting": "uniform"}), 1)
    weighted = state_of(experiment("Normed", task=task, aggregation={"weighting": "samples"}), 1)
    close(*({k: v for k, v in one.items() if k.startswith("buffers/")} for one in (uniform, weighted)))
    assert not torch.equal(uniform["w/1.weight"], weighted["w/1.weight"])


def test_buffers_are_charged_and_a_round_of_fedavg_is_still_one_unit():
    values = 8 * 64 + 8 + 16 + 8 * 10 + 10
    statistics, size = 2 * 8 + 1, 4 * 2 * 8 + 8
    record = done(experiment("Normed"), 1).servers[0].history[-1]
    assert record["scalars_down"] == record["scalars_up"] == 6 * (values + statistics)
    assert record["bytes_down"] == record["bytes_up"] == 6 * (4 * values + size)
    assert record["transmissions"] == 1
    local = done(experiment("Normed", buffers="local"), 1).servers[0].history[-1]
    assert local["scalars_down"] == local["scalars_up"] == 6 * values
    sparse = experiment("Normed", transforms=[{"kind": "top_k", "entries": 50}])
    record = done(sparse, 1).servers[0].history[-1]
    plain = done(experiment("Normed", buffers="local", transforms=[{"kind": "top_k", "entries": 50}]), 1)
    assert record["bytes_up"] == plain.servers[0].history[-1]["bytes_up"] + 6 * size


def test_local_statistics_are_those_of_the_clients_own_samples():
    """FedBN: statistics are client state; parameters of the first round do not depend on who keeps statistics."""
    coordinator = done(experiment("Normed", buffers="local"), 1)
    averaged = state_of(experiment("Normed"), 1)
    server = coordinator.servers[0].state
    assert server.keys() == {"w"}
    close(flatten(server), {k: v for k, v in averaged.items() if k.startswith("w/")}, 0)
    states = read_states(coordinator.executor.stores[0], np.arange(6))["buffers"]
    means = states["2.running_mean"]
    assert len({tuple(row.tolist()) for row in means}) == 6
    torch.testing.assert_close(means.mean(0), averaged["buffers/2.running_mean"])
    # A client's own statistics continue in its next round.
    coordinator.next_round()
    after = read_states(coordinator.executor.stores[0], np.arange(6))["buffers"]
    assert (after["2.num_batches_tracked"] == 2 * states["2.num_batches_tracked"]).all()


def test_without_statistics_batches_are_normalised_by_their_own_in_evaluation():
    wanted = experiment("NormedImages", buffers="ignore")
    coordinator = done(wanted)
    assert coordinator.servers[0].state.keys() == {"w"}
    # The same as a layer that tracks none, in torch's own words.
    untracked = done(experiment("NormedImages", args={"track_running_stats": False}))
    close(coordinator.servers[0].state["w"], untracked.servers[0].state["w"], 0)
    records = [one.servers[0].history[-1] for one in (coordinator, untracked)]
    assert records[0]["test_loss"] == records[1]["test_loss"]


class Evaluated(Normed):
    """In evaluation mode, also in training."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_mini_batch_of_one_sample_is_normalised_by_the_running_statistics(mode):
    """A single value per channel has no variance, and torch refuses to train on it."""
    wanted = experiment("Normed", mode=mode, hyper={"batch_size": 1, "epochs": 1})
    state = done(wanted, 1).servers[0].state
    assert torch.equal(state["buffers"]["2.running_mean"], torch.zeros(8))
    has(state["w"], of_plain_torch(wanted, Evaluated))


# ---- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Dropped", "NormedImages", "Attentive", "Rectified", "Recurrent"])
def test_a_round_in_a_loop_is_that_of_plain_torch_with_the_same_seeds(model):
    wanted = experiment(model)
    has(done(wanted, 1).servers[0].state["w"], of_plain_torch(wanted, getattr(mode_models, model)))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("model", ["Dropped", "Encoding", "Rectified"])
def test_random_layers_have_the_same_bits_in_every_run_and_leave_torchs_generator_alone(model, mode):
    torch.manual_seed(11)
    first = state_of(experiment(model, mode=mode))
    torch.rand(5)
    before = torch.get_rng_state()
    again = state_of(experiment(model, mode=mode, resources={"executor": "inline", "threads": 1}))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = state_of(experiment(model, mode=mode, seed=4))
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_zero_probability_is_no_randomness_and_makes_no_wrapper():
    wanted = experiment("Dropped", args={"p": 0.0})
    coordinator = coordinator_of(wanted)
    algorithm = coordinator.servers[0].algorithm
    assert algorithm.task.train_mode is None
    assert not algorithm.middleware


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_masks_of_dropout_have_their_share_and_differ_between_clients_rounds_and_steps(mode):
    """The gradient of a sum of weights is the mask that dropout has multiplied them by."""
    hyper, clients = {"lr": 1.0, "batch_size": None, "steps": 2, "epochs": None}, 40
    wanted = experiment("Masked", "fedavg", mode, clients=clients, hyper=hyper, objective={"kind": "mode_models.Total"})
    coordinator = coordinator_of(wanted)
    drops = []
    for _ in range(2):
        coordinator.next_round()
        drops.append(coordinator.servers[0].state["w"]["weight"])
    assert coordinator.plans()["train/clients"]["mode"] == mode
    # The mean over 40 clients of the sum of two masks, each 1 / 0.7 with probability 0.7.
    first, second = -drops[0], drops[0] - drops[1]
    spread = (0.3 / 0.7 * 2 / clients) ** 0.5
    for mean in (first, second):
        assert float(mean.mean()) == pytest.approx(2, abs=0.05)
        assert float(mean.std()) == pytest.approx(spread, rel=0.1)
    assert float(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_variants_that_run_together_are_those_that_run_alone(mode):
    variants = [experiment("NormedImages", mode=mode, hyper={"lr": lr}) for lr in (0.1, 0.05)]
    together = build_coordinator(variants, *build_data(variants[0], None), [None, None])
    together.next_round()
    for server, alone in zip(together.servers, variants, strict=True):
        close(flatten(server.state), state_of(alone, 1))


@pytest.mark.exhaustive("processes")
def test_one_actor_and_two_agree(tmp_path):
    many = [
        experiment(
            "NormedImages", resources={"actors": actors, "cpus_per_actor": 0.5}, output=str(tmp_path / str(actors))
        )
        for actors in (1, 2)
    ]
    one, two = one_by_one(*many)
    # Sums over clients are added in another order.
    assert one.parameters.keys() == two.parameters.keys() > {"1.running_mean"}
    for name, value in one.parameters.items():
        np.testing.assert_allclose(value, two.parameters[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.grid(keep=1)
def test_a_resumed_run_ends_like_an_undisturbed_one(buffers, tmp_path):
    def wanted(name, rounds):
        settings = {"checkpoints": {"every": 1}, "output": str(tmp_path / name), "rounds": rounds}
        return experiment("NormedImages", "scaffold", buffers=buffers, **settings)

    calm = run(wanted("calm", 3))
    stopped = run(wanted("stopped", 2))
    text = stopped.folder.experiment.read_text()
    stopped.folder.experiment.write_text(text.replace("rounds: 2", "rounds: 3"))
    stopped.folder.update(status="interrupted")
    assert same(calm, hedgerow.resume(stopped.folder.path, show=False))
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert (statistics <= calm.parameters.keys()) == (buffers == "average")
    loaded = hedgerow.load(calm.folder.path).parameters
    assert all(np.array_equal(loaded[name], value) for name, value in calm.parameters.items())


def test_a_run_with_batch_norm_teaches_another_one(tmp_path):
    finished = run(experiment("Normed", output=str(tmp_path)))
    objective = {"kind": "distillation", "alpha": 0.5, "temperature": 2.0}
    wanted = experiment("Dropped", objective=objective, task={"teacher": {"run": str(finished.folder.path)}})
    check(wanted, None)
    teacher = coordinator_of(wanted).servers[0].algorithm.task.teacher
    assert not teacher.training
    for name, tensor in teacher.state_dict().items():
        assert np.array_equal(tensor.numpy(), finished.parameters[name])


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_the_score_of_an_auxiliary_loss_is_no_training(mode, tmp_path):
    """The pass over all samples that moves the multiplier leaves running statistics alone."""
    finished = run(experiment("Normed", output=str(tmp_path)))
    objective = {"kind": "distillation", "limit": 0.5, "dual_lr": 0.1, "temperature": 2.0}
    task = {"teacher": {"run": str(finished.folder.path)}}
    steps = done(experiment("Normed", mode=mode)).servers[0].state["buffers"]["2.num_batches_tracked"]
    server = done(experiment("Normed", mode=mode, objective=objective, task=task)).servers[0].state
    assert server["buffers"]["2.num_batches_tracked"] == steps > 0


def test_a_run_whose_server_has_no_statistics_cannot_teach(tmp_path):
    finished = run(experiment("Normed", buffers="local", output=str(tmp_path)))
    objective = {"kind": "distillation", "alpha": 0.5, "temperature": 2.0}
    wanted = experiment("Dropped", objective=objective, task={"teacher": {"run": str(finished.folder.path)}})
    with pytest.raises(UserError, match=r"has no running statistics .* name a run with `buffers: average`"):
        check(wanted, None)


# ---- what a call changes ---------------------------------------------------------------------------------------------


def of_plain_torch(wanted, make, rounds=1):
    """Parameters after rounds of FedAvg with plain torch, in which each client begins with a new model."""
    module = build_module(wanted, build_data(wanted, None)[0])
    for number in range(1, rounds + 1):
        states, _ = reference_round(wanted, module, make, number)
        module.load_state_dict(
            {name: torch.stack([one[name] for one in states]).double().mean(0) for name in states[0]}
        )
    return dict(module.named_parameters())


def lazily():
    net = mode_models.Counting()
    net(torch.zeros(1, 1, 8, 8))
    del net.calls
    return net


@pytest.mark.parametrize(
    ("model", "make"),
    [("Remembering", mode_models.Remembering), ("Counting", lazily), ("HookedTensor", mode_models.HookedTensor)],
)
@pytest.mark.parametrize("mode", ["loop", "auto"])
def test_each_client_begins_with_the_attributes_of_a_new_model(model, make, mode):
    wanted = experiment(model, mode=mode)
    has(done(wanted, 2).servers[0].state["w"], of_plain_torch(wanted, make, 2))


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers_of_torch_need_no_mode_and_can_be_saved(kind, tmp_path):
    """They keep lists of their parameters, which each call with other parameters changes."""
    module = build_model(experiment("OverRows", args={"kind": kind}).task.model, (1, 8, 8), 10)
    assert module.train_mode is None
    torch.save(module, tmp_path / "module.pt")


def test_attributes_of_one_evaluation_do_not_reach_the_next_one():
    wanted = experiment("Remembering")
    coordinator = done(wanted, 1)
    data, _ = build_data(wanted, None)
    net = mode_models.Remembering()
    net.load_state_dict(coordinator.servers[0].state["w"])
    x = (torch.tensor(data.x_test).float() - torch.tensor(data.mean)) / torch.tensor(data.std)
    expected = []
    for part, y in zip(x.split(EVAL_BATCH_SIZE), torch.tensor(data.y_test).split(EVAL_BATCH_SIZE), strict=True):
        net.state, net.norms = 0.0, []
        expected.append(F.cross_entropy(net(part), y, reduction="sum").detach())
    loss = float(sum(expected)) / len(x)
    assert coordinator.servers[0].history[-1]["test_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("Constrained", {}),
        ("Tokens", {"max_norm": 0.8}),
        ("Clamped", {}),
        ("Clamped", {"kind": "symmetric"}),
    ],
)
def test_parameters_that_calls_change_are_those_of_plain_torch_and_evaluations_change_none(model, args):
    make = partial(getattr(mode_models, model), **args)
    for evaluation in ({"every": 1}, {"every": 9}):
        wanted = experiment(model, args=args, mode="auto", evaluation=evaluation)
        has(done(wanted, 2).servers[0].state["w"], of_plain_torch(wanted, make, 2))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_buffer_that_every_call_changes_counts_training_alone(mode, with_gradients):
    args = {"with_gradients": with_gradients}
    wanted = experiment("Calls", mode=mode, args=args, evaluation={"every": 1})
    server = done(wanted, 1).servers[0].state
    # Two epochs of three mini-batches.
    assert float(server["buffers"]["n"]) == 6
    has(server["w"], of_plain_torch(wanted, partial(mode_models.Calls, **args)))


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_model_that_depends_on_its_mode_is_evaluated_in_evaluation_mode(mode):
    wanted = experiment("Gated", mode=mode)
    coordinator, (data, _) = done(wanted, 1), build_data(wanted, None)
    assert coordinator.plans()["train/clients"]["mode"] == mode
    net = mode_models.Gated().eval()
    net.load_state_dict(of_plain_torch(wanted, mode_models.Gated))
    x = (torch.tensor(data.x_test).float() - torch.tensor(data.mean)) / torch.tensor(data.std)
    loss = F.cross_entropy(net(x), torch.tensor(data.y_test)).item()
    assert coordinator.servers[0].history[-1]["test_loss"] == pytest.approx(loss, rel=1e-4)
    # Layers that compute the same in another way in evaluation need no such mode.
    assert build_model(experiment("Encoding", args={"p": 0.0}).task.model, (1, 8, 8), 10).train_mode is None


TOKENS = np.random.default_rng(0).integers(0, 10, (20, 6)).astype(np.uint8)


@pytest.mark.parametrize(
    ("kind", "said", "buffers"),
    [
        ("mask", None, None),
        ("lengths", None, None),
        ("count", "under torch.func.vmap", ("counts",)),
        ("centre", "with padded mini-batches", None),
    ],
)
def test_a_model_of_tokens_is_tried_with_rows_of_the_data(kind, said, buffers):
    module = build_model(experiment("Reading", args={"kind": kind}).task.model, (6,), 3, TOKENS)
    assert said is None or said in module.no_vmap
    assert (module.train_mode and module.train_mode.buffers) == buffers or kind == "mask"


def test_an_assignment_to_samples_is_refused_though_none_has_the_value():
    with pytest.raises(UserError, match="changes its input in place"):
        build_model(experiment("Reading", args={"kind": "assign"}).task.model, (6,), 3, TOKENS)


def test_a_trial_changes_neither_attributes_nor_parameters():
    for model in ("Remembering", "Constrained"):
        wanted = experiment(model)
        torch.manual_seed(0)
        module = build_model(wanted.task.model, (1, 8, 8), 10)
        torch.manual_seed(0)
        new = getattr(mode_models, model)()
        close(dict(module.state_dict()), dict(new.state_dict()), 0)
        if model == "Remembering":
            assert (module.state, module.norms) == (0.0, [])


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_a_padding_row_of_an_embedding_stays_as_it_is(mode):
    args = {"padding_idx": 4}
    wanted = experiment("Tokens", mode=mode, args=args)
    coordinator = done(wanted, 2)
    assert coordinator.plans()["train/clients"]["mode"] == mode
    found = coordinator.servers[0].state["w"]
    assert found["table.weight"][4].tolist() == [0.0] * 4
    has(found, of_plain_torch(wanted, partial(mode_models.Tokens, **args), 2))


# ---- what runs in the loop, and what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Attentive", "fails for several clients at once under torch.func.vmap: vmap: Cannot ask for different"),
        ("Branching", "fails for several clients at once under torch.func.vmap: vmap: It looks like"),
        ("Rectified", "under torch.func.vmap: vmap: we do not yet support aten::rrelu"),
        ("Recurrent", "recurrent kernels have no batching rule"),
        ("Remembering", "a call changes its attribute 'state', with which each client begins anew"),
        ("Counting", "a call changes its attribute 'calls'"),
        ("Constrained", "a call changes its parameters in place"),
        ("Centred", "with padded mini-batches, the gradient of '1.weight' for several clients at once is another one"),
        ("Reversed", "with padded mini-batches, the gradient of '1.weight' for several clients at once is another one"),
        ("Cell", "fails for several clients at once under torch.func.vmap: output with shape"),
        ("RawEvaluation", "fails for several clients at once under torch.func.vmap: accessing `data`"),
    ],
)
def test_what_cannot_be_batched_runs_in_a_loop_and_says_why(model, said, tmp_path):
    finished = run(experiment(model, mode="vmap", output=str(tmp_path)))
    assert finished.plans["train/clients"]["mode"] == "loop"
    reason = finished.folder.record()["no_vmap"]
    assert said in reason
    assert "\n" not in reason
    shown = CliRunner().invoke(main, ["show", str(finished.folder.experiment)], catch_exceptions=False).stdout
    assert shown.endswith(f"# clients are trained one after the other: {reason}\n")


def test_a_model_with_batch_norm_says_that_padded_mini_batches_are_not_batched(tmp_path):
    finished = run(experiment("Normed", output=str(tmp_path)))
    assert (
        finished.folder.record()["no_vmap"]
        == "with padded mini-batches, padding would enter the statistics of the model"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_norm": 1.0}, "a call changes its parameters in place"),
        ({"scale_grad_by_freq": True}, "would contain the padding of mini-batches"),
        ({"sparse": True}, "under torch.func.vmap"),
    ],
)
def test_embeddings_that_cannot_be_batched_say_why(options, said):
    module = build_model(experiment("Tokens", args=options).task.model, (1, 8, 8), 10)
    assert said in module.no_vmap


def test_functions_that_torch_runs_unseen_are_not_batched():
    """TorchScript calls the functions of torch itself: none of them is found on the list of known ones."""
    net = mode_models.Tokens(padding_idx=4)
    net.table = torch.jit.script(net.table)
    assert "TorchScript" in vmap_reason(net)
    assert "the gradient of 'table.weight' for several clients at once is another one" in vmap_objection(
        net, None, probe_samples((1, 8, 8), None)
    )


def test_a_cumulative_batch_norm_runs_in_a_loop():
    """momentum=None: the factor of the running statistics is a number that a buffer counts."""
    args = {"momentum": None}
    looped, chosen = (experiment("Normed", args=args, mode=mode) for mode in ("loop", "auto"))
    assert "under torch.func.vmap" in build_module(chosen, build_data(chosen, None)[0]).no_vmap
    close(state_of(chosen), state_of(looped), 0)


def test_buffers_of_the_users_own_are_averaged(tmp_path):
    finished = run(experiment("Averaging", output=str(tmp_path)))
    assert np.abs(finished.parameters["mean"]).max() > 0.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fedsgd"}, "task.model: fedsgd does not support a model with running statistics"),
        ({"algorithm": "central", "buffers": "local"}, "task.model.buffers: central has no clients"),
        ({"algorithm": "central", "hyper": {"starts": 2}}, "algorithm.starts: "),
        ({"hyper": {"solver": "newton"}}, "algorithm.solver: newton needs one function"),
        ({"evaluation": {"model": "clients"}}, "evaluation.model: averages"),
        ({"objective": {"kind": "synthetic"}}, "objective: synthetic reads features inside the model"),
        ({"engine": {"compile": True}}, "engine.compile: a model with"),
        ({"engine": {"plans": {"train/clients": {"mode": "vmap", "compiled": True}}}}, "engine.plans: a model with"),
        ({"model": "FromNumPy"}, "task.model: mode_models.FromNumPy draws from NumPy or Python's random"),
        ({"model": "Locked"}, "task.model: mode_models.Locked changes its attribute 'lock' in a call"),
        ({"model": "Holding"}, "task.model: mode_models.Holding changes its attribute 'holder' in a call"),
        ({"model": "OfClass"}, "task.model: mode_models.OfClass changes the attribute 'seen' of its class OfClass in"),
        ({"model": "Target"}, "task.model: mode_models.Target changes its frozen parameter 'target.weight' in a call"),
        ({"model": "BackwardBuffer"}, "mode_models.BackwardBuffer changes its buffer 'size' in the backward pass"),
        ({"model": "Captured"}, "mode_models.Captured fails once its attribute 'outputs' is a copy of its first value"),
        ({"model": "Late"}, "task.model: mode_models.Late creates its parameter '2.weight' in a call; create it in"),
        ({"model": "Gated", "algorithm": "fedsgd"}, "fedsgd does not support a model with a branch on self.training"),
        ({"model": "HookedParameter"}, "registers a gradient hook on its parameter '1.weight'"),
        ({"model": "HookedParameter", "args": {"after": True}}, "registers a gradient hook on its parameter '1.weig"),
        ({"model": "Squeezed"}, "returns (10,) for a batch of shape (1, 1, 8, 8); logits of shape (1, 10) are"),
        ({"model": "Remembering", "algorithm": "fedsgd"}, "fedsgd does not support a model with attributes that a ca"),
        ({"model": "nothing"}, "task.model.name: mode_models.nothing returns an object of type dict"),
        ({"model": "not_callable"}, "task.model.name: 'mode_models.not_callable' is not callable"),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, said):
    wanted = experiment(**{"model": "Normed", **change})
    with pytest.raises(UserError) as refused:
        check(wanted, None)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
