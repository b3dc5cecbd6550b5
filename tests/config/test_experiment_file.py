"""Experiment files: their meaning, and that every mistake ends in one sentence with its place and correction."""

import pickle
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_files import BAD_FILES, GOOD, add, change
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.api import _values
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import dump_experiment, load_experiment, parse_experiment
from hedgerow.searchspaces.spaces.search_file import load_search
from hedgerow.searchspaces.spaces.space import with_overrides

OWN = """\
from typing import Literal
from torch import nn
from pydantic import Field
from hedgerow.algorithms.federated.fedavg import FedAvg

class Mine(FedAvg):
    class Hyper(FedAvg.Hyper):
        name: Literal["mine"] = "mine"
        rho: float = Field(gt=0, description="my constant")
        code: str = Field("ab", pattern="^[ab]+$")

class Unnamed(FedAvg):
    class Hyper(FedAvg.Hyper):
        name: str

class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
"""
WITH_MINE = change(("name: fedavg", "name: {module}.Mine"))


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(UserError) as caught:
        load_experiment(path, overrides)
    return checked(str(caught.value))


def checked(sentence: str) -> str:
    """A sentence that is one line and in no jargon; or several, one in each line below a heading with their number."""
    heading, *others = sentence.splitlines()
    assert not others or heading.endswith(f": {len(others)} mistakes")
    assert not re.search(r"Traceback|[Ii]nput should|pydantic|validation error|type=|https?://|<class", sentence)
    return sentence


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module of the user's; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    written: list[str] = []

    def write_module(text: str) -> str:
        name = f"own_{len(written)}_{abs(hash(tmp_path))}"
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write_module
    for name in written:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("text", "fragments"), [bad[1:] for bad in BAD_FILES], ids=[bad[0] for bad in BAD_FILES])
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, text, fragments):
    path = write(tmp_path, text)
    sentence = refusal(path)
    assert sentence.startswith(f"{path}:")
    for fragment in fragments:
        assert fragment in sentence


def test_a_file_that_is_not_there(tmp_path):
    path = write(tmp_path, GOOD)
    assert f"did you mean {path}?" in refusal(tmp_path / "experimnet.yaml")
    assert "there is no such file; check the path" in refusal(tmp_path / "nowhere" / "experiment.yaml")


def test_a_file_that_is_no_text(tmp_path):
    assert "this is a folder; name the experiment file in it" in refusal(tmp_path)
    path = tmp_path / "picture.yaml"
    path.write_bytes(b"\x89PNG\xff\xfe")
    assert "not a text file; an experiment file is YAML in UTF-8" in refusal(path)


GOOD_FILES = {
    "as it is": GOOD,
    "clients per round": change(("clients_per_round: 0.1", "clients_per_round: 7")),
    "all clients": change(("clients_per_round: 0.1", "clients_per_round: all")),
    "steps": change(("epochs: 2", "steps: 5")),
    "fedprox": change(("name: fedavg", "name: fedprox\n  mu: 1e-5")),
    "server": add("aggregation: {server_optimizer: {optimizer: yogi, lr: 3e-2, tau: 1E-9}}"),
    "slots": add(
        "aggregation: {weighting: samples, server_optimizer: {optimizer: yogi, lr: 3e-2, tau: 1E-9}}\n"
        "transforms: [{kind: clip, norm: 1e-1}, {kind: top_k, entries: 10}]"
    ),
    "synthetic": change(("name: digits}", "name: synthetic, gamma1: 1}"), ("kind: dirichlet", "kind: natural"))
    .replace("    clients: 100\n", "")
    .replace("    alpha: 0.3\n", ""),
    "images": change(("name: digits}", 'name: image_folder, path: "ünïcode: [x] #\\n"}')),
    "own model": change(("name: mlp", "name: my.Net"), ("hidden: [200]", "args: {a: &x [1e-9, null], b: *x, c: .inf}")),
    "name like a number": change(("digits-fedavg", "'1e-3'")),
    "name like a date": change(("digits-fedavg", "2026-01-01")),
    "name like an octal": change(("digits-fedavg", "'010'")),
    "name like a truth": change(("digits-fedavg", "'yes'")),
    "everything else": add(
        "evaluation: {every: 5, clients: 0, targets: [0.5, 0.9]}\nresources: {actors: 3, gpus_per_actor: 0.25}\n"
        "engine: {mode: vmap, chunk: 4}\ncheckpoints: {every: 0, keep: 1}\n"
        "tracking: {enabled: no, uri: 'sqlite:///a b.db'}\noutput: /a/b"
    ),
}


@pytest.mark.parametrize("name", ["fedavg", "toys.Stateful"])
def test_an_experiment_travels_between_processes_as_it_is(name, tmp_path):
    experiment = load_experiment(write(tmp_path, GOOD), [f"algorithm={{name: {name}, batch_size: 8}}"])
    arrived = pickle.loads(pickle.dumps(experiment))
    assert arrived == experiment
    assert type(arrived.algorithm) is type(experiment.algorithm)


@pytest.mark.parametrize("text", GOOD_FILES.values(), ids=GOOD_FILES.keys())
def test_what_is_dumped_loads_as_the_same_experiment(tmp_path, text):
    experiment = load_experiment(write(tmp_path, text))
    dumped = dump_experiment(experiment)
    again = load_experiment(write(tmp_path, dumped))
    assert again == experiment
    assert dump_experiment(again) == dumped
    assert parse_experiment(experiment.model_dump()) == experiment


def test_the_dump_shows_every_default_in_the_order_of_the_schema(tmp_path):
    experiment = load_experiment(write(tmp_path, GOOD))
    values = yaml.safe_load(dump_experiment(experiment))
    assert list(values) == list(type(experiment).model_fields)
    assert list(values["algorithm"]) == list(type(experiment.algorithm).model_fields)
    assert values["aggregation"]["server_optimizer"] == {
        "optimizer": "sgd",
        "lr": 1.0,
        "momentum": 0.0,
        "beta2": 0.99,
        "tau": 0.001,
    }
    assert values["resources"]["executor"] == "auto"
    assert values["task"]["data"] == {"name": "digits", "test_fraction": 0.2}


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1.e-3", "+.001", "1.0e-3", "0.001", "10_00e-6"])
def test_numbers_are_read_as_everybody_means_them(tmp_path, number):
    assert load_experiment(write(tmp_path, change(("lr: 0.1", f"lr: {number}")))).algorithm.lr == 1e-3
    assert load_experiment(write(tmp_path, GOOD), [f"algorithm.lr={number}"]).algorithm.lr == 1e-3


def test_whole_numbers_may_stand_for_floats_and_are_grouped_with_underscores(tmp_path):
    experiment = load_experiment(write(tmp_path, change(("lr: 0.1", "lr: 1"), ("100\nc", "1_000\nc"))))
    assert (experiment.algorithm.lr, experiment.rounds) == (1.0, 1000)
    assert isinstance(experiment.algorithm.lr, float)


def test_aliases_and_merges_work(tmp_path):
    slot = "aggregation: {server_optimizer: {<<: {momentum: 0.5}, lr: *lr}}\n"
    text = change(("  lr: 0.1\n", "  lr: &lr 0.25\n")) + slot
    server = load_experiment(write(tmp_path, text)).aggregation.server_optimizer
    assert (server.lr, server.momentum) == (0.25, 0.5)


def test_overrides_change_what_they_name_and_nothing_else(tmp_path):
    path = write(tmp_path, GOOD)
    overrides = [
        "rounds=7",
        "task.model.hidden=[3, 4]",
        " evaluation.every = 2",
        "aggregation.server_optimizer={lr: 0.5}",
        "name=x",
    ]
    changed, plain = load_experiment(path, overrides).model_dump(), load_experiment(path).model_dump()
    assert changed["rounds"] == 7
    assert changed["task"]["model"]["hidden"] == [3, 4]
    assert changed["evaluation"] == {**plain["evaluation"], "every": 2}
    assert changed["aggregation"] == {
        **plain["aggregation"],
        "server_optimizer": {**plain["aggregation"]["server_optimizer"], "lr": 0.5},
    }
    plain["task"]["model"]["hidden"] = [3, 4]
    assert changed["task"] == plain["task"]
    same = set(plain) - {"rounds", "task", "evaluation", "aggregation", "name"}
    assert {key: changed[key] for key in same} == {key: plain[key] for key in same}


def test_overrides_come_in_order_and_fill_empty_sections(tmp_path):
    path = write(tmp_path, add("evaluation:"))
    experiment = load_experiment(path, ["rounds=1", "evaluation.every=3", "rounds=2"])
    assert (experiment.rounds, experiment.evaluation.every) == (2, 3)


def test_an_override_leaves_aliases_of_its_section_alone(tmp_path):
    text = change(("name: mlp", "name: my.Net"), ("hidden: [200]", "args: {a: &x {k: 1}, b: *x}"))
    experiment = load_experiment(write(tmp_path, text), ["task.model.args.a.k=2"])
    assert experiment.task.model.model_dump()["args"] == {"a": {"k": 2}, "b": {"k": 1}}


@pytest.mark.parametrize(
    ("override", "fragment"),
    [
        ("rounds", "write --set KEY=VALUE, such as --set algorithm.lr=0.05"),
        ("=3", "write --set KEY=VALUE"),
        ("algorithm..lr=3", "write --set KEY=VALUE"),
        ("rounds=[", "not valid YAML"),
        ("rounds={a: 1, a: 2}", "rounds.a is given twice"),
        ("rounds=!!python/name:os.system", "!!python/name:os.system is a tag that is not allowed here"),
        ('name="\\U00110000"', "not valid YAML: an escape (\\U) that is not a character; remove it"),
        ("rounds=", "rounds must be a whole number, not null"),
        ("algorithm.lrr=0.5", "algorithm.lrr is not a key here; did you mean 'lr'? (allowed: batch_size,"),
        ("algoritm.lr=0.5", "algoritm is not a key here; did you mean 'algorithm'?"),
        (
            "aggregation.server_optimizer.lrr=0.5",
            "aggregation.server_optimizer.lrr is not a key here; did you mean 'lr'?",
        ),
        ("rounds.x=3", "rounds is not a section; set it as a whole: --set rounds=..."),
        ("task.model.hidden.0=3", "task.model.hidden is not a section; set it as a whole: --set task.model.hidden=..."),
        ("task.model={name: mlp, hidden: [0]}", "task.model.hidden.0 must be at least 1, not 0"),
        ("task.model.name=mpl", "task.model.name: 'mpl' is not known; did you mean 'mlp'?"),
        ("algorithm.name=fedpox", "algorithm.name: 'fedpox' is not known; did you mean 'fedprox'?"),
        ("name=a:5", "name must be letters, digits"),
        ("rounds=\n- a\n- {b", "not valid YAML"),
    ],
)
def test_a_bad_override_is_refused_in_one_sentence(tmp_path, override, fragment):
    sentence = refusal(write(tmp_path, GOOD), override)
    assert sentence.startswith(f"--set {' '.join(override.split())}: ")
    assert fragment in sentence


def test_the_mistakes_of_the_file_come_before_those_of_the_overrides(tmp_path):
    path = write(tmp_path, change(("lr: 0.1", "lr: -1")))
    heading, first, second = refusal(path, "rounds=0").splitlines()
    assert heading == f"{path}: 2 mistakes"
    assert first == f"  {path}:16: algorithm.lr must be greater than 0, not -1"
    assert second == "  --set rounds=0: rounds must be at least 1, not 0"


def test_mistakes_of_all_sections_are_listed_together(tmp_path):
    text = change(("name: fedavg", "name: fedavgg"), ("seed: 0", "seed: -1")) + "search: {kind: gird, space: {}}\n"
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_search(path)
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"{path}: 3 mistakes"
    assert [re.sub(r" \(allowed.*", "", line.removeprefix(f"  {path}:")) for line in lines] == [
        "2: seed must be at least 0, not -1",
        "15: algorithm.name: 'fedavgg' is not known; did you mean 'fedavg'?",
        "19: search.kind: 'gird' is not known; did you mean 'grid'?",
    ]


@pytest.mark.parametrize(
    ("ours", "foreign"),
    [
        ("lr: 0.1", "learning_rate: 0.1"),
        ("rounds: 100", "num_rounds: 100"),
        ("clients: 100", "num_clients: 100"),
        ("clients_per_round: 0.1", "fraction_fit: 0.1"),
        ("clients_per_round: 0.1", "participation: 0.1"),
        ("epochs: 2", "local_epochs: 2"),
        ("batch_size: 8", "batchsize: 8"),
    ],
)
def test_names_of_other_frameworks_are_known(tmp_path, ours, foreign):
    assert f"did you mean {ours.partition(':')[0]!r}?" in refusal(write(tmp_path, change((ours, foreign))))


@pytest.mark.parametrize(
    ("key", "ours"), [("holdout", "client_test_fraction"), ("validation", "upper_level_fraction"), ("unbalanced", "")]
)
def test_keys_of_a_partition_under_another_name_are_refused(tmp_path, key, ours):
    sentence = refusal(write(tmp_path, change(("    alpha: 0.3", f"    alpha: 0.3\n    {key}: 0.2"))))
    hint = f"; did you mean {ours!r}?" if ours else ""
    assert f":11: task.partition.{key} is not a key here{hint} (allowed: alpha, " in sentence


def test_an_override_without_set_is_recognised(tmp_path):
    write(tmp_path, GOOD)
    assert refusal(Path("algorithm.lr=0.5")).endswith("did you mean --set algorithm.lr=0.5?")


@pytest.mark.parametrize(("value", "clients"), [(7, 7), (0.07, 7), (0.001, 1), (1, 1), ("all", 100)])
def test_clients_per_round_is_a_number_a_fraction_or_all(tmp_path, value, clients):
    assert load_experiment(write(tmp_path, GOOD), [f"clients_per_round={value}"]).cohort_size(100) == clients


def test_setting_one_of_two_alternatives_resets_the_other(tmp_path):
    path = write(tmp_path, GOOD + "objective: {kind: robustness, alpha: 0.5}\n")
    changed = load_experiment(path, ["algorithm.steps=5", "objective.limit=0.1"])
    assert (changed.algorithm.epochs, changed.algorithm.steps) == (None, 5)
    assert (changed.objective.alpha, changed.objective.limit) == (None, 0.1)
    assert "give either `epochs` or `steps`" in refusal(path, "algorithm.steps=5", "algorithm.epochs=1")
    values, _, _ = _values(load_experiment(path), {"algorithm.steps": 3})
    assert parse_experiment(values).algorithm.epochs is None
    plain = with_overrides(yaml.safe_load(GOOD), {"algorithm.steps": 5})
    assert parse_experiment(plain).algorithm.epochs is None


def test_own_algorithms_and_models_by_their_dotted_path(tmp_path, own_module):
    module = own_module(OWN)
    text = (
        WITH_MINE.replace("{module}", module).replace("lr: 0.1", "rho: 2").replace("name: mlp", f"name: {module}.Net")
    )
    experiment = load_experiment(write(tmp_path, text.replace("hidden: [200]", "args: {width: 5}")))
    assert experiment.algorithm.name == f"{module}.Mine"
    assert (experiment.algorithm.rho, experiment.algorithm.lr) == (2.0, 0.1)
    assert experiment.task.model.model_dump()["args"] == {"width": 5}
    assert load_experiment(write(tmp_path, dump_experiment(experiment))) == experiment
    unnamed = load_experiment(write(tmp_path, change(("name: fedavg", f"name: {module}.Unnamed"))))
    assert unnamed.algorithm.name == f"{module}.Unnamed"
    assert parse_experiment(unnamed.model_dump()) == unnamed


def test_mistakes_with_own_algorithms(tmp_path, own_module):
    module = own_module(OWN)
    text = WITH_MINE.replace("{module}", module)
    assert ":14: algorithm.rho is missing; add `rho: ...` under algorithm (my constant)" in refusal(
        write(tmp_path, text)
    )
    path = write(tmp_path, text.replace("lr: 0.1", "rho: 0"))
    assert ":16: algorithm.rho must be greater than 0, not 0" in refusal(path)
    path = write(tmp_path, text.replace("lr: 0.1", "rho: 1\n  code: x"))
    assert ":17: algorithm.code must be text that matches ^[ab]+$, not 'x'" in refusal(path)
    assert ":15:" in (sentence := refusal(write(tmp_path, text.replace(".Mine", ".Mein"))))
    assert f"module {module!r} has no 'Mein'; did you mean 'Mine'?" in sentence


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("def f(:\n", "{module}.py"),
        ("\nraise ValueError('not\\ntoday')\n", "ValueError at {folder}/{module}.py:2: not today"),
        ("import nowhere_to_be_found\n", "no module named 'nowhere_to_be_found'"),
        ("from json import nothing\n", "ImportError at {folder}/{module}.py:1: cannot import name 'nothing'"),
    ],
)
def test_a_broken_module_of_the_users(tmp_path, own_module, source, fragment):
    module = own_module(source)
    sentence = refusal(write(tmp_path, change(("name: fedavg", f"name: {module}.Mine"))))
    assert f":15: algorithm.name: cannot import '{module}.Mine': " in sentence
    assert fragment.format(folder=tmp_path, module=module) in sentence


def test_plain_values_without_a_file():
    values = yaml.safe_load(GOOD)
    assert parse_experiment(values).rounds == 100
    values["rounds"] = 0
    with pytest.raises(UserError, match=r"^experiment: rounds must be at least 1, not 0$"):
        parse_experiment(values)


FULL = parse_experiment(yaml.safe_load(GOOD)).model_dump()
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.just(10**400),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=6) | st.integers() | st.none(), st.integers() | st.text(max_size=3), max_size=3),
    st.sampled_from(
        ["mlp", "own", "fedprox", "iid", "auto", "a.b", "name", {"name": "mlp"}, {"name": [1]}, {"kind": {}}]
    ),
)


def paths(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all keys of nested sections."""
    here = [(*prefix, key) for key in values]
    deeper = [paths(child, (*prefix, key)) for key, child in values.items() if isinstance(child, dict)]
    return here + [path for found in deeper for path in found]


@given(st.data())
def test_junk_parses_or_is_refused_in_one_sentence(data):
    values = deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        known = paths(values)
        if not known:
            break
        path = data.draw(st.sampled_from(known))
        section = values
        for key in path[:-1]:
            section = section[key]
        change_ = data.draw(st.sampled_from(["misspell", "replace", "remove"]))
        child = section.pop(path[-1])
        if change_ == "misspell":
            word = str(path[-1])
            spot = data.draw(st.integers(0, max(0, len(word) - 1)))
            section[word[:spot] + data.draw(st.text(max_size=2)) + word[spot + 1 :]] = child
        elif change_ == "replace":
            section[path[-1]] = deepcopy(data.draw(JUNK))
    try:
        experiment = parse_experiment(values)
    except UserError as error:
        checked(str(error))
    else:
        assert parse_experiment(experiment.model_dump()) == experiment


@given(st.text(alphabet=st.sampled_from("abe01-+.:,'\"[]{}&*!#%@|>?\t\n \\=<x\u2028\ufeff"), max_size=30))
def test_any_text_parses_or_is_refused_in_one_sentence(tmp_path_factory, text):
    path = write(tmp_path_factory.getbasetemp(), GOOD)
    for file_text, overrides in [(add(text), []), (GOOD, [text]), (GOOD, [f"algorithm.lr={text}"])]:
        path.write_text(file_text, encoding="utf-8")
        try:
            load_experiment(path, overrides)
        except UserError as error:
            checked(str(error))
