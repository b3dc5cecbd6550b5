"""An algorithm that breaks its contract is refused in one sentence, before a run does any work."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from command_line import hedgerow
from mode_models import NORMED

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime import contract_check as contract
from hedgerow.platform.runtime.factory import build_algorithms, build_data, check
from hedgerow.platform.ui.explained_experiment import complete

BROKEN = [
    ("NoReturn", "`round` returns nothing; return the new server state at its end"),
    ("NoGenerator", "`round` is not a generator; yield an Exchange for every broadcast"),
    ("YieldsTuple", r"`round` yields 2 values \(method, dict\); yield an Exchange, or a list of them"),
    ("Function", "the step of an Exchange in `round` is not a method of"),
    ("ReturnsTensor", "`round` returns an object of type Tensor; return the new server state"),
    ("NoModel", "the server state that `round` returns has no 'w/1.weight', which is in `init_server`; return"),
    ("Stacked", r"has 'w/1.weight' of shape \(2, 10, 64\), not \(10, 64\) as in `init_server`"),
    ("OtherType", "has 'rounds' of type torch.float32, not torch.int64 as in `init_server`"),
    (
        "TwoValues",
        r"its step `train` returns 2 values \(dict, dict\); return StepResult\(update, state, metrics, model\)",
    ),
    ("StepWithoutReturn", r"its step `train` returns None; return StepResult\(update, state, metrics, model\)"),
    ("BareTensor", "its step `train` returns an object of type Tensor as `update` of its StepResult"),
    ("FloatMetric", "its step `train` returns a dictionary that holds an object of type float as `metrics` of its"),
    ("LongMetric", r"its step `train` reports the metric 'loss' of shape \(3,\); report one number, a 0-d tensor"),
    ("Forgetful", "the client state that `train` returns has no 'c/1.weight', which is in `init_client`; return"),
    ("UnnamedStream", "its step `train` reads the stream 'valid', but its Exchange has 'train'; add it to `batches`"),
    ("Item", "its step `train` works for one client, but not for several at once .* do not call .item()"),
    ("Branches", "its step `train` works for one client, but not for several at once .* or set engine.mode to loop"),
    ("WrongEvaluation", "`evaluate` returns None; return two Aggregates"),
    ("SendsHalf", "`round` sends bfloat16, which messages do not carry; send float32"),
    ("Draws", "its step `train`, or the loss, draws random numbers that no seed determines, or sets a seed"),
    ("DrawsElsewhere", "its step `train`, or the loss, draws from NumPy or Python's random, which no seed determines"),
    ("ChangesMessage", "its step `train` changes what it receives in place, which all clients share; change a clone"),
    ("ChangesServer", "`round` changes tensors of its server state in place, and a round may run again; make new ones"),
    ("CountsItself", "a round changes 'rounds', which no checkpoint and no other process has; keep what changes in"),
    ("OwnGenerator", "a round changes 'rng', which no checkpoint and no other process has"),
    ("LateState", "its step `train` returns 'n' in the client state, which `init_client` does not return, so that it"),
    ("DrawsAtServer", "the server's half of a round draws random numbers that no seed determines"),
    ("DrawsAtStart", "`init_server` draws random numbers that no seed determines, or sets a seed"),
    ("IgnoresMask", "a step gives other numbers for several clients at once than for one client after the other"),
    ("LongWeights", r"the Exchange of `train` has weights of shape \(2,\) for 1 clients; give one number for each"),
    ("Backwards", "the Exchange of `train` has `clients` that are not ascending, or twice there"),
    ("Strangers", "the Exchange of `train` addresses client 1, which is not in the cohort; choose from cohort.clients"),
    ("LongRows", r"the Exchange of `train` has a tensor of shape \(6,\) in `per_client` for 2 clients; give a row"),
    ("Median", "the Exchange of `train` has reduce='median'; choose from mean, sum, stack"),
    ("SendsNumber", "the Exchange of `train` has a `broadcast` that is no dictionary of tensors"),
    ("NoPasses", "the Exchange of `train` has a stream 'train' with epochs=0; give a whole number of at least 1"),
    ("NoSamples", "its step `train` reads the split 'validation', in which no client has samples; set task.partition."),
    (
        "TensorMetric",
        r"`round_metrics` returns an object of type Tensor as 'norm'; return a number, such as float\(x\)",
    ),
    (
        "NamesPrecision",
        "its step `train` reports the metric 'precision@1'; name it by letters, digits, spaces and _ - ",
    ),
    (
        "ScoresMore",
        r"its step `evaluate_client` reports the metric 'top@5_\w+'; name it by letters, digits, spaces and",
    ),
    ("ScoresUnread", "a step of `evaluate` reports 'calibration', which is in no record; report the scores of another"),
    ("ScoresServer", "its step `evaluate_client` reports 'server_correct', a name of the server's own scores; choose"),
    ("ScoresLoss", "`evaluate` returns an Aggregate whose step does not report 'correct'; report all that"),
    ("OwnRound", "`round_metrics` returns 'round', which is the name of another entry of records; choose another"),
    (
        "OwnScore",
        "`server_metrics` returns 'test_accuracy', which is the name of another entry of records; choose another",
    ),
    ("ReadsItself", r"its step `train` reads self.hyper.\w+; read hp.\w+, which has the value of the round and, in a"),
    (
        "ReadsItsSection",
        "its step `train` reads self.hyper.penalty.weight; read hp.penalty.weight, which has the value of",
    ),
    ("SameMemory", "a step returns memory that the step of a later client changes; return clones"),
]


def experiment(name="broken_algorithms.Plain", model="logreg", mode="auto", **more):
    return parse_experiment(
        {
            "name": "test",
            "rounds": 2,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 6, "samples_per_client": 20},
                "model": {"name": model},
            },
            "clients_per_round": "all",
            "algorithm": {"name": name, "lr": 0.1},
            "engine": {"mode": mode, "compile": False},
            "resources": {"executor": "inline"},
            "tracking": {"enabled": False},
            **more,
        }
    )


@pytest.mark.parametrize(("name", "said"), BROKEN, ids=[name for name, _ in BROKEN])
def test_each_violation_is_a_sentence_that_names_class_method_and_fix(name, said):
    with pytest.raises(
        UserError, match=f"algorithm.name: {name} breaks the contract of an algorithm: .*{said}"
    ) as found:
        check(experiment(f"broken_algorithms.{name}"), None)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["Item", "Branches"])
def test_what_cannot_be_batched_is_refused_where_the_plan_may_batch(name):
    check(experiment(f"broken_algorithms.{name}", mode="loop"), None)
    alone = experiment(f"broken_algorithms.{name}", clients_per_round=0.01)
    assert alone.cohort_size(6) == 1
    check(alone, None)
    with pytest.raises(UserError, match=r"set engine.mode to loop"):
        check(experiment(f"broken_algorithms.{name}", mode="vmap"), None)


def test_a_step_whose_exchange_is_keyed_draws_the_same_numbers_again(tmp_path):
    def scores(seed):
        found = run(experiment("broken_algorithms.DrawsByKey", mode="loop", seed=seed, output=str(tmp_path)))
        return [record["test_loss"] for record in found.records]

    assert scores(0) == scores(0) != scores(1)


def test_a_training_metric_may_have_any_name(tmp_path):
    records = run(experiment("broken_algorithms.CountsCorrect", output=str(tmp_path))).records
    assert [record["train_fully_correct"] for record in records] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        ({"aggregation": {"rule": {"kind": "broken_algorithms.Scalars"}}}, "aggregation.rule: `combine` returns an "
         "update with other names or shapes"),
        ({"aggregation": {"rule": {"kind": "broken_algorithms.DrawingRule"}}}, "the server's half of a round draws"),
        ({"transforms": [{"kind": "broken_algorithms.Remembers"}]}, "transforms.0.kind: `client` adds 'n' to its "
         "state, which `init_client` does not return"),
        ({"transforms": [{"kind": "broken_algorithms.Mean"}]}, "transforms.0.kind: `client` returns an update with"),
        ({"transforms": [{"kind": "broken_algorithms.Unkeyed"}], "engine": {"mode": "loop"}}, "set its `is_random`"),
        ({"objective": {"kind": "broken_algorithms.LateObjective"}}, "objective.kind: `end` adds 'n' to its state"),
        ({"objective": {"kind": "broken_algorithms.PenaltyOfItself"}}, "objective.kind: PenaltyOfItself reads "
         "self.weight; read hp.objective.weight, which has the value of the round and, in a search, of the trial"),
        ({"transforms": [{"kind": "broken_algorithms.ScalesByItself"}]}, "transforms.0.kind: ScalesByItself reads "
         "self.factor; read hp.factor, which has the value of the round"),
    ],
)  # fmt: skip
def test_a_slot_of_the_user_that_would_give_other_numbers_is_refused(slot, said):
    with pytest.raises(UserError) as found:
        check(experiment("fedavg", **slot), None)
    assert said in str(found.value)


def test_steps_that_a_client_of_a_batch_does_not_have_must_change_nothing():
    small = {"algorithm": {"name": "broken_algorithms.IgnoresActive", "lr": 0.1, "batch_size": 4}}
    with pytest.raises(UserError, match=r"leave out the padding of mini-batches by `batch.mask` and `batch.active`"):
        check(experiment(**small), None)
    check(experiment(mode="loop", **small), None)


def test_a_step_that_leaves_padding_out_is_accepted_where_rounding_decides_or_it_reads_the_masks_of_a_batch():
    check(experiment("broken_algorithms.SignSGD", model="mlp"), None)
    check(experiment("broken_algorithms.MasksAlone", mode="vmap"), None)


def test_a_rule_may_combine_updates_in_double_precision(tmp_path):
    def parameters(rule):
        settings = {"rule": {"kind": rule}, "weighting": "samples"}
        return run(experiment("fedavg", aggregation=settings, output=str(tmp_path))).parameters

    mean = parameters("mean")
    assert all(abs(leaf - mean[name]).max() < 1e-6 for name, leaf in parameters("broken_algorithms.Precise").items())


def test_weights_that_fit_other_clients_in_a_later_round_end_it_with_a_sentence(tmp_path):
    said = r"the Exchange of `train` \(round 2\) has weights of shape \(6,\) for 5 clients"
    with pytest.raises(UserError, match=said):
        run(experiment("broken_algorithms.LongWeightsLater", output=str(tmp_path)))


def test_divergence_is_left_to_the_run():
    check(experiment("broken_algorithms.Diverges"), None)


def test_another_mistake_is_a_sentence_with_its_place():
    with pytest.raises(
        UserError, match=r"ValueError at .*broken_algorithms.py:\d+, in train: a mistake of another kind"
    ):
        check(experiment("broken_algorithms.Raises"), None)


def test_the_command_ends_with_a_sentence_and_leaves_no_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text(
        "name: broken\nrounds: 2\ntask:\n  data: {name: digits}\n  partition: {kind: iid, clients: 6}\n"
        "  model: {name: logreg}\nalgorithm: {name: broken_algorithms.NoReturn}\n"
    )
    ended = hedgerow("run", "broken.yaml", "--import", "broken_algorithms")
    assert ended.exit_code == 2
    assert "algorithm.name: NoReturn breaks the contract of an algorithm" in ended.output
    assert "Traceback" not in ended.output
    assert [path.name for path in tmp_path.iterdir()] == ["broken.yaml"]


def test_nothing_of_the_dry_run_enters_the_run(tmp_path, monkeypatch):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    contract._passed.clear()
    dry = run(experiment(output=str(tmp_path)))
    assert contract._passed
    assert torch.equal(torch.random.get_rng_state(), before)
    monkeypatch.setattr("hedgerow.platform.runtime.factory.check_contract", lambda *_: None)
    plain = run(experiment(output=str(tmp_path)))
    assert {name: leaf.tolist() for name, leaf in dry.parameters.items()} == {
        name: leaf.tolist() for name, leaf in plain.parameters.items()
    }


def test_a_partition_without_training_samples_is_refused():
    wanted = experiment()
    data, clients = build_data(wanted, None)
    empty = replace(clients, train_sizes=np.zeros_like(clients.train_sizes))
    with pytest.raises(UserError, match=r"task\.partition: no client has samples for training"):
        check(wanted, None, (data, empty))


@pytest.mark.parametrize("name", ["fedsgd", "ditto"])
def test_models_of_clients_are_averaged_only_where_a_step_returns_them(name):
    task = {
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 6, "samples_per_client": 20, "client_test_fraction": 0.3},
        "model": {"name": "logreg"},
    }
    check(experiment("fedavg", evaluation={"model": "clients"}, task=task), None)
    with pytest.raises(UserError, match=f"evaluation.model: {name} has no client models to average; set it to server"):
        check(experiment(name, evaluation={"model": "clients"}, task=task), None)


def test_an_unknown_need_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"algorithm.name: Needy.needs has 'validaton'; choose from all_clients"):
        check(experiment("broken_algorithms.Needy"), None)


def test_another_number_of_clients_per_round_is_checked_again():
    alone = experiment("broken_algorithms.Item", clients_per_round=1)
    check(alone, None)
    with pytest.raises(UserError, match=r"do not call \.item\(\)"):
        check(experiment("broken_algorithms.Item"), None)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "numpy_client"])  # needs a factory
def test_algorithms_that_come_with_it_keep_the_contract(name, caplog, monkeypatch):
    monkeypatch.setattr("hedgerow.platform.runtime.factory.check_contract", lambda *_: None)
    wanted = complete("all", name, NORMED.get(name, ()))
    data, clients = build_data(wanted, None)
    (algorithm,) = build_algorithms([wanted], data, clients)
    contract._passed.clear()
    with caplog.at_level("INFO"):
        contract.check_contract(wanted, algorithm, data, clients)
    assert not caplog.records
