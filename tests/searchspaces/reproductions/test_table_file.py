"""Tables of papers as data: cases, rules, printed numbers; and that no rule of the package is without use."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.ui.terminal import print_rows
from hedgerow.searchspaces import reproductions
from hedgerow.searchspaces.reproductions import REPRODUCTIONS
from hedgerow.searchspaces.reproductions.published import all_tables, family_tables
from hedgerow.searchspaces.reproductions.table_file import (
    Case,
    TableFile,
    TableRow,
    _listed_cases,
    _printed_cases,
    _row,
    load_function,
    read_tables,
)
from hedgerow.searchspaces.results.trials import markdown_table

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
    (table,) = read_tables("a", paper).values()
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
    (row, *_) = read_tables("a", paper)["T1"].rows
    assert list(row.methods) == ["FedDyn", "FedAvg"]
    assert row.published == {"ctm": {"FedDyn": "71.2"}}


@pytest.mark.parametrize("wrong", ["tabels: {}", "rules: [{wen: {data: mnist}}]"])
def test_a_misspelt_key_of_a_table_file_is_refused(paper, wrong):
    key = wrong.partition(":")[0]
    kept = "\n".join(line for line in RULES.split("\n") if not line.startswith(f"{key}:"))
    if key == "rules":
        kept = kept.partition("\n- row")[0]
    paper.write_text(f"{kept}\n{wrong}\n")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        read_tables("a", paper)


def of_package(family: str) -> tuple[TableFile, list[Case]]:
    """The file of a paper, and the cases of its rows."""
    file = Path(reproductions.__file__).parent / REPRODUCTIONS[family]
    paper = TableFile.model_validate(parse_yaml(file.read_text(encoding="utf-8"), str)[0], strict=True)
    printed = _printed_cases(file.with_suffix(".csv"))
    cases = [
        case for name, head in paper.tables.items() for case in [*printed.get(name, []), *_listed_cases(name, head)]
    ]
    return paper, cases


def is_changed(paper: TableFile, case: Case, row: TableRow) -> bool:
    """Whether a case makes another row, or none, by the rules of this paper."""
    try:
        return _row(paper, case) != row
    except (KeyError, TypeError):
        return True


@pytest.mark.parametrize("family", REPRODUCTIONS)
def test_every_rule_of_a_paper_has_an_effect(family):
    """Without it some row would be another: a condition that never holds is a mistake."""
    paper, cases = of_package(family)
    rows = [row for table in family_tables(family).values() for row in table.rows]
    assert [_row(paper, case) for case in cases[:1]] == rows[:1]
    for number, rule in enumerate(paper.rules):
        fewer = paper.model_copy(update={"rules": paper.rules[:number] + paper.rules[number + 1 :]})
        concerned = [
            (case, row) for case, row in zip(cases, rows, strict=True) if rule.is_of_methods or rule.fits(case.keys)
        ]
        assert any(is_changed(fewer, case, row) for case, row in concerned), rule


def test_names_of_rows_are_unique_in_their_table_and_functions_can_be_loaded():
    for table in all_tables():
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
        for row in table.rows:
            assert all(callable(load_function(place)) for place in (row.draws, row.studies) if place)


def test_the_names_of_tables_are_had_without_reading_them():
    """A table of strings: importing the package imports no paper, nor torch."""
    code = (
        "import sys, hedgerow.searchspaces.reproductions as r; print(len(r.REPRODUCTIONS)); "
        "print([m for m in sys.modules if 'papers' in m or m in ('torch', 'ray', 'yaml')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["11", "[]"]
    assert set(family_tables("moml")["5.1"].rows[0].published) == {"ctm", "ltm"}


def test_rows_of_different_methods_are_one_table(capsys):
    rows = [{"setting": "mean", "FedAvg": "1", "FedDyn": "2"}, {"setting": "median", "FedAvg": "3"}]
    assert markdown_table(rows).splitlines()[-1] == "| median | 3 |  |"
    print_rows(rows, "slots")
    assert "FedDyn" in capsys.readouterr().out
