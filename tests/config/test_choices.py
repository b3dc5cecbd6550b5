"""What there is to choose from says what it is, and whence."""

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.partitions import PARTITIONS
from hedgerow.platform.models import MODELS
from hedgerow.platform.ui.explained_experiment import NEEDS
from hedgerow.searchspaces.listing import KINDS
from hedgerow.searchspaces.spaces.published_spaces import named_spaces


def test_everything_is_listed_once_and_says_what_it_is():
    for kind, listed in KINDS.items():
        choices = listed()
        assert len({choice.name for choice in choices}) == len(choices) > 5, kind
        for choice in choices:
            assert choice.name, kind
            assert choice.what, choice
            assert "\n" not in choice.what + choice.source, choice
            assert bool(choice.source) == (kind in ("algorithms", "spaces")), choice


def test_names_are_those_that_files_take():
    names = {kind: [choice.name for choice in listed()] for kind, listed in KINDS.items()}
    assert names["algorithms"] == [*ALGORITHMS]
    assert names["models"] == list(MODELS)
    assert names["spaces"] == list(named_spaces())
    assert {"digits", "quadratic", "text"} < set(names["datasets"])
    assert {"iid", "dirichlet", "labels", "natural", "acid", "alid", "stream"} < set(names["partitions"])
    assert names["partitions"] == list(PARTITIONS)


def test_it_is_said_by_the_docstrings_and_no_second_time():
    (feddyn,) = (choice for choice in KINDS["algorithms"]() if choice.name == "feddyn")
    assert feddyn.what == " ".join((algorithm_class("feddyn").__doc__ or "").partition("\n\n")[0].split())
    assert feddyn.source.startswith("FedDyn (Acar et al.,")


def test_the_flags_of_an_algorithm_are_listed():
    flags = {choice.name: set(choice.flags) for choice in KINDS["algorithms"]()}
    assert flags["fedbioacc"] == {"bilevel", "validation", "all_clients"}
    assert flags["mrbo"] == {"bilevel", "validation", "pool"}
    assert {"teacher", "feature_maps"} < flags["fitnet"]
    assert {name for name, found in flags.items() if "stream" in found} == {
        "moml", "b_moml", "moml_zero", "ftml", "mogd", "toe", "fs", "ftrl", "offline",
    }  # fmt: skip
    assert {name for name, found in flags.items() if "public" in found} == {"feddf", "ds_fl", "fed_et"}
    # What `hedgerow new` gives is asked for by flags.
    assert set().union(*flags.values()) > NEEDS.keys()


def test_the_slots_of_an_algorithm_are_listed():
    slots = {
        choice.name: {slot for slot, is_supported in choice.slots.items() if is_supported}
        for choice in KINDS["algorithms"]()
    }
    assert slots["fedavg"] == slots["fedprox"] == {
        "aggregation.rule", "aggregation.weighting", "aggregation.server_optimizer", "transforms", "objective",
        "simulation.attack", "privacy", "schedule",
    }  # fmt: skip
    # Their server states accumulate what clients send.
    assert slots["fedavg"] - slots["feddyn"] == slots["fedavg"] - slots["scaffold"] == {"aggregation.rule", "schedule"}
    assert slots["central"] == {"objective"}
    # The number of steps is sent as it is; personal models are client state.
    assert slots["fedavg"] - slots["fednova"] == {"aggregation.rule", "privacy"}
    for name in ("ditto", "fedper", "fedrep", "fedbn"):
        assert slots["fedavg"] - slots[name] == {"schedule"}
