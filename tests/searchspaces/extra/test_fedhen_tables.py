"""FedHeN's tables: the printed cells, the networks alone, and a small one of these runs."""

import json

import pytest
from click.testing import CliRunner

from hedgerow.cli import main
from hedgerow.searchspaces.extra.table_file import family_tables

TABLES = family_tables("fedhen")

PRINTED = """
T4.1 simple cifar10 84.4 289 943 805
T4.1 simple cifar10 83.4 249 731 669
T4.1 simple cifar100 46.4 296 864 984
T4.1 simple cifar100 45.4 250 588 807
T4.1 complex cifar10 88.5 649 991 941
T4.1 complex cifar10 87.5 456 739 669
T4.1 complex cifar100 46.8 468 963 614
T4.1 complex cifar100 45.8 376 752 472
T4.2 simple cifar10 79.4 295 986 810
T4.2 simple cifar10 78.4 256 816 676
T4.2 simple cifar100 43.8 278 978 914
T4.2 simple cifar100 42.8 239 813 762
T4.2 complex cifar10 84.2 596 1000 857
T4.2 complex cifar10 83.2 519 887 751
T4.2 complex cifar100 44.8 450 997 498
T4.2 complex cifar100 43.8 372 754 456
"""


def line_of(table, name):
    (line,) = (line for line in TABLES[table].rows if line.name == name)
    return line


def test_the_published_numbers_are_those_of_the_source():
    rows = [row.split() for row in PRINTED.split("\n") if row]
    printed = {(table, f"{data}-{which}"): {} for table, which, data, *_ in rows}
    for table, which, data, target, *cells in rows:
        printed[table, f"{data}-{which}"][round(float(target) / 100, 3)] = cells
    found = {(table, line.name): line for table in ("T4.1", "T4.2") for line in TABLES[table].rows if line.published}
    assert found.keys() == printed.keys()
    for key, line in found.items():
        assert {target: list(cells.values()) for target, cells in line.published.items()} == printed[key]
        assert list(line.methods) == ["FedHeN", "Decouple", "NoSide"]
        assert line.values["rounds"] == 1000
        assert line.values["evaluation"]["targets"] == list(printed[key])


def test_the_networks_alone():
    assert {line.name: line.published[None]["central"] for line in TABLES["central"].rows if line.published} == {
        "cifar10-complex-all": "93%", "cifar100-complex-all": "73.5%",
        "cifar10-complex-half": "90.5%", "cifar100-complex-half": "62.6%",
        "cifar10-simple-all": "86%", "cifar100-simple-all": "63.2%",
        "cifar10-simple-half": "84.5%", "cifar100-simple-half": "55.7%",
    }  # fmt: skip
    for which, share in (("simple", 1.0), ("complex", 0.0)):
        line = line_of("central", f"cifar10-{which}-half")
        assert line.methods["central"]["simple"] == share
        assert line.values["task"]["partition"] == {"kind": "iid", "clients": 1, "samples_per_client": 25000}


@pytest.mark.exhaustive("processes")
def test_the_simple_network_alone_runs_and_its_own_accuracy_is_shown(ray_here, tmp_path):
    overrides = [word for change in ("rounds=4", "tracking.enabled=false") for word in ("--set", change)]
    arguments = ["table", "fedhen/central/digits-simple-half", *overrides, "--output", str(tmp_path)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = tmp_path / "tables" / "fedhen-central-digits-simple-half" / "table.json"
    # The complex network, which no client trains, is at chance.
    assert json.loads(table.read_text())["lines"][0]["best_accuracy"]["central"] > 0.5
