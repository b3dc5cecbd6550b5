"""The commands are one family: examples in every help, `--json`, exit codes, NO_COLOR, completion."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import Result
from command_line import GOOD, hedgerow
from paths import ROOT

from hedgerow.algorithms.federated import fedavg
from hedgerow.cli import HELP_SECTIONS, main
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.searchspaces.listing import KINDS
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial
from hedgerow.searchspaces.spaces.search_file import load_search
from hedgerow.searchspaces.tune.search_command import search_output

REFERENCE = (ROOT / "docs" / "reference" / "commands.md").read_text()
COLOUR = re.compile(r"\x1b\[(\d+;)*(3\d|4\d|9\d|10\d)[;m]")


def document(*arguments: object) -> dict:
    """What a command prints with --json."""
    result = hedgerow(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def family(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = [(path, group)]
    for name, command in group.commands.items():
        found += family(command, (*path, name)) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user's folder with an experiment, and algorithms that end badly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD.replace("rounds: 3", "rounds: 2"))
    body = "from hedgerow.algorithms.federated.fedavg import FedAvg\n\n\n"
    # Not in round 1, which is tried on a few samples before the run begins.
    for name, what in (("Broken", "ValueError('broken')"), ("Interrupted", "KeyboardInterrupt")):
        body += (
            f"class {name}(FedAvg):\n    def round(self, server, cohort):\n        if cohort.round > 1:\n"
            f"            raise {what}\n        return (yield from super().round(server, cohort))\n\n\n"
        )
    (tmp_path / "endings.py").write_text(body)
    return tmp_path


@pytest.mark.parametrize(("path", "command"), family(main), ids=[" ".join(path) for path, _ in family(main)])
def test_every_help_has_an_example_that_is_understood(path, command):
    (example,) = re.findall(r"Example: (hedgerow .*)", command.help)
    name, *words = shlex.split(example)
    found: click.Command = main
    while isinstance(found, click.Group):
        name, *words = words
        found = found.commands[name]
    # A word that no option or argument takes would raise here.
    found.make_context(name, words, parent=click.Context(main, **main.context_settings))
    assert tuple(example.split()[1:])[: len(path)] == path
    shown = hedgerow(*path, "-h")
    assert shown.exit_code == 0
    assert "Example: hedgerow" in shown.output


def test_options_of_one_name_are_one_option_everywhere():
    taken: dict[str, set[str]] = {}
    for _, command in family(main):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.help:
                for name in parameter.opts:
                    taken.setdefault(name, set()).add(" ".join(sorted(parameter.opts)))
    assert {name: spellings for name, spellings in taken.items() if len(spellings) > 1} == {}
    assert taken["--output"] == {"--output -o"}


def test_the_help_shows_every_command_once_and_the_reference_has_its_exit_codes():
    named = [name for names in HELP_SECTIONS.values() for name in names]
    assert sorted(named) == sorted(set(named)) == sorted(main.commands)
    told = re.findall(r"^ +(\d+) {2}", hedgerow("-h").output, re.MULTILINE)
    assert told == ["0", "1", "2", "129", "130", "143"] == re.findall(r"^\| (\d+) \|", REFERENCE, re.MULTILINE)


def test_a_run_leaves_one_document_on_standard_output_and_progress_beside_it(here):
    result = hedgerow("run", "good.yaml", "--json")
    assert result.exit_code == 0, result.output
    (done,) = json.loads(result.stdout)["runs"]
    assert "good: round 2/2" in result.stderr
    record = json.loads((Path(done["folder"]) / "run.json").read_text())
    assert done["summary"] == record["summary"]
    assert done["figures"]
    assert all(Path(figure).is_file() for figure in done["figures"])


def test_a_search_is_one_document(here, capsys):
    space = "search: {kind: grid, space: {algorithm.lr: [0.1, 0.2]}}\n"
    (here / "search.yaml").write_text((here / "good.yaml").read_text() + space)
    records = run(load_search("search.yaml").experiment).records
    trials = [Trial(name, {"algorithm.lr": lr}, records) for name, lr in (("000", 0.1), ("001", 0.2))]
    search_output(FinishedSearch(RunFolder(here), load_search("search.yaml"), trials, [])).print_json()
    said = json.loads(capsys.readouterr().out)
    assert [row["algorithm.lr"] for row in said["trials"]] == [0.1, 0.2]
    assert said["folder"] == str(here)
    # The trials have run equally: the first one wins, and the summary adds its scores on the test samples.
    last = records[-1]
    winner = {"winner_test_accuracy": last["test_accuracy"], "winner_test_loss": last["test_loss"]}
    assert said["summary"] == said["trials"][0] | winner


def test_what_is_looked_at_is_a_document_too(here):
    assert document("show", "good.yaml") == load_experiment(here / "good.yaml").model_dump(mode="json")
    space = "search: {kind: grid, space: {algorithm.lr: [0.1, 0.2]}}\n"
    (here / "search.yaml").write_text((here / "good.yaml").read_text() + space)
    assert document("show", "search.yaml") == load_search(here / "search.yaml").resolved
    assert yaml.safe_load(hedgerow("show", "search.yaml").stdout) == load_search(here / "search.yaml").resolved
    (clients, pictures) = (document("partition", "good.yaml", "-o", "picture")[key] for key in ("clients", "pictures"))
    assert sum(client["samples"] for client in clients) == 1438
    assert str(Path("picture.png")) in pictures
    plan = ("plan", "good.yaml", "--set", "resources.executor=ray", "--nodes", "2x(cpus=3,memory=64)")
    assert document(*plan)["actors"] == 6
    names = {"fedhen/T4.1", "fedhen/T4.2", "fedhen/central"}
    assert {table["name"] for table in document("table", "fedhen")["tables"]} == names
    (file,) = document("table", "fedhen/T4.1/digits", "--show")["files"]
    assert file["task"]["data"]["name"] == "digits"


def test_every_kind_can_be_listed(here):
    (argument,) = (one for one in main.commands["list"].params if isinstance(one, click.Argument))
    assert list(argument.type.choices) == list(KINDS)
    for kind, listed in KINDS.items():
        assert [one["name"] for one in document("list", kind)[kind]] == [choice.name for choice in listed()]
    shown = hedgerow("list", "algorithms").output
    assert "feddyn" in shown
    assert "Acar et al." in shown


def test_documents_say_what_json_lacks_as_null():
    output = CommandOutput({"loss": float("nan"), "path": Path("a"), "rows": [(1, float("inf"))]}, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(click, "echo", said.append)
        output.print_json()
    assert json.loads(said[0]) == {"loss": None, "path": "a", "rows": [[1, None]]}


def test_exit_codes(here, monkeypatch):
    def ended(*arguments: str) -> Result:
        return hedgerow("run", "good.yaml", *arguments)

    broken = ended("--set", "algorithm.name=endings.Broken")
    assert broken.exit_code == 2
    assert re.match(r"hedgerow: your code fails: ValueError at .*endings\.py:\d+, in .*; fix it there", broken.stderr)
    with monkeypatch.context() as patch:
        patch.setattr(fedavg, "minimize", int)
        unexpected = ended()
    assert unexpected.exit_code == 1
    assert isinstance(unexpected.exception, TypeError)
    mistaken = ended("--set", "algorithm.lrr=1", "--json")
    assert (mistaken.exit_code, mistaken.stdout) == (2, "")
    assert mistaken.stderr.startswith("hedgerow: --set algorithm.lrr=1: algorithm.lrr is not a key here")
    assert ended("--rounds", "3").exit_code == 2
    interrupted = ended("--set", "algorithm.name=endings.Interrupted")
    assert interrupted.exit_code == 130
    assert "hedgerow resume" in interrupted.output


def test_no_colour_where_none_is_wanted(here):
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    coloured = hedgerow("run", "good.yaml", **forced)
    plain = hedgerow("run", "good.yaml", **forced, NO_COLOR="1")
    assert coloured.exit_code == plain.exit_code == 0
    assert COLOUR.search(coloured.output)
    assert not COLOUR.search(plain.output)
    assert "Results" in plain.output


def completions(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(main, {}, "hedgerow", "_HEDGEROW_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in found]


def test_shells_complete_commands_runs_tables_and_algorithms(here):
    for name in ("mine-1", "mine-2", "other"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "run.json").write_text("{}")
    (here / "runs" / "mine-none").mkdir()
    assert completions("sc") == ["schema"]
    assert completions("list", "al") == ["algorithms"]
    assert completions("resume", "runs/m") == ["runs/mine-1", "runs/mine-2"]
    assert completions("push", "mi") == ["mine-1", "mine-2"]
    assert completions("table", "feddyn/T2.") == ["feddyn/T2.1", "feddyn/T2.2", "feddyn/T2.3"]
    assert "feddyn/T2.3/mnist-iid" in completions("table", "feddyn/T2.3/mn")
    assert completions("new", "experiment", "--algorithm", "fedd") == ["feddyn", "feddst", "feddf"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell, tmp_path):
    result = hedgerow("completion", shell)
    assert result.exit_code == 0, result.output
    assert "_HEDGEROW_COMPLETE" in result.output
    if found := shutil.which(shell):
        (tmp_path / "script").write_text(result.output)
        assert subprocess.run([found, "-n", tmp_path / "script"]).returncode == 0
