"""Recordings and replays: a replayed tuner decides as a live one, at the cost that its trials had."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from click.testing import CliRunner
from paths import ROOT
from searches import ROUNDS, plan

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.validation_noise import ValidationNoise, configuration_key
from hedgerow.searchspaces.extra.replay import nearest, replay
from hedgerow.searchspaces.hedge.promotion import Promotion
from hedgerow.searchspaces.results.recording import RECORDING, Recording
from hedgerow.searchspaces.spaces.search_section import Dimension
from hedgerow.searchspaces.tune.search_runner import search

SPACE = {"algorithm.lr": [0.3, 0.1, 0.01], "algorithm.pull": [0.0, 0.1]}
"""Six configurations of small runs on digits."""

SEARCH = {"space": SPACE, "report_every": 1, "concurrency": 2}
CLIENTS = 6
"""Clients of each round."""


def small(folder: Path, **section):
    return plan(folder, checkpoints={"every": 100}, search={**SEARCH, **section})


@pytest.fixture(scope="module")
def recorded(ray_here, tmp_path_factory):
    """A recorded Hedge search."""
    return search(small(tmp_path_factory.mktemp("recorded"), kind="hedge", record="all"))


@pytest.fixture(scope="module")
def recording(recorded):
    return Recording.read(recorded.folder.path)


def ends(trials) -> list[tuple[int, str]]:
    """Where each trial ended, and how."""
    return [(len(trial.records), trial.status) for trial in trials]


def test_a_recording_has_the_curves_and_costs_of_every_configuration(recorded, recording):
    table = pandas.DataFrame(json.loads((recorded.folder.path / RECORDING).read_text())["rounds"])
    assert len(table) == 6 * ROUNDS
    assert (table["client_rounds"] == CLIENTS).all()
    for trial, curve in zip(recorded.trials, recording.curves, strict=True):
        assert [record["round"] for record in curve] == list(range(1, ROUNDS + 1))
        for name in ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss"):
            assert [record[name] for record in curve] == [record[name] for record in trial.records]
    # One pass over the training samples of six of twelve clients, which hold a tenth of their 20 samples back.
    assert table["sample_gradients"].between(6 * 17, 6 * 19).all()
    assert recording.frame.loc[(0, 1), "test_accuracy"] == recorded.trials[0].records[0]["test_accuracy"]


def without_mixture(hedge):
    """Records as a replay has them: a recording has no predictions to mix."""
    return [{**record, "deployed": record["deployed"] | {"mixture": None}} for record in hedge]


def test_replayed_hedge_has_the_weights_of_the_live_search(recorded, recording):
    live = without_mixture(recorded.hedge)
    again = replay(recording, "hedge", slots=2)
    assert again.hedge == live
    assert again.best.overrides == recorded.best.overrides
    assert again.test_score == recorded.test_score
    assert replay(recording, "hedge").hedge == live
    assert again.costs["client_rounds"] == 6 * ROUNDS * CLIENTS


@pytest.mark.exhaustive("processes")
@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    "section", [{"kind": "asha", "grace": 1, "reduction": 2}, {"kind": "hyperband", "reduction": 3}]
)
def test_a_replayed_scheduler_stops_the_trials_that_it_stops_live(ray_here, tmp_path, recording, section):
    live = search(small(tmp_path, **section, concurrency=1))
    settings = [f"search.{key}={value}" for key, value in section.items() if key != "kind"]
    again = replay(recording, section["kind"], settings, slots=1)
    assert ends(again.trials) == ends(live.trials)
    assert any(status == "stopped" for _, status in ends(live.trials))
    assert again.best.overrides == live.best.overrides
    assert again.test_score == live.test_score
    assert again.costs["client_rounds"] == CLIENTS * sum(len(trial.records) for trial in live.trials)


@pytest.mark.exhaustive("processes")
def test_noise_is_the_same_live_and_in_a_replay(ray_here, tmp_path, recording):
    live = search(small(tmp_path, kind="hedge", noise={"scale": 0.2}, record="all"))
    again = replay(recording, "hedge", ["search.noise.scale=0.2"])
    assert again.hedge == without_mixture(live.hedge)
    assert again.hedge != replay(recording, "hedge").hedge


@pytest.mark.exhaustive("processes")
def test_promotion_is_the_same_live_in_a_replay_and_by_the_rule(ray_here, tmp_path):
    live = search(small(tmp_path, kind="hedge", allocate="promote", grace=1, record="all", concurrency=1))
    curves = [[1 - record["validation_accuracy"] for record in trial.records] for trial in live.trials]
    rule, blocks, order = Promotion(6, ROUNDS, grace=1), [], []

    def rank(expert: int) -> tuple[float, float, float, int]:
        losses = curves[expert][: order.count(expert)]
        last = losses[-math.ceil(len(losses) / 2) :]
        tie = live.trials[expert].records[len(losses) - 1]["validation_loss"]
        return sum(last) / len(last), tie, sum(losses) / len(losses), expert

    while block := rule.decide():
        rule.start(block)
        for round in range(len(rule.losses[block.expert]), block.until):
            tie = live.trials[block.expert].records[round]["validation_loss"]
            rule.report(block.expert, curves[block.expert][round], tie)
            order.append(block.expert)
        blocks.append((*block, min(set(order), key=rank)))
    assert [(one["expert"], one["round"], one["leader"]) for one in live.blocks] == blocks
    assert len(blocks) > 2 * 6
    assert [len(trial.records) for trial in live.trials] == [ROUNDS] * 6
    leader = blocks[-1][2]
    assert (live.deployed.round, live.deployed.experts) == (len(blocks), [leader])
    assert leader == int(live.best.name)
    assert f"Promotion: {len(blocks)} blocks of work; trial {leader:03d} leads" in live.deployed_sentences[0]
    recorded = Recording.read(live.folder.path)
    assert replay(recorded, "hedge", slots=1).best.overrides == live.best.overrides
    for reports in (8, 13, 20, 29):
        again = replay(recorded, "hedge", slots=1, budget=CLIENTS * reports)
        assert [len(trial.records) for trial in again.trials] == [order[:reports].count(i) for i in range(6)]


@pytest.mark.parametrize("kind", ["asha", "hyperband", "optuna"])
def test_a_kind_is_given_smoothed_metrics(recording, kind):
    means: list[float] = []
    for curve in recording.curves:
        values = [record["validation_accuracy"] for record in curve]
        means += [math.fsum(half) / len(half) for i in range(ROUNDS) if (half := values[(i + 1) // 2 : i + 1])]
    smooth = replace(recording, rounds={**recording.rounds, "validation_accuracy": means})
    settings = ["search.reduction=2", *(["search.pruner=halving"] if kind == "optuna" else [])]
    settings += [] if kind == "hyperband" else ["search.grace=1"]
    ours = replay(recording, kind, [*settings, "search.smooth=0.5"], slots=1)
    theirs = replay(smooth, kind, [*settings, "search.smooth=0"], slots=1)
    assert (ours.numbers, ends(ours.trials), ours.chosen) == (theirs.numbers, ends(theirs.trials), theirs.chosen)
    assert ours.deployed == theirs.deployed


def test_a_budget_ends_a_replay_before_the_first_report_that_it_does_not_cover(recording):
    for kind in ("hedge", "grid", "asha", "hyperband", "random"):
        again = replay(recording, kind, budget=100)
        assert again.costs["client_rounds"] == 96, kind
        assert sum(len(trial.records) for trial in again.trials) == 16
    assert ends(replay(recording, "grid", budget=100, slots=1).trials) == [
        *([(6, "finished")] * 2), (4, "unfinished"), *([(0, "unfinished")] * 3)
    ]  # fmt: skip
    # One round of each trial, in which every trial has its first report.
    assert ends(replay(recording, "grid", budget=36).trials) == [(1, "unfinished")] * 6


def test_the_seed_of_a_replay_only_changes_the_order_of_the_configurations(recording):
    plain, shuffled = replay(recording, "grid"), replay(recording, "grid", seed=3)
    assert sorted(shuffled.numbers) == plain.numbers == list(range(6))
    assert shuffled.numbers != plain.numbers
    assert shuffled.test_score == plain.test_score
    weights = [dict(zip(again.numbers, again.hedge[-1]["weights"], strict=True)) for again in (
        replay(recording, "hedge"), replay(recording, "hedge", seed=3))]  # fmt: skip
    assert weights[1] == pytest.approx(weights[0], abs=1e-12)


def test_the_online_score_is_the_mean_over_client_rounds_of_the_deployed_models(recording):
    for kind in ("grid", "hedge"):
        again = replay(recording, kind, slots=1)
        scores = []
        for (start, chosen, round), end in zip(
            again.deployed, [at for at, *_ in again.deployed[1:]] + [6 * ROUNDS * CLIENTS], strict=True
        ):
            scores += [recording.curves[chosen][round - 1]["test_accuracy"]] * int((end - start) / CLIENTS)
        assert len(scores) == 6 * ROUNDS - 1
        assert again.online == pytest.approx(sum(scores) / len(scores))
    # What is left of a budget counts with the last model.
    longer = replay(recording, "grid", slots=1, budget=12 * ROUNDS * CLIENTS)
    last = recording.curves[longer.deployed[-1][1]][longer.deployed[-1][2] - 1]["test_accuracy"]
    once = replay(recording, "grid", slots=1)
    total = once.online * (6 * ROUNDS - 1) + last * 6 * ROUNDS
    assert longer.online == pytest.approx(total / (12 * ROUNDS - 1))


def test_a_searcher_proposes_recorded_configurations(recording):
    again = replay(recording, "optuna", ["search.samples=9"], seed=1, slots=2)
    assert len(again.numbers) == 9
    assert set(again.numbers) <= set(range(6))
    assert ends(again.trials) == [(ROUNDS, "finished")] * 9
    assert again.numbers == replay(recording, "optuna", ["search.samples=9"], seed=1, slots=2).numbers
    settings = ["search.samples=9", "search.pruner=median", "search.grace=1"]
    assert replay(recording, "optuna", settings, budget=200).costs["client_rounds"] <= 200


def test_the_nearest_configuration_counts_shares_of_the_ranges():
    space = {
        "a": Dimension(loguniform=[0.01, 1.0]),
        "b": Dimension(uniform=[0.0, 4.0]),
        "c": Dimension(choice=[1, [2]]),
    }
    configurations = [{"a": 0.01, "b": 1.0, "c": 1}, {"a": 0.1, "b": 1.0, "c": 1}, {"a": 0.02, "b": 3.0, "c": [2]}]
    assert nearest({"a": 0.02, "b": 1.0, "c": 1}, configurations, space) == 0
    # In the logarithm, 0.04 is nearer to 0.1 than to 0.01.
    assert nearest({"a": 0.04, "b": 1.0, "c": 1}, configurations, space) == 1
    assert nearest({"a": 0.02, "b": 1.5, "c": [2]}, configurations, space) == 2
    # Both other keys count 0: a missing key counts like another value from a list.
    assert nearest({"a": 0.02, "b": 3.0}, configurations, space) == 2


def test_noise_depends_on_seed_configuration_and_round_and_keeps_accuracies_in_range():
    noise = ValidationNoise(0, configuration_key({"lr": 0.1}), "validation_accuracy", scale=0.5, clients=3)
    values = [noise.apply({"validation_accuracy": 0.5}, round)["validation_accuracy"] for round in range(400)]
    assert values == [noise.apply({"validation_accuracy": 0.5}, round)["validation_accuracy"] for round in range(400)]
    assert (min(values), max(values)) == (0, 1)
    assert sum(values) / 400 == pytest.approx(0.5, abs=0.06)
    subsets = {tuple(noise.subset(np.arange(10), round)) for round in range(50)}
    assert len(subsets) > 20
    assert {len(subset) for subset in subsets} == {3}
    other = ValidationNoise(0, configuration_key({"lr": 0.2}), "validation_accuracy", scale=0.5)
    assert [other.apply({"validation_accuracy": 0.5}, round)["validation_accuracy"] for round in range(400)] != values
    assert (other.subset(np.arange(10), 1) == np.arange(10)).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "pbt"}, "pbt copies weights and changes settings during training, which recorded curves do not show"),
        ({"kind": "grid", "budget": 35}, "35 client rounds are less than one round of each of the 6 trials; give at"),
        ({"kind": "optuna", "budget": 5}, "5 client rounds are less than one round of a trial; give at least 6"),
        ({"kind": "grid", "budget": 40, "settings": ["search.report_every=3"], "slots": 1}, None),
        (
            {"kind": "optuna", "budget": 10, "settings": ["search.report_every=6"]},
            "10 client rounds end before the first",
        ),
        ({"kind": "asha", "settings": ["rounds=3"]}, "a replay changes only keys of `search`"),
        ({"kind": "asha", "settings": ["search.grace=0"]}, "search.grace must be at least 1, not 0"),
        ({"kind": "asha", "settings": ["search.metric=train_loss"]}, "train_loss was not recorded"),
        (
            {"kind": "grid", "settings": ["search.noise.clients=2"]},
            "one validation score per round, not one per client",
        ),
        ({"kind": "hegde"}, "did you mean 'hedge'"),
    ],
)
def test_mistakes_about_a_replay_are_one_sentence(recording, arguments, sentence):
    if sentence is None:
        assert replay(recording, **arguments).costs["client_rounds"] == 36
        return
    with pytest.raises(UserError, match=sentence):
        replay(recording, **arguments)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"kind": "asha", "record": "all"}, "search.record: `all` needs every configuration up to its last round, but"),
        ({"kind": "hedge", "record": "all", "prune": 0.1}, "but `prune` ends or changes some"),
        ({"kind": "hedge", "noise": {"scale": -1.0}}, "search.noise.scale must be at least 0"),
        ({"kind": "hedge", "noise": {}, "metric": "train_loss", "mode": "min", "range": [0.0, 5.0]},
         "search.noise is for validation metrics, not for train_loss"),
    ],
)  # fmt: skip
def test_mistakes_about_records_and_noise_are_one_sentence(tmp_path, section, sentence):
    with pytest.raises(UserError, match=sentence):
        small(tmp_path, **section)


def test_noise_on_clients_needs_their_validation_samples(tmp_path):
    validation = {"fraction": 0.1, "from": "server"}
    with pytest.raises(UserError, match=r"search.noise.clients: the server scores its own samples"):
        plan(tmp_path, task__validation=validation, search={**SEARCH, "kind": "hedge", "noise": {"clients": 3}})


def test_the_command_shows_the_choice_its_score_and_its_cost(recorded, recording):
    arguments = ["replay", str(recorded.folder.path), "--kind", "asha", "--set", "search.grace=2", "--budget", "120"]
    shown = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    for part in (
        "Choice: ",
        "Test score of the choice, as trained: test accuracy",
        "Online score",
        "client rounds (55",
    ):
        assert part in shown.stdout, part
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False).stdout)
    again = replay(recording, "asha", ["search.grace=2"], budget=120)
    assert document["choice"] == again.rows[again.chosen]
    assert document["costs"] == again.costs
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert f"| `replay SEARCH` | {', '.join(f'`{key}`' for key in document)} |" in page
    refused = CliRunner().invoke(main, ["replay", str(recorded.folder.path / "experts" / "000"), "--kind", "asha"])
    assert refused.exit_code == 2
    assert "has no recording.json; run its search again with `--set search.record=all`" in refused.output


def test_a_recording_needs_every_round_and_its_costs(recorded):
    shorter = [replace(trial, records=trial.records[:4], status="failed") for trial in recorded.trials[:1]]
    with pytest.raises(ValueError, match=r"trial 000 ended in round 4 \(failed\)"):
        Recording.of("small", recorded.spec, [*shorter, *recorded.trials[1:]])
    first = recorded.trials[0]
    uncounted = [{k: v for k, v in record.items() if k != "sample_gradients"} for record in first.records]
    with pytest.raises(ValueError, match="trial 000 continues a run whose rounds have no counted samples"):
        Recording.of("small", recorded.spec, [replace(first, records=uncounted), *recorded.trials[1:]])


def test_a_damaged_recording_is_refused_in_one_sentence(tmp_path, recorded):
    values = json.loads((recorded.folder.path / RECORDING).read_text())
    file = tmp_path / RECORDING
    file.write_text(json.dumps({**values, "rounds": {**values["rounds"], "round": [1]}}))
    with pytest.raises(UserError, match=r"recording.json is damaged \(it does not match its checksum\); restore it"):
        Recording.read(file)


RECORDINGS = ROOT / "benchmarks" / "recordings"


@pytest.mark.parametrize(("kind", "metric"), [("hedge", "test_accuracy"), ("asha", "ctm")])
def test_a_stream_is_replayed_with_the_metric_that_the_kind_compares(kind, metric):
    found = replay(Recording.read(RECORDINGS / "stream-0.json.gz"), kind)
    assert found.spec.search.metric == metric
    means = [np.mean([record["test_accuracy"] for record in curve]) for curve in found.recording.curves]
    assert found.numbers[found.chosen] == np.argmax(means)


def test_a_loss_that_another_kind_does_not_compare_is_refused():
    recording = Recording.read(RECORDINGS / "stream-0.json.gz")
    by_loss = replace(recording, file={**recording.file, "search": {**recording.file["search"], "kind": "hedge"}})
    by_loss.file["search"] |= {"metric": "test_loss", "mode": "min"}
    with pytest.raises(UserError, match=r"search.metric: 'test_loss' is not reported"):
        replay(by_loss, "asha")


def test_the_recordings_of_the_benchmark_are_those_that_its_page_counts():
    tasks = json.loads((ROOT / "benchmarks" / "results" / "tuning.json").read_text())["tasks"]
    for name, task in tasks.items():
        files = sorted(RECORDINGS.glob(f"{name}-[0-9].json.gz"))
        assert len(files) == task["recordings"] == 5
        rounds = [Recording.read(file).cost("client_rounds") for file in files]
        assert {one.shape for one in rounds} == {(task["configurations"], task["rounds"])}
        assert rounds[0].sum() == task["client_rounds"]


def test_a_compressed_recording_is_the_same_and_a_damaged_one_is_one_sentence(tmp_path):
    file = tmp_path / "again.json.gz"
    recording = Recording.read(RECORDINGS / "text-0.json.gz")
    recording.write(file)
    assert Recording.read(file) == recording
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"again.json.gz is damaged \(it is not a complete .gz file: .*\); restore it"):
        Recording.read(file)
