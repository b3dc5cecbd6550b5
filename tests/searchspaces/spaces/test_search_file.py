"""The `search` section: configurations in a fixed order, conditions, and one clear sentence for every mistake."""

import copy

import pytest
import yaml

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import load_experiment
from hedgerow.searchspaces.spaces.search_file import load_search, parse_search, read_search

BASE = """
name: tiny
rounds: 4
task:
  data: {name: digits}
  partition: {kind: iid, clients: 10}
  model: {name: logreg}
algorithm: {name: fedprox, lr: 0.1}
"""


def plan(search: str, base: str = BASE):
    return parse_search(yaml.safe_load(base) | {"search": yaml.safe_load(search)})


def test_a_grid_is_the_product_of_its_lists_in_the_order_of_the_file():
    found = plan("{space: {algorithm.lr: [0.1, 0.2], algorithm.mu: {grid: [0.0, 1.0, 2.0]}}}").configurations
    assert found == [{"algorithm.lr": lr, "algorithm.mu": mu} for lr in (0.1, 0.2) for mu in (0.0, 1.0, 2.0)]


def test_hedge_is_the_kind_of_a_search_that_names_none_with_the_thesis_gamma():
    search = plan("{space: {algorithm.lr: [0.1, 0.2]}}").search
    assert (search.kind, search.gamma, search.rate, search.metric, search.mode) == (
        "hedge", 0.1, "fixed", "validation_accuracy", "max",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "rate", "bounds"),
    [
        ("metric: validation_loss", "adahedge", None),
        ("metric: validation_loss, range: [0, 4.6]", "fixed", [0.0, 4.6]),
        ("metric: train_drift, mode: min", "adahedge", None),
    ],
)
def test_a_loss_has_a_range_or_the_scale_free_rate(keys, rate, bounds):
    found = plan(f"{{space: {{algorithm.lr: [0.1, 0.2]}}, {keys}}}")
    assert (found.search.mode, found.search.rate, found.search.range) == ("min", rate, bounds)
    assert parse_search(yaml.safe_load(found.dump())).search == found.search


@pytest.mark.parametrize(
    ("keys", "smooth"),
    [
        ("kind: grid", 0.5),
        ("kind: asha, smooth: 0", 0.0),
        ("kind: asha, metric: validation_loss", 0.5),
        ("kind: hedge, metric: train_drift", 0.0),
        ("kind: grid, metric: test_accuracy, allow_test_selection: true", 0.0),
        ("kind: grid, metric: test_accuracy, allow_test_selection: true, smooth: 0.2", 0.2),
    ],
)
def test_metrics_of_validation_samples_are_smoothed_by_default(keys, smooth):
    found = plan(f"{{space: {{algorithm.lr: [0.1, 0.2]}}, {keys}}}")
    assert found.search.smooth == smooth
    assert parse_search(yaml.safe_load(found.dump())).search == found.search


def test_a_search_holds_validation_samples_back_unless_the_file_does():
    found = plan("{space: {algorithm.lr: [0.1, 0.2]}}")
    held_back = {"fraction": 0.1, "from": "clients"}
    assert found.resolved["task"]["validation"] == held_back
    assert found.trial(found.configurations[0]).task.validation.model_dump() == held_back
    assert not found.selects_on_test
    assert parse_search(yaml.safe_load(found.dump())).resolved == found.resolved
    base = yaml.safe_load(BASE)
    base["task"]["validation"] = {"fraction": 0.2, "from": "server"}
    found = plan("{space: {algorithm.lr: [0.1, 0.2]}}", yaml.safe_dump(base))
    assert found.resolved["task"]["validation"] == base["task"]["validation"]
    assert plan("{metric: train_loss, space: {algorithm.lr: [0.1, 0.2]}}").experiment.task.validation is None


def test_test_samples_select_with_permission(tmp_path):
    search = "{metric: test_loss, space: {algorithm.lr: [0.1, 0.2]}, allow_test_selection: true}"
    found = plan(search)
    assert found.selects_on_test
    assert found.experiment.task.validation is None
    file = tmp_path / "experiment.yaml"
    file.write_text(found.dump())
    assert read_search(file).selects_on_test
    values = found.resolved
    del values["search"]["allow_test_selection"]
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match="test_loss selects by samples that only score the result"):
        load_search(file)


def test_targets_on_test_samples_end_no_trials():
    evaluation = {"targets": [0.5], "stop": True}
    base = yaml.safe_load(BASE) | {"evaluation": evaluation | {"target_metric": "test_accuracy"}}
    with pytest.raises(
        UserError, match=r"evaluation\.target_metric: test_accuracy ends trials \(evaluation\.stop\) by"
    ):
        plan("{kind: grid, space: {algorithm.lr: [0.1, 0.2]}}", yaml.safe_dump(base))
    base["evaluation"] = evaluation
    found = plan("{kind: grid, space: {algorithm.lr: [0.1, 0.2]}}", yaml.safe_dump(base))
    assert found.experiment.evaluation.target_metric == "validation_accuracy"


def test_a_key_whose_condition_fails_is_left_out_and_nothing_comes_twice():
    found = plan(
        """
        kind: grid
        space:
          algorithm.name: [fedavg, fedprox]
          algorithm.mu: {grid: [0.1, 1.0], when: {algorithm.name: fedprox}}
        """
    ).configurations
    assert found == [
        {"algorithm.name": "fedavg"},
        {"algorithm.name": "fedprox", "algorithm.mu": 0.1},
        {"algorithm.name": "fedprox", "algorithm.mu": 1.0},
    ]


def test_a_condition_may_ask_for_a_value_of_the_file_or_for_one_of_several():
    space = "{algorithm.lr: [0.1, 0.2], algorithm.mu: {grid: [1.0], when: {WHEN}}}"
    kept = plan("space: " + space.replace("WHEN", "algorithm.lr: [0.2, 0.3], task.data.name: digits")).configurations
    assert kept == [{"algorithm.lr": 0.1}, {"algorithm.lr": 0.2, "algorithm.mu": 1.0}]


def test_draws_are_decided_by_the_seed_and_lie_within_their_bounds():
    text = """
    kind: random
    samples: 50
    space:
      algorithm.lr: {loguniform: [0.001, 0.1]}
      algorithm.mu: {uniform: [0, 2]}
      algorithm.epochs: {integers: [1, 3]}
      algorithm.batch_size: {choice: [4, 8]}
    """
    first, again = plan(text).configurations, plan(text).configurations
    other = plan(text, BASE + "seed: 1\n").configurations
    assert first == again != other
    assert len(first) == 50
    rates = [point["algorithm.lr"] for point in first]
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    # Evenly on the logarithmic scale: about half are below the geometric mean, 0.01, which is a tenth of the range.
    assert 15 <= sum(rate < 0.01 for rate in rates) <= 35
    assert {point["algorithm.epochs"] for point in first} == {1, 2, 3}
    assert {point["algorithm.batch_size"] for point in first} == {4, 8}


def test_grids_and_draws_multiply():
    found = plan(
        "{kind: random, samples: 3, space: {seed: [0, 1], algorithm.lr: {uniform: [0.1, 0.2]}}}"
    ).configurations
    assert [point["seed"] for point in found] == [0, 0, 0, 1, 1, 1]
    assert len({point["algorithm.lr"] for point in found}) == 6


def test_a_trial_is_the_file_with_its_values_in_place_and_the_file_itself_is_unchanged():
    search = plan("{space: {algorithm.lr: [0.1, 0.2], task.model.name: [logreg, mlp]}}")
    before = copy.deepcopy(search.values)
    trial = search.trial({"algorithm.lr": 0.2, "task.model.name": "mlp"})
    assert (trial.algorithm.lr, trial.task.model.name, trial.task.data.name) == (0.2, "mlp", "digits")
    assert search.values == before


def test_the_resolved_file_reads_back_as_the_same_search(tmp_path):
    search = plan("{space: {algorithm.lr: [0.1, 0.2], algorithm.mu: {choice: [0.0, 1.0]}}, samples: 2}")
    (tmp_path / "resolved.yaml").write_text(search.dump())
    again = load_search(tmp_path / "resolved.yaml")
    assert again.search == search.search
    assert again.experiment == search.experiment
    assert again.configurations == search.configurations


def test_a_plain_run_leaves_the_search_out(tmp_path):
    (tmp_path / "both.yaml").write_text(BASE + "search: {space: {algorithm.lr: [0.1]}}\n")
    assert load_experiment(tmp_path / "both.yaml").algorithm.lr == 0.1


GOOD = BASE + "search:\n  kind: hedge\n  space:\n    algorithm.lr: [0.1, 0.2]\n"

BAD = {
    "an unknown hyperparameter": (
        "algorithm.lr:",
        "algorithm.lrr:",
        "bad.yaml:12: algorithm.lrr is not a key here; did you mean 'lr'?",
    ),
    "a value out of range": (
        "[0.1, 0.2]",
        "[0.1, -0.2]",
        "bad.yaml:12: algorithm.lr must be greater than 0, not -0.2",
    ),
    "an empty space": (
        "space:\n    algorithm.lr: [0.1, 0.2]",
        "space: {}",
        "search: `space` is empty; name at least one key",
    ),
    "no space": (
        "  space:\n    algorithm.lr: [0.1, 0.2]\n",
        "",
        "search.space is missing; add `space: ...` under search",
    ),
    "an empty list": (
        "[0.1, 0.2]",
        "[]",
        "bad.yaml:12: search.space.algorithm.lr must be a list of at least 1 entries, not []",
    ),
    "gamma 0": (
        "kind: hedge",
        "gamma: 0.0",
        "bad.yaml:10: search.gamma must be greater than 0, not 0.0",
    ),
    "gamma 1": (
        "kind: hedge",
        "gamma: 1.0",
        "bad.yaml:10: search.gamma must be less than 1, not 1.0",
    ),
    "mode against metric": (
        "kind: hedge",
        "mode: min",
        "search: `mode: min` contradicts `metric: validation_accuracy`, whose mode is max; set `mode: max`",
    ),
    "loss to be maximised": (
        "kind: hedge",
        "metric: validation_loss\n  mode: max",
        "mode: max` contradicts `metric: validation_loss`",
    ),
    "a loss without a range for a fixed rate": (
        "kind: hedge",
        "metric: validation_loss\n  gamma: 0.5",
        "search.range: a loss without a range needs the scale-free rule (`rate: adahedge`, which has no `gamma`)",
    ),
    "a range the wrong way": (
        "kind: hedge",
        "metric: validation_loss\n  range: [4.6, 0]",
        "search.range takes two finite numbers [low, high] with low < high, not [4.6, 0.0]",
    ),
    "a metric of test samples": (
        "kind: hedge",
        "metric: test_accuracy",
        "search.metric: test_accuracy selects by samples that only score the result; set `metric: "
        "validation_accuracy`, or `search.allow_test_selection: true` if test data are meant to select",
    ),
    "a metric of the clients' evaluation": (
        "kind: hedge",
        "metric: client_loss",
        "search.metric: client_loss selects by samples that only score the result; set `metric: validation_loss`",
    ),
    "the raw loss of an accuracy": (
        "kind: hedge",
        "loss: raw",
        "search.loss: `raw` is for a metric to be minimised with a range, such as `metric: validation_loss`",
    ),
    "the raw loss without a range": (
        "kind: hedge",
        "metric: validation_loss\n  loss: raw",
        "search.loss: `raw` is for a metric to be minimised with a range, such as `metric: validation_loss`",
    ),
    "the raw loss of a rate without gamma": (
        "kind: hedge",
        "metric: validation_loss\n  range: [0, 4.6]\n  loss: raw\n  rate: anytime",
        "search.loss: rate anytime has no gamma; remove `loss`, or set `rate: fixed`",
    ),
    "a range too wide for the raw loss": (
        "kind: hedge",
        "metric: validation_loss\n  range: [0, 4000]\n  loss: raw",
        "gamma 0.1 to the power of the width of the range [0.0, 4000.0] is 0 in double precision",
    ),
    "promotion with another rate": (
        "kind: hedge",
        "allocate: promote\n  rate: anytime",
        "search.rate has no effect: `allocate: promote` weighs by fixed_share and stops no expert; remove it",
    ),
    "promotion with the rate that it has": (
        "kind: hedge",
        "allocate: promote\n  rate: fixed_share",
        "search.rate has no effect: `allocate: promote` weighs by fixed_share and stops no expert; remove it",
    ),
    "promotion with experts that run ahead": (
        "kind: hedge",
        "allocate: promote\n  ahead: 3",
        "search.ahead has no effect: `allocate: promote` weighs by fixed_share and stops no expert; remove it",
    ),
    "promotion by a loss without a range": (
        "kind: hedge",
        "allocate: promote\n  metric: validation_loss",
        "search.range: `allocate: promote` needs losses in [0, 1]; set a range such as [0, 4.6] for validation_loss",
    ),
    "promotion that promotes no expert": (
        "kind: hedge",
        "allocate: promote\n  grace: 4",
        "search.grace: 4 is not below the number of evaluations of a trial, 4, so that no expert would be promoted",
    ),
    "promotion in packs": (
        "kind: hedge",
        "allocate: promote\n  pack: 2",
        "`pack: 2` cannot be used with `allocate: promote`, which treats trials individually",
    ),
    "promotion and a mixture": (
        "kind: hedge",
        "allocate: promote\n  deploy: mixture",
        "search.deploy: mixture needs predictions of all experts after the same round, which `allocate: promote` does",
    ),
    "promotion that deploys rarely": (
        "kind: hedge",
        "allocate: promote\n  deploy_every: 5",
        "search.deploy_every: `allocate: promote` deploys after each block; set it to 1 or 0",
    ),
    "rungs without promotion": (
        "kind: hedge",
        "grace: 3",
        "search.grace has no effect: all experts train the same rounds; remove it",
    ),
    "a smoothing that is no fraction": ("kind: hedge", "smooth: 2", "search.smooth"),
    "exploration of a rate that observes all": (
        "kind: hedge",
        "exploration: 0.1",
        "search.exploration has no effect: `rate: fixed` does not use it; remove it",
    ),
    "a share without fixed share": (
        "kind: hedge",
        "share: 0.1",
        "search.share has no effect: `rate: fixed` does not use it; remove it",
    ),
    "a gamma without a rate that uses it": (
        "kind: hedge",
        "rate: tuned\n  gamma: 0.5",
        "search.gamma has no effect: `rate: tuned` does not use it; remove it",
    ),
    "elimination on a fixed data set": (
        "kind: hedge",
        "comeback: 0.05",
        "search.comeback stops experts on a stream, whose rounds do not come back; this data set is fixed: remove it",
    ),
    "an unknown metric": (
        "kind: hedge",
        "metric: test_acuracy",
        "'test_acuracy' is not reported; did you mean 'test_accuracy'?",
    ),
    "an unknown kind": (
        "kind: hedge",
        "kind: hegde",
        "bad.yaml:10: search.kind: 'hegde' is not known; did you mean 'hedge'?",
    ),
    "an unknown key": (
        "kind: hedge",
        "gama: 0.5",
        "bad.yaml:10: search.gama is not a key here; did you mean 'gamma'?",
    ),
    "gamma in a grid": (
        "kind: hedge",
        "kind: grid\n  gamma: 0.5",
        "search.gamma is not a key here",
    ),
    "what all trials share": (
        "algorithm.lr: [0.1, 0.2]",
        "task.data.name: [digits]",
        "search.space.task.data.name cannot be searched",
    ),
    "two forms": (
        "[0.1, 0.2]",
        "{grid: [1.0], choice: [1.0]}",
        "search.space.algorithm.lr: set exactly one of grid, choice, uniform, loguniform, integers, not grid and",
    ),
    "bounds the wrong way": (
        "[0.1, 0.2]",
        "{uniform: [0.2, 0.1]}",
        "`uniform` takes [low, high] with low < high",
    ),
    "a logarithm of 0": (
        "[0.1, 0.2]",
        "{loguniform: [0.0, 0.1]}",
        "`loguniform` takes bounds above 0",
    ),
    "no number of draws": (
        "[0.1, 0.2]",
        "{uniform: [0.1, 0.2]}",
        "`samples` is missing: set the number of draws of algorithm.lr, as in `samples: 10`",
    ),
    "draws of nothing": (
        "kind: hedge",
        "samples: 3",
        "`samples` has no effect",
    ),
    "a bound out of range": (
        "kind: hedge\n  space:\n    algorithm.lr: [0.1, 0.2]",
        "samples: 2\n  space:\n    algorithm.lr: {uniform: [-1.0, 0.2]}",
        "algorithm.lr must be greater than 0, not -1",
    ),
    "a condition that never holds": (
        "[0.1, 0.2]",
        "{grid: [0.1], when: {algorithm.mu: 3}}",
        "search.space.algorithm.lr: its condition {'algorithm.mu': 3} never holds",
    ),
    "a condition of drawn values that never holds": (
        "kind: hedge\n  space:\n    algorithm.lr: [0.1, 0.2]",
        "samples: 2\n  space:\n    algorithm.lr: {uniform: [0.1, 0.2], when: {algorithm.name: fedprx}}",
        "search.space.algorithm.lr: its condition {'algorithm.name': 'fedprx'} never holds",
    ),
    "a draw in a grid": (
        "kind: hedge\n  space:\n    algorithm.lr: [0.1, 0.2]",
        "kind: grid\n  samples: 2\n  space:\n    algorithm.lr: {uniform: [0.1, 0.2]}",
        "kind grid accepts only lists",
    ),
    "an unknown name": (
        "space:\n    algorithm.lr: [0.1, 0.2]",
        "space: feddyn/cifar11",
        "did you mean 'feddyn/cifar10'?",
    ),
    "fairness without clients": (
        "search:\n",
        "evaluation: {clients: 0}\nsearch:\n  metric: client_accuracy\n",
        "search.metric: client_accuracy needs evaluation.clients above 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_sentence_with_its_place(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, new, message = BAD[name]
    assert old in GOOD
    (tmp_path / "bad.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_search("bad.yaml")
    sentence = str(caught.value)
    assert message in sentence
    assert sentence.startswith("bad.yaml")
    assert "\n" not in sentence


def test_conditions_in_a_circle_are_told():
    with pytest.raises(UserError, match=r"the conditions of algorithm.lr and algorithm.mu depend on each other"):
        plan(
            """
            space:
              algorithm.lr: {grid: [0.1], when: {algorithm.mu: 1.0}}
              algorithm.mu: {grid: [1.0], when: {algorithm.lr: 0.1}}
            """
        )


def test_a_file_without_a_search_says_what_to_add(tmp_path):
    (tmp_path / "plain.yaml").write_text(BASE)
    with pytest.raises(UserError, match="there is no `search:` section"):
        load_search(tmp_path / "plain.yaml")
