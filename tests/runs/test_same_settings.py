"""A run that continues with an edited experiment.yaml: which edits are free, refused, or accepted and recorded."""

from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.same_settings import decisive_settings, same_settings
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.tracking.run_folder import RunFolder, new_run
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.search_file import parse_search
from hedgerow.searchspaces.tune.callbacks import SearchCallback

FILE = {
    "name": "edited",
    "rounds": 3,
    "clients_per_round": 0.5,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.5, "samples_per_client": 20},
        "model": {"name": "mlp", "hidden": [8]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
    "transforms": [{"kind": "clip", "norm": 1.0}],
    "engine": {"mode": "loop"},
    "evaluation": {"clients": 0},
    "checkpoints": {"every": 1},
    "resources": {"executor": "inline"},
    "tracking": {"enabled": False},
}


def impatient(record):
    if record["round"] == 2:
        raise KeyboardInterrupt


def without_clock(run):
    return [{**record, "seconds": 0} for record in run.records]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return hedgerow.run(FILE, output=str(tmp_path_factory.mktemp("calm")), show=False)


@pytest.fixture(autouse=True)
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


@pytest.fixture
def stopped(tmp_path):
    """Folder of a run that was interrupted in round 2, with its file's values."""
    with pytest.raises(KeyboardInterrupt):
        hedgerow.run(FILE, output=str(tmp_path), show=impatient)
    return next(tmp_path.glob("edited-*"))


def edit(folder, *edits):
    """Change the file of a run as `--set` would."""
    file = folder / "experiment.yaml"
    values = yaml.safe_load(file.read_text())
    for path, value in edits:
        section = values
        *above, last = path.split(".")
        for key in above:
            section = section[int(key) if isinstance(section, list) else key]
        section[last] = value
    file.write_text(yaml.safe_dump(values))


def test_only_edits_that_determine_numbers_are_refused(stopped, calm):
    """One file after the other, in the same folder; then the file of the start gives the numbers of the calm run."""
    file = stopped / "experiment.yaml"
    original, record = file.read_text(), (stopped / "run.json").read_text()
    for path, before, now, said in [
        ("algorithm.lr", 0.1, 0.7, "algorithm.lr (0.1 -> 0.7) differs"),
        ("algorithm.batch_size", 8, 9, "algorithm.batch_size (8 -> 9) differs"),
        ("transforms.0.norm", 1.0, 2.0, "transforms.0.norm (1.0 -> 2.0) differs"),
        ("seed", 0, 1, "seed (0 -> 1) differs"),
        ("clients_per_round", 0.5, 0.6, "clients_per_round (0.5 -> 0.6) differs"),
        ("task.partition.alpha", 0.5, 5.0, "task.partition.alpha (0.5 -> 5.0) differs"),
        ("aggregation.weighting", None, "uniform", "aggregation.weighting (null -> uniform) differs"),
        ("evaluation.every", 1, 2, "evaluation.every (1 -> 2) differs"),
        ("resources.threads", 1, 2, "resources.threads (1 -> 2) differs"),
    ]:
        edit(stopped, (path, now))
        result = CliRunner().invoke(main, ["resume", str(stopped)])
        assert result.exit_code == 2, result.output
        assert said in result.stderr
        assert f"`hedgerow resume {stopped} --changed`" in result.stderr
        edit(stopped, (path, before))
    assert (stopped / "run.json").read_text() == record
    file.write_text("# a comment\n" + original)
    finished = hedgerow.resume(stopped, show=False)
    assert without_clock(finished) == without_clock(calm)


def test_rounds_outputs_and_resources_may_change_freely(stopped, calm):
    edits = [
        ("rounds", 4), ("name", "renamed"), ("checkpoints.every", 2), ("tracking.patience", 5.0),
        ("evaluation.targets", [0.2]), ("resources.actors", 3), ("resources.timeout", 900.0), ("output", "elsewhere"),
    ]  # fmt: skip
    edit(stopped, *edits)
    finished = hedgerow.resume(stopped, show=False)
    assert without_clock(finished)[:3] == without_clock(calm)
    assert len(finished.records) == 4
    assert "changes" not in finished.folder.record()
    assert finished.warning is None


def test_an_accepted_change_is_recorded_and_continues_from_the_checkpoint(stopped, calm):
    edit(stopped, ("algorithm.lr", 0.7), ("transforms.0.norm", 2.0))
    with pytest.raises(UserError, match=r"algorithm.lr \(0.1 -> 0.7\), transforms.0.norm \(1.0 -> 2.0\) differ from"):
        hedgerow.resume(stopped, show=False)
    result = CliRunner().invoke(main, ["resume", str(stopped), "--changed"])
    assert result.exit_code == 0, result.output
    finished = hedgerow.load(stopped)
    (note,) = finished.folder.record()["changes"]
    first = note["round"]
    assert first == 2
    assert note["settings"] == {"algorithm.lr": [0.1, 0.7], "transforms.0.norm": [1.0, 2.0]}
    warning = "settings were changed after round 2: algorithm.lr (0.1 -> 0.7), transforms.0.norm (1.0 -> 2.0)"
    assert warning in result.output + result.stderr
    assert finished.warning == warning
    # In reports and comparisons, too.
    assert group_by_seed([Run.read(finished.folder)])[1] == [f"{stopped}: {warning}."]
    assert without_clock(finished)[:first] == without_clock(calm)[:first]
    assert without_clock(finished)[2] != without_clock(calm)[2]
    # The file is now the one that the run has continued with.
    assert finished.folder.record()["settings"]["algorithm.lr"] == 0.7


def test_changes_are_recorded_one_after_the_other(stopped):
    folder = RunFolder(stopped)
    start = folder.record()["settings"]
    for seed in (1, 2):
        same_settings(folder, start | {"seed": seed}, accept=True)
    assert [note["settings"] for note in folder.record()["changes"]] == [{"seed": [0, 1]}, {"seed": [1, 2]}]
    assert folder.record()["settings"]["seed"] == 2


def test_another_model_cannot_continue_from_the_checkpoint(stopped):
    edit(stopped, ("task.model.hidden", [9]))
    result = CliRunner().invoke(main, ["resume", str(stopped), "--changed"])
    assert result.exit_code == 2, result.output
    assert "the checkpoint of round 2 has 'w/1.weight' of shape (8, 64), not (9, 64) as in the model" in result.stderr


@pytest.mark.parametrize(
    ("privacy", "path", "now", "said"),
    [
        ({"target_epsilon": 8.0}, "rounds", 4, r"rounds \(3 -> 4\)"),
        ({"noise_multiplier": 0.5}, "privacy.noise_multiplier", 5.0, r"privacy.noise_multiplier \(0.5 -> 5.0\)"),
        ({"noise_multiplier": 0.5}, "clients_per_round", 0.25, r"clients_per_round \(0.5 -> 0.25\)"),
    ],
)
def test_what_determines_epsilon_cannot_change_during_a_run(tmp_path, privacy, path, now, said):
    """Epsilon of all rounds at the noise of the last ones would be far too small."""
    private = {**FILE, "transforms": [], "privacy": {"clip": 1.0, "delta": 0.01, **privacy}}
    with pytest.raises(KeyboardInterrupt):
        hedgerow.run(private, output=str(tmp_path), show=impatient)
    folder = next(tmp_path.glob("edited-*"))
    edit(folder, (path, now))
    for changed in (False, True):
        with pytest.raises(UserError, match=f"{said} cannot change during a private run"):
            hedgerow.resume(folder, show=False, changed=changed)


def test_a_series_of_seeds_does_not_go_on_with_an_edited_file(tmp_path):
    values = {**FILE, "seeds": [0, 1], "output": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        hedgerow.run(values, show=impatient)
    (folder,) = tmp_path.glob("edited-*-seed0")
    edit(folder, ("algorithm.lr", 0.7))
    with pytest.raises(UserError, match=r"algorithm.lr \(0.1 -> 0.7\) differs"):
        hedgerow.resume(folder, show=False)
    assert not list(tmp_path.glob("edited-*-seed1"))


def test_a_run_in_two_processes_continues_in_one_with_the_same_bits(tmp_path):
    """Edited from two forked workers to none: the number of parts of a round is that of the start."""
    workers = {**FILE, "resources": {"executor": "auto", "actors": 2}}
    for name in ("calm", "stopped"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.yaml").write_text(yaml.safe_dump({**workers, "output": str(tmp_path / name)}))
    assert CliRunner().invoke(main, ["run", str(tmp_path / "calm/file.yaml")]).exit_code == 0
    short = ["run", str(tmp_path / "stopped/file.yaml"), "--set", "rounds=2"]
    assert CliRunner().invoke(main, short).exit_code == 0
    calm, stopped = (hedgerow.load(next((tmp_path / name).glob("edited-*"))) for name in ("calm", "stopped"))
    assert stopped.folder.record()["parts"] == 2
    stopped.folder.update(status="interrupted")
    edit(stopped.folder.path, ("rounds", 3), ("resources.executor", "inline"))
    finished = hedgerow.resume(stopped.folder.path, show=False)
    assert finished.folder.record()["parts"] == 2
    assert without_clock(finished) == without_clock(calm)


def interrupted_search(tmp_path, kind="grid"):
    """Folder of a search that was interrupted before its first trial."""
    space = {"kind": kind, "space": {"algorithm.lr": [0.1, 0.2]}}
    plan = parse_search({**FILE, "search": space, "output": str(tmp_path)})
    with new_run(plan.experiment, None, plan.dump()) as (folder, _):
        settings = decisive_settings(plan.experiment, "cpu", plan.search.model_dump(mode="json"))
        folder.update(kind="search", status="interrupted", settings=settings)
    return folder


def test_a_search_does_not_continue_with_an_edited_space(tmp_path):
    folder = interrupted_search(tmp_path)
    text = folder.experiment.read_text()
    for old, new, said in [
        ("- 0.2", "- 0.3", r"search.space.algorithm.lr.grid \(.* differs from what it started with"),
        ("rounds: 3", "rounds: 4", r"rounds \(3 -> 4\) differs"),
    ]:
        assert old in text
        folder.experiment.write_text(text.replace(old, new))
        with pytest.raises(UserError, match=said):
            hedgerow.resume(folder.path, show=False)


def test_hedge_keeps_the_settings_of_its_weights(tmp_path):
    """The weights, regret and deployed policies of rounds that have run would be those of other settings."""
    folder = interrupted_search(tmp_path, "hedge")
    text = folder.experiment.read_text()
    folder.experiment.write_text(text.replace("gamma: 0.1", "gamma: 0.5").replace("missing: penalise", "missing: skip"))
    said = (
        r"search.gamma \(0.1 -> 0.5\), search.missing \(penalise -> skip\) cannot change during a search of kind hedge"
    )
    with pytest.raises(UserError, match=said):
        hedgerow.resume(folder.path, show=False, changed=True)
    assert "changes" not in folder.record()


def test_a_trial_that_has_started_keeps_its_configuration(tmp_path):
    folder = interrupted_search(tmp_path)
    settings = folder.record()["settings"]
    trial = expert_folder(folder.path, 1)
    trial.path.mkdir(parents=True)
    trial.update(name="001", status="interrupted", overrides={"algorithm.lr": 0.2})
    text = folder.experiment.read_text()
    for values in ("- 0.1\n      - 0.15\n      - 0.2", "- 0.1"):
        edited = text.replace("- 0.1\n      - 0.2", values)
        assert edited != text
        folder.experiment.write_text(edited)
        with pytest.raises(UserError, match=r"configuration with which trial 001 has started \(lr=0.2\) in its place"):
            hedgerow.resume(folder.path, show=False, changed=True)
    folder.update(packs=[[0, 1]])
    folder.experiment.write_text(text.replace("- 0.2", "- 0.2\n      - 0.3"))
    with pytest.raises(UserError, match=r"search.space has 3 configurations, and the search has started with 2"):
        hedgerow.resume(folder.path, show=False, changed=True)
    assert folder.record()["settings"] == settings
    assert "changes" not in folder.record()


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_the_files_of_trials_have_the_settings_that_a_search_continues_with(tmp_path, status):
    space = {"kind": "grid", "space": {"algorithm.lr": [0.1, 0.2]}}
    plan = parse_search({**FILE, "search": space, "output": str(tmp_path)})
    with new_run(plan.experiment, None, plan.dump()) as (folder, lock):
        before = folder.record() | {"overrides": {"algorithm.lr": 0.2}, "created": "2026-01-01T10:00:00+00:00"}
        before["status"] = status
        note = {"settings": {"algorithm.batch_size": [8, 4]}, "time": "2026-01-01T11:00:00+00:00"}
        folder.update(kind="search", changes=[note])
        trial = expert_folder(folder.path, 1)
        trial.path.mkdir(parents=True)
        trial.experiment.write_text(dump_experiment(plan.trial({"algorithm.lr": 0.2})))
        trial.update(**before)
        edited = parse_search({**FILE, "algorithm": {**FILE["algorithm"], "batch_size": 4}, "search": space})
        for _ in range(2):
            callback = SearchCallback(folder.path, edited, lock, None, None, print, 10)
            callback.on_trial_start(
                1, [], SimpleNamespace(trial_id="00001", config={"overrides": {"algorithm.lr": 0.2}})
            )
    algorithm = yaml.safe_load(trial.experiment.read_text())["algorithm"]
    assert (algorithm["batch_size"], algorithm["lr"]) == (4, 0.2)
    assert trial.record()["changes"] == [note]
