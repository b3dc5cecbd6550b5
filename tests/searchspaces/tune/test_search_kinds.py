"""Kinds of search, by name and by the user's own dotted path: each builds Tune's searcher and scheduler."""

import ast
import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining
from searches import ROUNDS, plan

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.hedge.weights import Exp3, Exp3IX
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.spaces import SEARCH_KINDS
from hedgerow.searchspaces.spaces.json_schema import experiment_schema
from hedgerow.searchspaces.spaces.search_file import read_search
from hedgerow.searchspaces.spaces.search_section import KINDS, SearchKind, SearchSetup
from hedgerow.searchspaces.tune import kinds, search_runner
from hedgerow.searchspaces.tune.search_runner import search
from hedgerow.searchspaces.tune.tuner_spec import tuner_spec

OWN = '''
"""A kind of search in one file."""

from typing import ClassVar

from pydantic import Field
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from hedgerow import SearchKind, SearchSetup, UserError


class FirstOnly(FIFOScheduler):
    """Lets the first trial run to its end, and stops the others early."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def on_trial_result(self, controller, trial, result):
        first = trial.trial_id.endswith("_00000")
        return TrialScheduler.CONTINUE if first or result["round"] < self.rounds else TrialScheduler.STOP


class FirstSearch(SearchKind):
    """The first configuration is the one that counts."""

    treats_trials_alone: ClassVar[bool] = True

    patience: int = Field(2, ge=1, description="rounds of the others")

    def build(self, setup: SearchSetup):
        return None, FirstOnly(self.patience)

    def check(self, experiment):
        if experiment.rounds < self.patience:
            raise UserError("search.patience is more than the rounds; lower it")


class NoSearch:
    """Is none."""
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's file, where Python finds it."""
    (tmp_path / "my_search.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_search", None)


def own_plan(folder: Path, **settings):
    section = {"kind": "my_search.FirstSearch", "space": {"algorithm.lr": [0.01, 0.3]}, "report_every": 1, **settings}
    return plan(folder / "runs", rounds=4, search=section)


def test_every_module_of_kinds_stands_in_the_table_and_every_kind_builds_its_search():
    files = {file.stem for file in Path(kinds.__file__).parent.glob("*_search*.py")}
    assert files == {path.partition(":")[0].rpartition(".")[2] for path in SEARCH_KINDS.values()}
    for name in SEARCH_KINDS:
        kind = KINDS.resolve(name)
        assert issubclass(kind, SearchKind)
        assert kind.build is not SearchKind.build
        section = KINDS.section(name)
        assert section.model_fields["kind"].default == name
        tree = ast.parse(Path(importlib.import_module(kind.__module__).__file__).read_text())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        assert kind.__name__ in [node.name for node in classes]


@pytest.mark.parametrize(("metric", "losses"), [("train_loss", 100), ("validation_loss", 10)])
def test_the_tuned_rate_counts_the_rounds_with_a_loss(tmp_path, metric, losses):
    own = {"rate": "tuned", "metric": metric, "range": [0, 4], "space": {"algorithm.lr": [0.01, 0.1, 0.3, 1.0]}}
    spec = plan(tmp_path, rounds=100, evaluation={"every": 10}, search={"kind": "hedge", **own})
    assert spec.search._hedge(spec.experiment)(4).eta == pytest.approx(math.sqrt(8 * math.log(4) / losses))


@pytest.mark.parametrize(
    ("kind", "scheduler", "limited"),
    [
        ("hedge", HedgeScheduler, False),
        ("grid", None, True),
        ("random", None, True),
        ("asha", ASHAScheduler, True),
        ("hyperband", HyperBandScheduler, False),
        ("pbt", PopulationBasedTraining, False),
    ],
)
def test_a_kind_builds_its_scheduler(tmp_path, kind, scheduler, limited):
    spec = plan(tmp_path, search={"kind": kind, "space": {"algorithm.lr": [0.01, 0.3]}})
    setup = SearchSetup(spec.experiment, spec.values, spec.configurations, tmp_path / "j", lambda record: None, print)
    config, parameters = tuner_spec(spec.search, setup, None, room=3)
    assert isinstance(config.scheduler, scheduler or type(None))
    assert config.search_alg is None
    assert config.max_concurrent_trials == (3 if limited else None)
    assert parameters == {"overrides": {"grid_search": spec.configurations}}


def build(folder: Path, kind: str = "hedge", **settings):
    """The searcher and the scheduler of a kind of search over two learning rates."""
    spec = plan(folder, search={"kind": kind, "space": {"algorithm.lr": [0.01, 0.3]}, **settings})
    setup = SearchSetup(spec.experiment, spec.values, spec.configurations, folder / "j", lambda record: None, print)
    return spec.search.build(setup)


@pytest.mark.parametrize(("low", "high"), [(0.0, 4.0), (-1.0, 1.5)])
def test_the_raw_loss_multiplies_a_weight_by_gamma_to_the_power_of_the_cross_entropy(tmp_path, low, high):
    _, scheduler = build(tmp_path, metric="validation_loss", loss="raw", range=[low, high], gamma=0.3)
    raw = [(0.2, 1.4), (0.9, 0.1), (1.2, 1.1)]
    for round, losses in enumerate(raw, 1):
        for expert, loss in enumerate(losses):
            scheduler.rounds.report(expert, round, {"validation_loss": loss})
    weights = [0.3 ** sum(losses) for losses in zip(*raw, strict=True)]
    hedge = scheduler.rounds.hedge
    assert hedge.probs() == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-12)
    # Losses and regret are reported in [0, 1], where gamma is 0.3^(high - low).
    scaled = [[(one - low) / (high - low) for one in losses] for losses in raw]
    assert hedge.losses == pytest.approx([sum(losses) for losses in zip(*scaled, strict=True)])
    assert hedge.eta == pytest.approx(-(high - low) * math.log(0.3))


@pytest.mark.parametrize(("rate", "kind"), [("exp3", Exp3), ("exp3_ix", Exp3IX)])
def test_a_bandit_has_the_seed_of_the_file_and_the_rate_of_its_evaluated_rounds(tmp_path, rate, kind):
    _, scheduler = build(tmp_path, rate=rate, exploration=0.25)
    hedge = scheduler.rounds.hedge
    assert type(hedge) is kind
    assert hedge.seed == 0
    assert hedge.eta == pytest.approx(math.sqrt(2 * math.log(2) / (2 * ROUNDS)))
    assert (hedge.implicit if rate == "exp3_ix" else hedge.exploration) == 0.25


def test_a_kind_that_proposes_has_a_searcher_and_no_space(tmp_path):
    spec = plan(tmp_path, search={"kind": "optuna", "samples": 5, "space": {"algorithm.lr": [0.01, 0.3]}})
    setup = SearchSetup(spec.experiment, spec.values, [], tmp_path / "j", lambda record: None, print)
    config, parameters = tuner_spec(spec.search, setup, None, room=3)
    assert (config.num_samples, parameters, spec.search.packed) == (5, None, None)
    assert config.search_alg is not None


@pytest.mark.exhaustive("processes")
def test_a_kind_of_the_users_own_runs_a_search(ray_here, own):
    finished = search(own_plan(own, concurrency=1))
    assert [(trial.status, len(trial.records)) for trial in finished.trials] == [("finished", 4), ("stopped", 2)]
    assert finished.spec.search.kind == "my_search.FirstSearch"
    written = yaml.safe_load(finished.folder.experiment.read_text())["search"]
    assert (written["kind"], written["patience"]) == ("my_search.FirstSearch", 2)
    # What it left can be read where the file is not.
    (own / "my_search.py").unlink()
    sys.modules.pop("my_search")
    assert [trial.status for trial in FinishedSearch.read(finished.folder).trials] == ["finished", "stopped"]
    assert read_search(finished.folder.experiment).search.metric == "validation_accuracy"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "my_search.FirstSerch"}, r"module 'my_search' has no 'FirstSerch'; did you mean 'FirstSearch'\?"),
        ({"kind": "my_search.NoSearch"}, "'my_search.NoSearch' is not a search kind; name a class that derives from"),
        ({"kind": "no_such_file.MySearch"}, "cannot import 'no_such_file.MySearch': no module named 'no_such_file'"),
        ({"kind": "hegde"}, r"search.kind: 'hegde' is not known; did you mean 'hedge'\?"),
        ({"patience": 0}, "search.patience must be at least 1, not 0"),
        ({"patiense": 3}, r"search.patiense is not a key here; did you mean 'patience'\?"),
        ({"patience": 9}, "search.patience is more than the rounds; lower it"),
        ({"pack": 2}, "`pack: 2` cannot be used with kind my_search.FirstSearch, which treats trials individually"),
    ],
)
def test_mistakes_about_a_kind_are_one_sentence(own, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        own_plan(own, **settings)


def test_an_own_kind_is_shown_by_the_command_line(own, monkeypatch):
    monkeypatch.chdir(own)
    (own / "search.yaml").write_text(own_plan(own).dump())
    shown = CliRunner().invoke(main, ["show", "search.yaml"], catch_exceptions=False).stdout
    assert yaml.safe_load(shown)["search"]["kind"] == "my_search.FirstSearch"


def test_editors_accept_an_own_kind_with_keys_that_the_schema_does_not_know():
    validator = Draft202012Validator(experiment_schema())
    spec = plan(Path("runs"))
    values = {**spec.values, "search": {"kind": "my_search.FirstSearch", "space": "moml/s_mnist", "patience": 3}}
    values["algorithm"] = {"name": "fedavg"}
    validator.validate(values)
    for wrong in ({"kind": "hegde"}, {"kind": "hedge", "patience": 3}):
        assert not validator.is_valid({**values, "search": {"space": "moml/s_mnist", **wrong}})


@pytest.mark.parametrize(
    ("overrides", "rounds", "mechanisms"),
    [
        # Two trials with one seed have the same cohorts: noise 2 is like sqrt(2) for both. With seeds, they are two.
        ([{}, {}], [5, 5], [(math.sqrt(2), 5)]),
        ([{}, {"seed": 1}], [5, 3], [(2.0, 8)]),
        ([{}, {}], [0, 0], []),
        ([{}, {}], [0, 4], [(2.0, 4)]),
    ],
)
def test_epsilon_of_private_trials_counts_the_cohorts_that_they_share(
    tmp_path, monkeypatch, overrides, rounds, mechanisms
):
    dp = pytest.importorskip("dp_accounting")
    private = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 0.01, "accountant": "rdp"}
    spec = plan(tmp_path, privacy=private, search={"kind": "grid", "space": {"seed": [0, 1]}})
    trials = [SimpleNamespace(overrides=one, records=[{}] * n) for one, n in zip(overrides, rounds, strict=True)]
    monkeypatch.setattr(search_runner, "read_trials", lambda folder: trials)
    noted = {}
    search_runner._privacy_warnings(spec, SimpleNamespace(update=noted.update), 12)
    accountant = dp.rdp.RdpAccountant()
    for noise, count in mechanisms:
        # Half of the clients.
        accountant.compose(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(noise)), count)
    expected = accountant.get_epsilon(0.01) if mechanisms else 0.0
    assert noted["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_private_trials_of_pbt_are_refused(tmp_path):
    private = {"clip": 1.0, "noise_multiplier": 1.0, "delta": 0.01}
    with pytest.raises(UserError, match=r"search.kind: trials of pbt continue from one another"):
        plan(tmp_path, privacy=private, search={"kind": "pbt", "space": {"algorithm.lr": [0.1, 0.2]}})
