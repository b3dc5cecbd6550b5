"""Tables of papers as data: cases, rules, printed numbers; and that no rule of the package is without use."""

import pytest

from hedgerow.platform.common.table import Table
from hedgerow.searchspaces.extra.table_file import (
    FAMILIES,
    PAPERS,
    Case,
    TableRow,
    all_tables,
    cases_of,
    family_tables,
    fits,
    is_of_methods,
    read_paper,
    read_tables,
    row_of,
)

RULES = """
source: A paper of no author
texts: {open: the source leaves everything open}
keys:
  data:
    mnist: {title: MNIST, model: {name: mlp, hidden: [200]}}
    digits: {title: digits, model: {name: logreg}}
tables:
  T1: {title: as printed, rows: [{data: digits, clients: [5, 10]}]}
rules:
- row: {name: "{data}-{clients}", title: "{data.title}, {clients} clients", remark: "{texts.open}"}
- experiment:
    rounds: 10
    task: {data: {name: "{data}"}, model: "{data.model}", partition: {kind: iid, clients: "{clients}"}}
    evaluation: {targets: "{targets}"}
- when: {clients: [10, 20]}
  unless: {data: digits}
  experiment: {rounds: 20}
- methods: {FedAvg: {name: fedavg}, FedDyn: {name: feddyn, alpha: 0.1}}
- algorithm: {lr: 0.1}
- when: {method: feddyn, data: mnist}
  algorithm: {alpha: 0.01}
  grid: "{method}/{data}"
- when: {data: mnist}
  methods: {FedAvg: {lr: 1.0}}
- when: {data: digits, clients: 5}
  published: {best: {FedAvg: 90%, Unknown: 10%}}
"""
PRINTED = """table,data,clients,target,FedAvg,FedDyn
T1,mnist,10,0.98,100+,50
T1,mnist,10,0.95,70,
"""


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "a_tables.yaml").write_text(RULES)
    (tmp_path / "a_tables.csv").write_text(PRINTED)
    return tmp_path / "a_tables.yaml"


def test_rules_fill_in_the_cases_of_both_files(paper):
    (table,) = read_tables(paper).values()
    assert (table.name, table.title, table.source) == ("a/T1", "as printed", "A paper of no author")
    printed, five, ten = table.rows
    assert [row.name for row in table.rows] == ["mnist-10", "digits-5", "digits-10"]
    assert (printed.title, printed.remark) == ("MNIST, 10 clients", "the source leaves everything open")
    assert printed.values == {
        "rounds": 20,
        "task": {
            "data": {"name": "mnist"},
            "model": {"name": "mlp", "hidden": [200]},
            "partition": {"kind": "iid", "clients": 10},
        },
        "evaluation": {"targets": [0.98, 0.95]},
    }
    # An empty cell was not printed.
    assert printed.published == {0.98: {"FedAvg": "100+", "FedDyn": "50"}, 0.95: {"FedAvg": "70"}}
    assert printed.methods == {
        "FedAvg": {"name": "fedavg", "lr": 1.0},
        "FedDyn": {"name": "feddyn", "alpha": 0.01, "lr": 0.1},
    }
    assert printed.grids == {"FedDyn": "feddyn/mnist"}
    assert (ten.values["rounds"], ten.values["evaluation"], ten.published, ten.grids) == (10, {"targets": []}, {}, {})
    assert ten.methods["FedDyn"] == {"name": "feddyn", "alpha": 0.1, "lr": 0.1}
    # Of methods alone that the row has.
    assert five.published == {None: {"FedAvg": "90%"}}


def test_a_column_of_methods_names_and_orders_those_of_a_row(paper):
    text = "table,data,clients,method,ctm,ltm\nT1,mnist,10,FedDyn,71.2,\nT1,mnist,10,FedAvg,,\n"
    paper.with_suffix(".csv").write_text(text)
    (row, *_) = read_tables(paper)["T1"].rows
    assert list(row.methods) == ["FedDyn", "FedAvg"]
    assert row.published == {"ctm": {"FedDyn": "71.2"}}


def is_changed(paper: dict, case: Case, row: TableRow) -> bool:
    """Whether a case makes another row, or none, by the rules of this paper."""
    try:
        return row_of(paper, case) != row
    except (KeyError, TypeError):
        return True


KEYS = {
    "": {"source", "shared", "texts", "keys", "tables", "rules"},
    "tables": {"title", "rows"},
    "rules": {"when", "unless", "row", "experiment", "methods", "algorithm", "grid", "published", "after"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_rule_of_a_paper_has_an_effect(family):
    """Without it some row would be another: a condition that never holds is a mistake, as is a misspelt key."""
    file = PAPERS / f"{family}_tables.yaml"
    paper = read_paper(file)
    assert paper.keys() <= KEYS[""]
    assert all(head.keys() <= KEYS["tables"] for head in paper["tables"].values())
    assert all(rule.keys() <= KEYS["rules"] for rule in paper["rules"])
    cases = [case for cases in cases_of(paper, file).values() for case in cases]
    rows = [row for table in family_tables(family).values() for row in table.rows]
    for number, rule in enumerate(paper["rules"]):
        fewer = {**paper, "rules": paper["rules"][:number] + paper["rules"][number + 1 :]}
        concerned = [
            (case, row) for case, row in zip(cases, rows, strict=True) if is_of_methods(rule) or fits(rule, case.keys)
        ]
        assert any(is_changed(fewer, case, row) for case, row in concerned), rule


def test_names_of_rows_are_unique_in_their_table():
    for table in all_tables():
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)


def test_rows_of_different_methods_are_one_table(capsys):
    rows = [{"setting": "mean", "FedAvg": "1", "FedDyn": "2"}, {"setting": "median", "FedAvg": "3"}]
    assert Table(rows).markdown().splitlines()[-1] == "| median | 3 | - |"
    Table(rows, "slots").print()
    assert "FedDyn" in capsys.readouterr().out
