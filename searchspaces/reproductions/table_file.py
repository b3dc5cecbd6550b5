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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hedgerow.platform.common.section import Section
from hedgerow.platform.config.yaml_reader import parse_yaml

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
    number. grids: heading -> named space that was searched. remark: settings that the source leaves open. shows: metric
    of the curves, if it is not the accuracy or the loss. smooth: whether the source smooths its curves. unit: unit of
    the costs: rounds of FedAvg with the same traffic, or plain rounds. after: round -> heading -> published accuracy.
    draws, studies: "module:function" that draws a further figure or computes further rows. Both take the run folders of
    the methods by heading. `draws` also takes a path without suffix, and returns the files; `studies` returns
    rows: label -> heading -> cell.
    """

    name: str
    title: str
    values: ConfigDict
    methods: dict[str, ConfigDict]
    published: dict[Any, Cells] = field(default_factory=dict)
    grids: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    shows: str = ""
    smooth: bool = False
    unit: Literal["transmissions", "rounds"] = "transmissions"
    after: dict[int, Cells] = field(default_factory=dict)
    draws: str = ""
    studies: str = ""

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


class RowRule(Section):
    """Settings of the cases that match a condition. Conditions: key -> value, or list of values."""

    when: ConfigDict = Field({})
    unless: ConfigDict = Field({})
    row: ConfigDict = Field({}, description="fields of TableRow that are not settings")
    experiment: ConfigDict = Field({})
    methods: dict[str, ConfigDict | None] = Field({}, description="methods to add, or settings to override")
    algorithm: ConfigDict = Field({}, description="settings of every matching method")
    grid: str | None = Field(None, description="named space of every matching method")
    published: dict[str, Cells] = Field({})
    after: dict[str, Cells] = Field({})

    def fits(self, case: Mapping[str, Any]) -> bool:
        """Whether a case, or a case with `heading` and `method`, matches the condition."""
        matches = [_is_one_of(case.get(key), options) for key, options in self.when.items()]
        exclusions = [_is_one_of(case.get(key), options) for key, options in self.unless.items()]
        return all(matches) and not (exclusions and all(exclusions))

    @property
    def is_of_methods(self) -> bool:
        """Whether the condition refers to a method."""
        return not {"heading", "method"}.isdisjoint(self.when | self.unless)


class TableHead(Section):
    """A table. rows: cases in addition to those of the CSV file; lists in a case expand to all combinations."""

    title: str
    rows: list[ConfigDict] = Field([])


class TableFile(Section):
    """Contents of PAPER_tables.yaml. source: the paper. shared: values that the rest of the file uses as aliases."""

    source: str
    shared: Any = None
    texts: dict[str, str] = Field({})
    keys: dict[str, dict[str, ConfigDict]] = Field({})
    tables: dict[str, TableHead]
    rules: list[RowRule]


@dataclass(frozen=True)
class Case:
    """A row before its rules are applied. headings: headings of its methods, if the CSV file names them."""

    keys: ConfigDict
    published: dict[str, Cells] = field(default_factory=dict)
    headings: list[str] = field(default_factory=list)


def read_tables(family: str, file: Path) -> dict[str, PublishedTable]:
    """Reads the tables of a paper by name, in the order of its file."""
    values, _ = parse_yaml(file.read_text(encoding="utf-8"), lambda line: f"{file}:{line}")
    paper = TableFile.model_validate(values, strict=True)
    printed = _printed_cases(file.with_suffix(".csv"))
    return {
        name: PublishedTable(
            f"{family}/{name}",
            head.title,
            paper.source,
            [_row(paper, case) for case in [*printed.get(name, []), *_listed_cases(name, head)]],
        )
        for name, head in paper.tables.items()
    }


def load_function(place: str) -> Callable[..., Any]:
    """Imports the function at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _listed_cases(table: str, head: TableHead) -> list[Case]:
    return [
        Case({"table": table, **dict(zip(keys, values, strict=True))})
        for keys in head.rows
        for values in product(*(value if isinstance(value, list) else [value] for value in keys.values()))
    ]


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


def _row(paper: TableFile, case: Case) -> TableRow:
    """Returns the row of a case after all rules are applied."""
    settings: ConfigDict = {"experiment": {}, "row": {}, "published": case.published, "after": {}}
    headings = dict.fromkeys(case.headings)
    for rule in paper.rules:
        if not rule.is_of_methods and rule.fits(case.keys):
            settings = _merged(settings, rule.model_dump(include=set(settings)))
            headings |= {} if case.headings else dict.fromkeys(rule.methods)
    targets = {target: None if target == "best" else _value(target) for target in settings["published"]}
    fill = _Filler(paper, case.keys | {"targets": [one for one in targets.values() if isinstance(one, float)]})
    sections = {heading: _method(paper, case.keys | {"heading": heading}) for heading in headings}
    printed = {
        target: {heading: cell for heading, cell in cells.items() if heading in headings}
        for target, cells in fill(settings["published"]).items()
    }
    row = fill(settings["row"])
    return TableRow(
        **row | {"name": row["name"].lower()},
        values=fill(settings["experiment"]),
        methods={heading: section for heading, (section, _) in sections.items()},
        published={targets[target]: cells for target, cells in printed.items()},
        grids={heading: grid for heading, (_, grid) in sections.items() if grid},
        after={int(number): cells for number, cells in settings["after"].items()},
    )


def _method(paper: TableFile, case: ConfigDict) -> tuple[ConfigDict, str | None]:
    """Returns the `algorithm` section of a method, and the named space of its published grid."""
    section: ConfigDict = {}
    grid = None
    fill = _Filler(paper, case)
    for rule in paper.rules:
        case["method"] = fill(section.get("name"))
        if rule.fits(case):
            section = _merged(_merged(section, rule.methods.get(case["heading"]) or {}), rule.algorithm)
            grid = grid if rule.grid is None else rule.grid
    case["method"] = fill(section["name"])
    return fill(section), fill(grid) if grid else None


class _Filler:
    """Replaces {key}, {key.property} and {texts.name} in all strings of a nested value."""

    def __init__(self, paper: TableFile, case: ConfigDict):
        self.paper, self.case = paper, case

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self(part) for part in value]
        if not isinstance(value, str):
            return value
        if whole := _PLACE.fullmatch(value):
            return self._at(whole[1])
        return _PLACE.sub(lambda place: str(self._at(place[1])), value)

    def _at(self, place: str) -> Any:
        key, _, name = place.partition(".")
        if key == "texts":
            return self(self.paper.texts[name])
        return self.paper.keys[key][self.case[key]][name] if name else self.case[key]


_PLACE = re.compile(r"\{([\w.]+)\}")


def _is_one_of(value: Any, wanted: Any) -> bool:
    return value in (wanted if isinstance(wanted, list) else [wanted])


def _merged(base: ConfigDict, more: ConfigDict) -> ConfigDict:
    """Merges two sections recursively; keys in both are taken from `more`."""
    return base | {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in more.items()
    }
