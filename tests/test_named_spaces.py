"""Named search spaces: the published grids, each with its source."""

import re

import pytest

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.errors import UserError
from hedgerow.searchspaces.config import Entry
from hedgerow.searchspaces.named import named_space, named_spaces
from hedgerow.searchspaces.search_file import parse_search

SPACES = named_spaces()


@pytest.mark.parametrize("name", SPACES)
def test_every_space_has_a_plain_name_a_source_and_valid_entries(name):
    space = SPACES[name]
    assert re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", name)
    assert space.source
    for key, entry in space.space.items():
        values = Entry.model_validate(entry, strict=True).values
        assert key.startswith("algorithm.")
        assert all(isinstance(value, (int, float)) for value in values)
        assert len(set(values)) == len(values)


def grid(name: str, key: str) -> list:
    return SPACES[name].space[f"algorithm.{key}"]["grid"]


@pytest.mark.parametrize("stream", ["s_mnist", "cifar100", "miniimagenet"])
def test_the_online_methods_have_as_many_experts_as_the_thesis(stream):
    sizes = {"moml": 24, "b_moml": 24, "moml_zero": 24, "ftml": 8, "mogd": 8, "toe": 8, "fs": 4}
    assert {method: SPACES[f"{method}/{stream}"].size for method in sizes} == sizes


def test_grids_are_those_of_their_sources():
    # feddyn.md 3.5 and 3.3; pfl.md 3; moml.md 4; disk.md 4.1 and 4.3; fedbio.md 4; comm_fedbio.md 3; fedsep.md 4.1.
    assert grid("feddyn/mnist", "alpha") == [0.001, 0.01, 0.03, 0.1]
    assert grid("scaffold/mnist", "steps") == [120, 240, 600]
    assert grid("fedprox/cifar10", "mu") == [0.01, 0.001, 0.0001]
    assert grid("feddyn/shakespeare", "alpha") == [0.001, 0.009, 0.01, 0.015]
    assert grid("fedavg/synthetic", "epochs") == [1, 10, 50]
    assert grid("feddyn/cifar100_500_devices", "epochs") == [2, 5]
    assert grid("pfldyn_maml/cifar10", "alpha") == [0.1, 0.01]
    assert grid("per_fedavg/cifar100", "adapt_steps") == [1, 5]
    assert grid("moml/s_mnist", "steps") == [10, 20]
    assert grid("moml/miniimagenet", "alpha") == [0.1, 0.01, 0.001]
    assert grid("kd/toy_intervals", "tau") == [1, 2, 4]
    assert grid("disk/cifar100", "guide_k") == [1, 3, 5, 10, 20, 50]
    assert grid("fedbioacc/cleaning", "c") == [0.1, 0.5, 1]
    assert grid("comm_fedbio_topk/mnist", "compression") == [1, 10, 20, 50, 100, 500, 1000]
    assert grid("fedsep/cifar10", "sketch_rows") == [10, 100, 500, 1000, 2000, 5000, 10000, 20000]


@pytest.mark.parametrize("name", [name for name in SPACES if name.split("/")[0] in ALGORITHMS])
def test_the_space_of_a_method_that_is_here_is_searched_by_its_name(name):
    method = name.split("/")[0]
    plan = parse_search(
        {
            "name": "named",
            "rounds": 1,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": 10},
                "model": {"name": "logreg"},
            },
            "algorithm": {"name": method, "lr": 0.1},
            "search": {"kind": "grid", "space": name},
        }
    )
    assert len(plan.configurations) == SPACES[name].size


def test_a_misspelt_name_is_one_sentence():
    with pytest.raises(UserError, match=r"'feddyn/cifar11' is not a known space; did you mean 'feddyn/cifar10'\?"):
        named_space("feddyn/cifar11")
