"""Methods compared where no target is set, and the studies of FedBiO as experiment files."""

import pytest
from made_up import records

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.searchspaces.extra.table_file import family_tables
from hedgerow.searchspaces.extra.table_result import after, standing
from hedgerow.searchspaces.spaces.published_spaces import named_spaces
from hedgerow.searchspaces.spaces.space import without_slots


def spending(accuracies, cost, products):
    """Records that report an AUC and count products."""
    out = records(accuracies, cost)
    for record in out:
        record |= {"exchanges": 2, "spent_hessian_products": products * record["round"]}
        if "test_accuracy" in record:
            record["cleaning_auc"] = record["test_accuracy"] / 2
    return out


def test_methods_stand_at_equal_rounds_and_at_equal_traffic():
    dear, cheap = spending([0.2, 0.4, 0.6, 0.8], 4, 10), spending([0.1, 0.3, 0.5], 2, 5)
    plain = records([0.9, 0.9, 0.9, 0.9], 1)
    pooled = records([0.7, 0.7, 0.7], 0)
    rows = standing({"dear": dear, "cheap": cheap, "plain": plain, "pooled": pooled})
    # The shortest run has three rounds; of those that count what they compute, the cheapest sends 6.
    assert rows["after 3 rounds"] == {"dear": "60.0 %", "cheap": "50.0 %", "plain": "90.0 %", "pooled": "70.0 %"}
    assert rows["after 6 transmissions"] == {"dear": "20.0 %", "cheap": "50.0 %", "plain": "90.0 %"}
    assert rows["cleaning auc"] == {"dear": "0.4", "cheap": "0.25"}
    assert rows["exchanges"] == {"dear": "8", "cheap": "6", "plain": "0", "pooled": "0"}
    assert rows["hessian products"] == {"dear": "40", "cheap": "15"}


def test_accuracies_are_of_those_that_ran_so_long():
    runs = {"long": records([0.1, 0.2, None, 0.4]), "short": records([0.3, 0.5])}
    assert after(runs, [2, 3, 5]) == {
        "after 2 rounds": {"long": "20.0 %", "short": "50.0 %"},
        "after 3 rounds": {"long": "20.0 %"},
    }


def test_one_method_has_nobody_to_stand_beside():
    assert standing({"alone": records([0.5], 1)}) == {}
    told = standing({"alone": spending([0.2, 0.4], 1, 10)})
    assert told == {"cleaning auc": {"alone": "0.2"}, "exchanges": {"alone": "4"}, "hessian products": {"alone": "20"}}


FAMILY_LINES = [
    pytest.param(family, line, id=f"{table.name}/{line.name}")
    for family in ("fedbio", "comm_fedbio", "fedsep", "fedhen", "pfl", "side", "disk")
    for table in family_tables(family).values()
    for line in table.rows
]


@pytest.mark.parametrize(("family", "line"), FAMILY_LINES)
def test_every_method_of_a_study_is_a_valid_experiment(family, line):
    for heading, section in line.methods.items():
        parse_experiment({**line.values, "name": "study", **without_slots(section)}, source=heading)
    sizes = {heading: named_spaces()[space].size for heading, space in line.grids.items()}
    if family == "fedbio":
        # As many configurations for each.
        assert set(sizes) == set(line.methods)
        assert len(set(sizes.values())) == 1
