"""Reads the tables of a paper: settings from `PAPER_tables.yaml`, published numbers from `PAPER_tables.csv`.

A row of a table is a *case*: values of a few keys, such as data set and partition. Cases come from the CSV file, and
from `rows` in the YAML file. Rules complete each case: a rule applies to the cases that match its condition, and later
rules override earlier ones, setting by setting. A setting that a whole paper shares is therefore written only once.

    keys:                       # properties of the values of a key
      data:
        mnist: {title: MNIST, model: {name: mlp, hidden: [200]}}
    tables:
      T1: {title: "rounds to two accuracies"}
    rules:
    - {name: "{data}", title: "{data.title}"}
    - experiment: {rounds: 100, task: {data: {name: "{data}"}, model: "{data.model}"}}
    - methods: {FedAvg: {name: fedavg}, FedDyn: {name: feddyn}}
    - algorithm: {lr: 0.1}
    - when: {method: feddyn, data: [mnist, emnist]}
      algorithm: {alpha: 0.01}

In a string, `{key}` is the value of a key, `{key.property}` is one of its properties, and `{texts.name}` is a text of
the file. A string that consists of a single placeholder takes the type of the value that replaces it.

In the CSV file, columns before `target` are keys of the cases, and columns after it are methods. An empty cell was not
published, and the target "best" stands for the best accuracy. A file with a column `method` instead has one line per
method, and the columns after it are metrics.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.config.yaml_reader import parse_yaml

PAPERS = Path(__file__).parent / "papers"
FAMILIES = ("feddyn", "pfl", "moml", "fedbio", "comm_fedbio", "fedsep", "fedhen", "side", "disk", "referee", "slots")
"""First parts of the names of tables; each has a file `papers/FAMILY_tables.yaml`."""
FILE = "_tables.yaml"

NOT_RUN = "not runnable here"

ConfigDict = dict[str, Any]
"""A section of an experiment file."""

Cells = dict[str, str]
"""Published text by the heading of a method."""


@dataclass(frozen=True)
class TableRow:
    """One row of a table: a setting, the methods compared on it, and the published numbers.

    name: unique within the table, in lower case. values: its experiment file, without `algorithm`. methods: heading
    -> `algorithm` section; gains refer to the first method. published: target -> heading -> published text, such as
    "637" or "1000+"; a target is a value of `evaluation.targets`, None for the best accuracy, or the name of a reported
    number. grids: heading -> named space that was searched. remark: settings that the source leaves open. unit: unit of
    the costs: rounds of FedAvg with the same traffic, or plain rounds. after: round -> heading -> published accuracy.
    """

    name: str
    title: str
    values: ConfigDict
    methods: dict[str, ConfigDict]
    published: dict[Any, Cells] = field(default_factory=dict)
    grids: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    unit: Literal["transmissions", "rounds"] = "transmissions"
    after: dict[int, Cells] = field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        """Whether its methods learn from a stream of tasks; each method then has its own Hedge search."""
        return self.values["task"]["partition"]["kind"] == "stream"


@dataclass(frozen=True)
class PublishedTable:
    """A published table, or a study. name: includes its family, such as "feddyn/T2.3"; source: the paper."""

    name: str
    title: str
    source: str
    rows: Sequence[TableRow]


@dataclass(frozen=True)
class Case:
    """A row before its rules are applied. headings: headings of its methods, if the CSV file names them."""

    keys: ConfigDict
    published: dict[str, Cells] = field(default_factory=dict)
    headings: list[str] = field(default_factory=list)


@cache
def family_tables(family: str) -> dict[str, PublishedTable]:
    """Tables of a paper by name, in the order of its file."""
    return read_tables(PAPERS / f"{family}{FILE}")


def all_tables() -> list[PublishedTable]:
    """Tables of all papers."""
    return [table for family in FAMILIES for table in family_tables(family).values()]


@cache
def verdicts() -> Mapping[str, Mapping[str, Any]]:
    """Entries of verdicts.yaml by the names of the tables: claim, verdict, reason, results, and those of rows."""
    return read_paper(PAPERS / "verdicts.yaml")["tables"]  # type: ignore[no-any-return]


def verdict_on(table: str) -> str:
    """Verdict on a table. A table without an entry was not run."""
    return verdicts()[table]["verdict"] if table in verdicts() else NOT_RUN


def find_rows(name: str) -> tuple[PublishedTable, list[TableRow]]:
    """Finds the table FAMILY/TABLE and its rows, or the row FAMILY/TABLE/ROW. Raises UserError."""
    family, title, row_name = [*name.split("/", 2), "", ""][:3]
    if family not in FAMILIES:
        raise UserError(f"{family!r} is not a family of tables{_known(family, FAMILIES)}")
    tables = family_tables(family)
    if title not in tables:
        raise UserError(f"{name}: there is no such table{_known(title, tables)}")
    rows = [row for row in tables[title].rows if row_name in ("", row.name)]
    if not rows:
        names = [row.name for row in tables[title].rows]
        raise UserError(f"{name}: {tables[title].name} has no such line{_known(row_name, names)}")
    return tables[title], rows


def _known(name: str, names: Iterable[str]) -> str:
    return f"{nearest(name, names)} (known: {', '.join(names)})"


def read_tables(file: Path) -> dict[str, PublishedTable]:
    """Reads the tables of a paper by name, in the order of its file."""
    paper, family = read_paper(file), file.name.removesuffix(FILE)
    titles = {name: head["title"] for name, head in paper["tables"].items()}
    return {
        name: PublishedTable(f"{family}/{name}", titles[name], paper["source"], [row_of(paper, case) for case in cases])
        for name, cases in cases_of(paper, file).items()
    }


def read_paper(file: Path) -> ConfigDict:
    """Reads PAPER_tables.yaml, or the verdicts."""
    return dict(parse_yaml(file.read_text(encoding="utf-8"), lambda line: f"{file}:{line}")[0])


def cases_of(paper: ConfigDict, file: Path) -> dict[str, list[Case]]:
    """Cases of a paper by table: those of its CSV file, then those of `rows`, whose lists are all combinations."""
    printed = _printed_cases(file.with_suffix(".csv"))
    listed = {
        name: [
            Case({"table": name, **dict(zip(keys, values, strict=True))})
            for keys in head.get("rows", [])
            for values in product(*(value if isinstance(value, list) else [value] for value in keys.values()))
        ]
        for name, head in paper["tables"].items()
    }
    return {name: [*printed.get(name, []), *cases] for name, cases in listed.items()}


def _printed_cases(file: Path) -> dict[str, list[Case]]:
    """Cases of a CSV file by table."""
    cases: dict[str, list[Case]] = {}
    if not file.exists():
        return cases
    with file.open(encoding="utf-8") as text:
        reader = csv.DictReader(text)
        columns = list(reader.fieldnames or ())
        by_method = "method" in columns
        end = columns.index("method" if by_method else "target")
        for keys, lines in groupby(reader, key=lambda line: {key: line[key] for key in columns[:end]}):
            published: dict[str, Cells] = {}
            headings: list[str] = []
            for line in lines:
                if by_method:
                    headings.append(line["method"])
                cells = {column: line[column] for column in columns[end + 1 :] if line[column]}
                for column, cell in cells.items():
                    target, heading = (column, line["method"]) if by_method else (line["target"], column)
                    published.setdefault(target, {})[heading] = cell
            typed = {key: _value(text) for key, text in keys.items()} | {"table": keys["table"]}
            cases.setdefault(keys["table"], []).append(Case(typed, published, headings))
    return cases


def _value(text: str) -> Any:
    """Value of a cell: a number if it is one, otherwise the text."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


def row_of(paper: ConfigDict, case: Case) -> TableRow:
    """Returns the row of a case after all rules are applied."""
    settings: ConfigDict = {"experiment": {}, "row": {}, "published": case.published, "after": {}}
    headings = dict.fromkeys(case.headings)
    for rule in paper["rules"]:
        if not is_of_methods(rule) and fits(rule, case.keys):
            settings = _merged(settings, {key: rule[key] for key in settings if key in rule})
            headings |= {} if case.headings else dict.fromkeys(rule.get("methods", {}))
    targets = {target: None if target == "best" else _value(target) for target in settings["published"]}
    numbers = [one for one in targets.values() if isinstance(one, float)]
    fill = partial(_filled, paper, case.keys | {"targets": numbers})
    sections = {heading: _method(paper, case.keys | {"heading": heading}) for heading in headings}
    row, published = fill(settings["row"]), fill(settings["published"])
    return TableRow(
        **row | {"name": row["name"].lower()},
        values=fill(settings["experiment"]),
        methods={heading: section for heading, (section, _) in sections.items()},
        published={
            targets[target]: {heading: cell for heading, cell in cells.items() if heading in headings}
            for target, cells in published.items()
        },
        grids={heading: grid for heading, (_, grid) in sections.items() if grid},
        after={int(number): cells for number, cells in settings["after"].items()},
    )


def _method(paper: ConfigDict, case: ConfigDict) -> tuple[ConfigDict, str | None]:
    """Returns the `algorithm` section of a method, and the named space of its published grid."""
    section: ConfigDict = {}
    grid = None
    fill = partial(_filled, paper, case)
    for rule in paper["rules"]:
        case["method"] = fill(section.get("name"))
        if fits(rule, case):
            own = rule.get("methods", {}).get(case["heading"]) or {}
            section = _merged(_merged(section, own), rule.get("algorithm", {}))
            grid = rule.get("grid", grid)
    case["method"] = fill(section["name"])
    return fill(section), fill(grid)


def fits(rule: ConfigDict, case: ConfigDict) -> bool:
    """Whether a case, or a case with `heading` and `method`, matches the condition of a rule."""
    when, unless = (
        [case.get(key) in (one if isinstance(one, list) else [one]) for key, one in rule.get(part, {}).items()]
        for part in ("when", "unless")
    )
    return all(when) and not (unless and all(unless))


def is_of_methods(rule: ConfigDict) -> bool:
    """Whether the condition of a rule refers to a method."""
    return not {"heading", "method"}.isdisjoint(rule.get("when", {}) | rule.get("unless", {}))


def _filled(paper: ConfigDict, case: ConfigDict, value: Any) -> Any:
    """Replaces {key}, {key.property} and {texts.name} in all strings of a nested value."""

    def at(place: str) -> Any:
        key, _, name = place.partition(".")
        if key == "texts":
            return _filled(paper, case, paper["texts"][name])
        return paper["keys"][key][case[key]][name] if name else case[key]

    if isinstance(value, dict):
        return {key: _filled(paper, case, part) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(paper, case, part) for part in value]
    if not isinstance(value, str):
        return value
    if whole := _PLACE.fullmatch(value):
        return at(whole[1])
    return _PLACE.sub(lambda place: str(at(place[1])), value)


_PLACE = re.compile(r"\{([\w.]+)\}")


def _merged(base: ConfigDict, more: ConfigDict) -> ConfigDict:
    """Merges two sections recursively; keys in both are taken from `more`."""
    return base | {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in more.items()
    }
