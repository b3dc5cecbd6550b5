"""Named search spaces: the grids of the sources, each with its place."""

import math
import re

import pytest

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.searchspaces.spaces import published_spaces as named
from hedgerow.searchspaces.spaces.published_spaces import SPACES, named_space, named_spaces
from hedgerow.searchspaces.spaces.search_file import parse_search
from hedgerow.searchspaces.spaces.search_section import Dimension

KNOWN = named_spaces()
HERE = [name for name in KNOWN if name.split("/")[0] in ALGORITHMS]

# Copied from the specs: feddyn 3.3 and 3.5; pfl 3; hedge 4; disk 4.1 and 4.3; fedbio 4; comm_fedbio 3.1 and 4.2;
# fedsep 4.1. A name with several keys is given in full.
EXPECTED = {
    "fedavg/mnist": {"lr": [0.1, 0.01], "epochs": [10, 20, 50]},
    "scaffold/mnist": {"lr": [0.1, 0.01], "steps": [120, 240, 600]},
    "fedprox/mnist": {"lr": [0.1, 0.01], "epochs": [10, 20, 50], "mu": [1, 0.01, 1e-4]},
    "feddyn/mnist": {"lr": [0.1, 0.01], "epochs": [10, 20, 50], "alpha": [0.001, 0.01, 0.03, 0.1]},
    "feddyn/cifar10": {
        "lr": [0.1],
        "epochs": [5],
        "weight_decay": [1e-3],
        "lr_decay": [0.992, 0.998, 1],
        "alpha": [1e-3, 1e-2, 1e-1],
    },
    "fedprox/cifar100": {
        "lr": [0.1],
        "epochs": [5],
        "weight_decay": [1e-3],
        "lr_decay": [0.992, 0.998, 1],
        "mu": [1e-2, 1e-3, 1e-4],
    },
    "feddyn/cifar100_500_devices": {
        "lr": [0.1],
        "epochs": [2, 5],
        "weight_decay": [1e-3],
        "lr_decay": [0.992, 0.998, 1],
        "alpha": [0.1, 0.01, 0.001],
    },
    "scaffold/cifar100_500_devices": {
        "lr": [0.1],
        "steps": [4, 10],
        "weight_decay": [1e-3],
        "lr_decay": [0.992, 0.998, 1],
    },
    "feddyn/shakespeare": {"lr": [1], "epochs": [1, 5], "alpha": [0.001, 0.009, 0.01, 0.015]},
    "scaffold/synthetic": {"lr": [1, 0.1], "steps": [20, 200, 1000]},
    "fedprox/synthetic": {"lr": [1, 0.1], "epochs": [1, 10, 50], "mu": [0.01, 1e-4]},
    "per_fedavg/cifar100": {"adapt_lr": [0.1, 0.01], "adapt_steps": [1, 5]},
    "pfldyn_maml/miniimagenet": {"adapt_lr": [0.1, 0.01], "adapt_steps": [1, 5], "alpha": [0.1, 0.01]},
    "pfldyn_proto/cifar10_alpha": {"alpha": [10**-2, 10**-1.5, 10**-1, 10**-0.5, 1]},
    "moml/s_mnist": {"steps": [10, 20], "adapt_steps": [1, 5], "adapt_lr": [0.1, 0.01], "alpha": [1, 5, 10]},
    "b_moml/cifar100": {"steps": [100, 200], "adapt_steps": [1, 5], "adapt_lr": [0.1, 0.01], "alpha": [1, 0.1, 0.01]},
    "moml_zero/miniimagenet": {
        "steps": [100, 200],
        "adapt_steps": [1, 5],
        "adapt_lr": [0.1, 0.01],
        "alpha": [0.1, 0.01, 0.001],
    },
    "kd/toy_intervals": {"alpha": [0, 0.1, 0.5, 0.9, 1], "tau": [1, 2, 4]},
    "disk/toy_gaussians": {
        "alpha": [0, 0.1, 0.5, 0.9, 1],
        "tau": [1, 2, 4],
        "student_tau": [1, 2, 4],
        "top_k": [1, 2, 3],
        "lambda_min": [0.01, 0.1, 1, 5, 10],
        "lambda_max": [1, 5, 10, 20, 50, 100, 1000],
        "lambda_period": [20, 50],
        "delta": [0.1, 0.05, 0],
    },
    "disk/cifar100": {
        "alpha": [0, 0.1, 0.5, 0.9, 1],
        "student_tau": [1, 2, 4],
        "top_k": [1, 3, 5, 10, 20, 50],
        "lambda_min": [0.01, 0.1, 1, 5, 10],
        "lambda_max": [1, 5, 10, 20, 50, 100, 1000],
        "lambda_period": [20, 50],
    },
    "fedbioacc/cleaning": {
        "lr": [0.01, 0.03, 0.1, 0.3],
        "u_lr": [0.01, 0.03, 0.1, 0.3],
        "upper_lr_factor": [0.1, 1, 10, 100],
        "ridge": [1e-3, 1e-2],
        "c": [0.1, 0.5, 1],
    },
    "fedbio_local/hyper_representation": {"lr": [1e-3, 1e-1], "upper_lr": [1e-3, 1e-1], "neumann_terms": [3, 5, 10]},
    "comm_fedbio_topk/mnist": {"compression": [1, 10, 20, 50, 100, 500, 1000]},
    "focus/femnist": {"alpha": [0.01, 0.1, 0.5, 1, 2, 5, 10]},
    "preprocess/cifar10": {"threshold": [0.5, 1, 1.5, 2, 3]},
    "fedsep/cifar10": {
        "sketch_size": [10, 100, 500, 1000, 2000, 5000, 10000, 20000],
        "decode_lr": [0.5, 5],
        "lasso": [0, 0.01],
    },
    "fedsep/mnist_local_steps": {"sketch_size": [2000], "steps": [2, 5, 10, 20, 50]},
    "fedsep/mnist_recommended": {
        "decode_lr_scale": [0.5, 1, 1.9],
        "lasso": [0, 1e-5, 1e-4, 1e-3, 1e-2],
        "aggregation.server_optimizer.lr": [0.3, 1, 3, 10],
    },
}


@pytest.mark.parametrize("file", sorted(SPACES.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_file_says_where_it_comes_from_and_gives_no_name_twice(file):
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    names = re.findall(r"^([^\s#].*?):", text, re.MULTILINE)
    assert names == [name for name, space in KNOWN.items() if space.family == file.stem]


@pytest.mark.parametrize("name", KNOWN)
def test_every_space_has_a_plain_name_a_source_and_valid_entries(name):
    assert re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", name)
    assert KNOWN[name].source
    for key, entry in KNOWN[name].space.items():
        values = Dimension.model_validate(entry, strict=True).values
        assert key.startswith(("algorithm.", "aggregation."))
        assert all(type(value) in (int, float) for value in values)
        assert len(set(values)) == len(values)


def test_every_key_is_a_hyperparameter_that_is_here_or_in_the_table_of_those_to_come():
    here = {field for name in ALGORITHMS for field in algorithm_class(name).Hyper.model_fields}
    rows = re.findall(r"^ {4}(\S.*?)(?: {2}|$)", named.__doc__, re.MULTILINE)
    to_come = {key for row in rows for key in row.split(", ")}
    every = [key.split(".") for space in KNOWN.values() for key in space.space]
    keys = {key for section, key, *_ in every if section == "algorithm"}
    assert keys <= here | to_come


@pytest.mark.parametrize("name", EXPECTED)
def test_values_are_those_of_the_source(name):
    given = {key.removeprefix("algorithm."): Dimension(**entry).values for key, entry in KNOWN[name].space.items()}
    assert given == {key: pytest.approx(values, rel=1e-12) for key, values in EXPECTED[name].items()}


def test_every_family_is_compared_with_its_source_at_least_twice():
    families = [KNOWN[name].family for name in EXPECTED]
    assert min(families.count(space.family) for space in KNOWN.values()) >= 2


@pytest.mark.parametrize("stream", ["s_mnist", "cifar100", "miniimagenet"])
def test_the_online_methods_have_as_many_experts_as_the_thesis(stream):
    sizes = {"moml": 24, "b_moml": 24, "moml_zero": 24, "ftml": 8, "mogd": 8, "toe": 8, "fs": 4}
    assert {method: KNOWN[f"{method}/{stream}"].size for method in sizes} == sizes


def test_a_space_with_draws_has_no_size():
    assert KNOWN["fedsep/mnist"].size is None
    assert KNOWN["fedbio_local/hyper_representation"].size is None


def searched(name, search):
    """The plan of a search over digits, or of a stream of them, by the method of a space."""
    method = name.split("/")[0]
    stream, bilevel = issubclass(algorithm_class(method), Online), issubclass(algorithm_class(method), Bilevel)
    return parse_search(
        {
            "name": "named",
            "rounds": 1,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "stream", "tasks": 1, "train": 10} if stream else {"kind": "iid", "clients": 10},
                "model": {"name": "logreg"},
                "problem": {"kind": "cleaning"} if bilevel else None,
            },
            "clients_per_round": "all",
            "algorithm": {"name": method},
            "search": {"kind": "hedge" if stream else "grid", **search},
        }
    )


LARGE = 3000
"""Configurations of DiSK's products, which take a minute to be validated one by one: their corners are."""


@pytest.mark.parametrize("name", HERE)
def test_the_space_of_a_method_that_is_here_is_searched_by_its_name(name):
    space, size = KNOWN[name].space, KNOWN[name].size
    if size is not None and size > LARGE:
        assert size == math.prod(len(entry["grid"]) for entry in space.values())
        corners = [{key: {"grid": [entry["grid"][end]]} for key, entry in space.items()} for end in (0, -1)]
        assert [len(searched(name, {"space": corner}).configurations) for corner in corners] == [1, 1]
    else:
        plan = searched(name, {"space": name} if size else {"kind": "random", "space": name, "samples": 2})
        grids = [len(entry["grid"]) for entry in space.values() if "grid" in entry]
        # Of keys that are drawn, two draws for each point of the grid.
        assert len(plan.configurations) == math.prod(grids) * (1 if size else 2)
    own = {key.split(".")[1] for key in space if key.startswith("algorithm.")}
    assert own <= algorithm_class(name.split("/")[0]).Hyper.model_fields.keys()


def test_what_a_caller_changes_stays_with_the_caller():
    named_space("feddyn/mnist")["algorithm.alpha"]["grid"].clear()
    assert named_space("feddyn/mnist")["algorithm.alpha"]["grid"] == EXPECTED["feddyn/mnist"]["alpha"]


def test_a_misspelt_name_is_one_sentence():
    with pytest.raises(UserError) as caught:
        named_space("feddyn/cifar11")
    assert str(caught.value) == (
        "search.space: 'feddyn/cifar11' is not a known space; did you mean 'feddyn/cifar10'? "
        f"(the files in {SPACES} list them)"
    )
