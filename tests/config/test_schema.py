"""The JSON schema of experiment files takes what the loader takes, and refuses misspelt keys and bad values."""

import copy
import json
from functools import cache
from typing import Any

import pytest
import yaml
from bad_files import BAD_FILES
from jsonschema import Draft202012Validator
from paths import ROOT

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment, read_file
from hedgerow.searchspaces.extra.table_file import all_tables
from hedgerow.searchspaces.spaces.json_schema import DIALECT, experiment_schema
from hedgerow.searchspaces.spaces.search_file import parse_search
from hedgerow.searchspaces.spaces.space import without_slots

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

GOOD = yaml.safe_load("""\
name: good
rounds: 3
task:
  data: {name: digits}
  partition: {kind: dirichlet, clients: 100, alpha: 0.3}
  model: {name: mlp, hidden: [20]}
  teacher: {model: {name: mlp}}
algorithm: {name: fedavg, lr: 0.1}
aggregation: {server_optimizer: {optimizer: adam}}
evaluation: {targets: [0.5]}
resources: {actors: 2}
engine: {chunk: auto}
checkpoints: {every: 1}
tracking: {enabled: false}
search: {gamma: 0.5, space: {algorithm.lr: [0.1, 0.2], algorithm.momentum: {uniform: [0.0, 0.9]}}, samples: 2}
""")


@cache
def schema() -> dict[str, Any]:
    return experiment_schema()


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def load(values: dict[str, Any]) -> None:
    """As `hedgerow run` and `hedgerow search` do. Raises UserError."""
    parse_experiment({key: value for key, value in values.items() if key != "search"})
    if "search" in values:
        parse_search(values)


def test_it_is_a_schema_of_draft_2020_12_with_every_algorithm():
    assert schema()["$schema"] == DIALECT == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()
    *known, own = schema()["properties"]["algorithm"]["oneOf"]
    sections = [schema()["$defs"][one["$ref"].removeprefix("#/$defs/")] for one in known]
    assert [section["properties"]["name"]["const"] for section in sections] == list(ALGORITHMS)
    assert all("name" in section["required"] for section in sections)
    assert "additionalProperties" not in own


def test_every_section_is_closed_and_every_key_is_described():
    for name, section in [("", schema()), *schema()["$defs"].items()]:
        for part in section.get("anyOf", [section]):
            if "properties" in part:
                assert part["additionalProperties"] is False, name
                for key, value in part["properties"].items():
                    # A section is described where it is defined.
                    assert "description" in value or "$ref" in value or key in ("name", "kind"), f"{name}.{key}"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_fits(file):
    validator().validate(read_file(file)[0])


def test_every_line_of_every_table_fits():
    """Each line with its first method, and every section of an algorithm that any line has."""
    section = Draft202012Validator({**schema()["properties"]["algorithm"], "$defs": schema()["$defs"]})
    seen = set()
    for row in [row for table in all_tables() for row in table.rows]:
        first = next(iter(row.methods.values()))
        validator().validate({"name": "line", **row.values, **without_slots(first)})
        for method in row.methods.values():
            text = json.dumps(method)
            if text not in seen:
                values = {"name": "line", **row.values, **without_slots(method)}
                section.validate(values["algorithm"])
                validator().validate(values)
            seen.add(text)
    assert len(seen) > 100


def test_the_good_file_fits():
    validator().validate(GOOD)
    load(GOOD)


def sections(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where sections stand; `search.space` has keys of another kind."""
    found = [path]
    for key, value in values.items():
        if isinstance(value, dict) and (*path, key) != ("search", "space"):
            found += sections(value, (*path, key))
    return found


@pytest.mark.parametrize("path", sections(GOOD), ids=".".join)
def test_misspelt_keys_fail_in_the_schema_and_in_the_loader(path):
    values = copy.deepcopy(GOOD)
    section: Any = values
    for key in path:
        section = section[key]
    section["lrr"] = 1
    assert not validator().is_valid(values)
    with pytest.raises(UserError, match="lrr is not a key here"):
        load(values)


WRONG: list[tuple[tuple[str, ...], Any]] = [
    (("rounds",), 0),
    (("clients_per_round",), 1.5),
    (("clients_per_round",), 0),
    (("clients_per_round",), "al"),
    (("name",), "a b"),
    (("algorithm", "lr"), 0),
    (("algorithm", "name"), "fedavgg"),
    (("algorithm", "name"), "fedprox."),
    (("aggregation", "server_optimizer", "optimizer"), "adamm"),
    (("task", "data", "name"), "digit"),
    (("task", "partition", "kind"), "iidd"),
    (("task", "partition", "clients"), "100"),
    (("task", "model", "name"), "mlpp"),
    (("task", "model", "hidden"), [0]),
    (("search", "kind"), "hedgee"),
    (("search", "pack"), 0),
    (("search", "space"), "moml/smnist"),
    (("search", "space"), {"rounds": [1, 2]}),
    (("search", "space"), {"algorithm.lr": {"uniform": [0.1, 0.2], "grid": [0.1]}}),
    (("search", "space"), {"algorithm.lr": {"unifrom": [0.1, 0.2]}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{'.'.join(path)} {value}" for path, value in WRONG])
def test_what_is_out_of_bounds_fails_in_both(path, value):
    values = copy.deepcopy(GOOD)
    section: Any = values
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    assert not validator().is_valid(values)
    with pytest.raises(UserError):
        load(values)


def test_what_the_loader_finds_in_one_key_the_schema_finds_too():
    words = ("is not a key here", "is missing", "is missing its key", "is not known")
    found = [
        (name, text)
        for name, text, said in BAD_FILES
        if "not valid YAML" not in said[0] and any(word in part for word in words for part in said)
    ]
    assert len(found) > 15
    for name, text in found:
        assert not validator().is_valid(yaml.safe_load(text)), name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("search", "space"), "moml/s_mnist"),
        (("search", "pack"), False),
        (("search", "kind"), "random"),
        (("task", "model"), {"name": "my_models.Net", "args": {"width": 3}}),
        (("algorithm",), {"name": "my_algorithms.Mine", "whatever": 1}),
        (("engine", "compile"), True),
    ],
)
def test_what_the_loader_reads_before_its_models_do_fits(path, value):
    values = copy.deepcopy(GOOD)
    section: Any = values
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    if path == ("search", "kind"):
        del values["search"]["gamma"]
    validator().validate(values)


def test_algorithms_of_one_s_own_are_checked_where_they_are_named():
    values = copy.deepcopy(GOOD) | {"algorithm": {"name": "toys.Stateful", "pul": 0.1}}
    validator().validate(values)
    informed = Draft202012Validator(experiment_schema(["toys.Stateful"]))
    assert not informed.is_valid(values)
    with pytest.raises(UserError, match="did you mean 'pull'"):
        load(values)
    values["algorithm"] = {"name": "toys.Stateful", "pull": 0.1}
    informed.validate(values)
    informed.validate({**values, "algorithm": {"name": "toys.Broken", "pul": 0.1}})
    with pytest.raises(UserError, match="--algorithm: 'toys' is not an algorithm"):
        experiment_schema(["toys"])
