"""Files that would hang a command, fill the memory or end in a traceback are refused in one sentence."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

import pytest
from bad_files import GOOD, change
from click.testing import CliRunner
from pydantic import BaseModel

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config import yaml_reader
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.ui.explained_experiment import complete
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.weights import Hedge
from hedgerow.searchspaces.spaces.search_file import load_search

LISTS = "x0: &x0 [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
SECTIONS = "x0: &x0 {a: 1}\n" + "".join(f"x{n}: &x{n} {{a: *x{n - 1}, b: *x{n - 1}}}\n" for n in range(1, 40))
MERGES = "x0: &x0 {a: 1}\n" + "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}], k{n}: 1}}\n" for n in range(1, 40))


def refused(command: list[str]) -> str:
    """The one line in which a command refuses its file."""
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2, done.output
    (line,) = done.output.splitlines()
    return line


@pytest.mark.grid
@pytest.mark.parametrize("bomb", [LISTS, SECTIONS, MERGES], ids=["lists", "sections", "merge keys"])
@pytest.mark.parametrize("command", ["run", "show", "plan", "search"])
def test_aliases_that_repeat_too_much_are_refused(bomb, command, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(GOOD + bomb)
    line = refused([command, str(file)])
    assert line.startswith(f"hedgerow: {file}:")
    assert "the aliases (*) here repeat more than 100,000 values" in line


def test_aliases_of_an_override_are_counted_too(tmp_path):
    (tmp_path / "file.yaml").write_text(GOOD)
    parts = ["&a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", *(f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))]
    with pytest.raises(UserError, match="repeat more than 100,000 values"):
        load_experiment(tmp_path / "file.yaml", [f"task.model.hidden=[{', '.join(parts)}]"])


def test_large_files_without_repetition_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(yaml_reader, "REPEATED", 1000)
    rates = [n / 1e6 for n in range(1, 1101)]
    (tmp_path / "file.yaml").write_text(GOOD + f"search: {{kind: grid, space: {{algorithm.lr: {rates}}}}}\n")
    assert len(load_search(tmp_path / "file.yaml").configurations) == 1100
    with pytest.raises(UserError, match="repeat more than 1,000 values"):
        parse_yaml(f"{{x: &x [{', '.join(['1'] * 600)}], y: [*x, *x]}}", str)


@pytest.mark.parametrize(
    ("space", "more"),
    [
        ("kind: grid, space: {algorithm.lr: [R], algorithm.momentum: [R], algorithm.weight_decay: [R]}", "125,000,000"),
        ("kind: optuna, samples: 2000000000, space: {algorithm.lr: {uniform: [0.1, 0.2]}}", "2,000,000,000"),
    ],
)
def test_searches_of_too_many_configurations_are_refused(space, more, tmp_path):
    rates = ", ".join(str(n / 1000) for n in range(1, 501))
    (tmp_path / "file.yaml").write_text(f"{GOOD}search: {{{space.replace('R', rates)}}}\n")
    with pytest.raises(UserError, match=f"{more} configurations are more than 100,000"):
        load_search(tmp_path / "file.yaml")


# ---- numbers ---------------------------------------------------------------------------------------------------------

HUGE = [
    ("algorithm.batch_size", 1e22, "algorithm.batch_size must be a whole number, not 1e+22"),
    ("algorithm.batch_size", 10**22, "algorithm.batch_size must be at most 2147483647"),
    ("algorithm.epochs", 10**12, "algorithm.epochs must be at most 2147483647"),
    ("algorithm.epochs", 2**31 - 1, "lower `epochs`, `steps` or `batch_size`"),
    ("algorithm.lr", 1e300, "algorithm.lr must be at most 3.4e+38"),
    ("rounds", 10**80, "rounds must be at most 2147483647"),
    ("task.partition.clients", 10**12, "task.partition.clients must be at most 2147483647"),
    ("task.model.hidden", [10**11], "task.model.hidden.0 must be at most 2147483647"),
    ("task.model.hidden", [2**31 - 1], "parameters of mlp take at least"),
    ("task.model.hidden", [2**31 - 1, 2**31 - 1], "mlp has more parameters than any memory holds"),
    ("task.data", {"name": "synthetic", "samples": 2**31 - 1}, "task.data: its samples take at least"),
    (
        "task.model",
        {"name": "resnet", "channels": [8], "blocks": [2**31 - 1]},
        "task.model.blocks.0 must be at most 1000",
    ),
]


@pytest.mark.parametrize(("key", "value", "sentence"), HUGE, ids=[f"{key}={value!r:.20}" for key, value, _ in HUGE])
def test_numbers_that_no_machine_can_hold_are_refused_before_any_work(key, value, sentence, tmp_path):
    values = parse_experiment(parse_yaml(GOOD, str)[0]).model_dump(mode="json")
    values["output"] = str(tmp_path)
    section: Any = values
    *parents, last = key.split(".")
    for part in parents:
        section = section[part]
    section[last] = value
    with pytest.raises(UserError) as caught:
        check(parse_experiment(values), None)
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_that_exhausts_the_memory_ends_in_a_sentence(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError

    values = parse_yaml(change(("rounds: 100", "rounds: 1")), str)[0]
    values |= {"resources": {"executor": "inline"}, "tracking": {"enabled": False}, "output": str(tmp_path)}
    with pytest.raises(UserError, match=r"the run does not fit into memory; lower algorithm\.batch_size"):
        run(parse_experiment(values), show=fail)


def numeric(annotation: Any) -> bool:
    """Whether a field takes numbers, by itself or in a list."""
    parts = [part for part in get_args(annotation) if not (isinstance(part, type) and issubclass(part, BaseModel))]
    return annotation in (int, float) or any(map(numeric, parts))


def numbers(section: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The path of every numeric key that an experiment has, and whether it is a list."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            yield from numbers(value, (*path, key))
        elif numeric(field.annotation):
            yield (*path, key), isinstance(value, list)


@pytest.mark.parametrize("algorithm", ["fedavg", "disk", "fedbioacc", "fednest", "moml"])
def test_no_number_ends_in_a_traceback_or_a_hang(algorithm):
    experiment: Experiment = complete("x", algorithm)
    junk = [1e22, 10**80, -1, math.inf, math.nan, 2**31 - 1, 3.4e38]
    for turn, (path, is_list) in enumerate(numbers(experiment)):
        # A third of the pairs, another one for each key.
        for value in junk[turn % 3 :: 3]:
            values = experiment.model_dump(mode="json")
            section: Any = values
            for key in path[:-1]:
                section = section[key]
            section[path[-1]] = [value] if is_list else value
            with suppress(UserError):
                check(parse_experiment(values), None)


# ---- records ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    values = parse_yaml(change(("rounds: 100", "rounds: 2"), ("clients: 100", "clients: 10")), str)[0]
    values |= {"resources": {"executor": "inline"}, "tracking": {"enabled": False}}
    return run(parse_experiment(values | {"output": str(tmp_path_factory.mktemp("runs"))})).folder.path


BROKEN = [
    ("null", "null", "it is not an object with keys"),
    ("a list", "[]", "it is not an object with keys"),
    ("cut off", '{"status": "fin', "it is not JSON"),
    ("empty", "", "it is not JSON"),
    ("nested deeply", "[" * 100_000, "it is not JSON"),
    ("not text", b"\xff\xfe\x00", "it is not text in UTF-8"),
    ("no keys", "{}", "it does not match its checksum"),
    ("no versions", "versions", "it does not match its checksum"),
    ("no checksum", "sha256", "it does not match its checksum"),
    ("another status", {"status": "running"}, "it does not match its checksum"),
]


@pytest.mark.grid
@pytest.mark.parametrize("command", [["report"], ["compare"], ["resume"], ["push"]], ids=lambda words: words[0])
@pytest.mark.parametrize(("content", "sentence"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_damaged_run_json_is_named_with_the_fix(command, content, sentence, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    file = folder / "run.json"
    values = json.loads(file.read_text())
    if content in ("versions", "sha256"):
        content = json.dumps({key: value for key, value in values.items() if key != content})
    elif isinstance(content, dict):
        content = json.dumps(values | content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused([*command, str(folder)])
    assert f"{file} is damaged ({sentence}" in line
    assert "restore it from a copy, or run the experiment again" in line


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('"text"', "it is not an object"),
        ("3", "it is not an object"),
        ("[]", "it is not an object"),
        ("garbage", "it is not JSON"),
        ('{"test_accuracy": 0.5}', "it does not match its checksum"),
        ({"test_accuracy": 0.5}, "it does not match its checksum"),
    ],
)
def test_a_damaged_line_of_metrics_is_named(content, sentence, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    file = folder / "metrics.jsonl"
    first, second = file.read_text().splitlines()
    line = content if isinstance(content, str) else json.dumps(json.loads(first) | content)
    file.write_text(f"{first}\n{line}\n{second}\n")
    said = refused(["report", str(folder)])
    assert f"{file}:2 is damaged ({sentence}" in said
    assert "remove the line" in said


def test_a_damaged_partition_is_named(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "partition.json").write_text('{"clients": "many"}')
    assert "partition.json is damaged (it does not match its checksum)" in refused(["report", str(folder)])


@pytest.mark.parametrize("entry", ["3", '{"expert": 9, "round": 1}', '{"expert": 0}', '{"expert": 0, "round": "x"}'])
def test_a_damaged_journal_is_named(entry, tmp_path):
    journal = tmp_path / "losses.jsonl"
    journal.write_text(f"{entry}\n")
    with pytest.raises(UserError, match=r"losses\.jsonl"):
        HedgeRounds(Hedge(2), "test_accuracy", "max", journal=journal)
