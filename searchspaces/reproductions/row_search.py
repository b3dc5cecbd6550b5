"""Plans the searches of a table row: one sweep or, for a stream, one Hedge search per method."""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.config.loader import apply_override
from hedgerow.platform.config.slots_section import SLOT_SECTIONS
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.reproductions.shared_trainings import trainings
from hedgerow.searchspaces.reproductions.table_file import ConfigDict, PublishedTable, TableRow
from hedgerow.searchspaces.spaces.published_spaces import named_space
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.spaces.space import frozen, with_overrides, without_slots

GAMMA = 0.1
"""Gamma of Hedge in all published results on streams."""


AHEAD = 20
"""Rounds that an expert of a table may be ahead of another."""


@dataclass(frozen=True)
class RowSearch:
    """A validated search of a row. headings: method of each configuration; for a stream, the one method of all."""

    table: PublishedTable
    row: TableRow
    search: SearchSpec
    headings: list[str]
    changed: list[str]
    grid: bool = False

    @property
    def name(self) -> str:
        name = f"{self.table.name}/{self.row.name}"
        return f"{name}/{self.headings[0]}" if self.row.is_stream else name

    @property
    def note(self) -> dict[str, Any]:
        """Entries of the run folder from which the table can be printed again."""
        sweep = {} if self.row.is_stream else {"headings": self.headings, "grid": self.grid}
        return {"line": self.name, "changed": self.changed, "trainings": trainings(self.search), **sweep}


def plan_row(
    table: PublishedTable,
    row: TableRow,
    changed: Sequence[str] = (),
    methods: Sequence[str] = (),
    grid: bool = False,
    output: str | None = None,
) -> list[RowSearch]:
    """Plan the searches over the methods of a row.

    changed: overrides "key=value" of every method's experiment. methods: headings, ignoring case; empty: all of them.
    grid: run each method with every configuration of its published grid, if there is one; a stream always does.
    output: folder of the runs. Raises UserError.
    """
    headings = _wanted_methods(table.name, list(row.methods), methods)
    if row.is_stream:
        if grid:
            raise UserError(f"--grid: the experts of {table.name} already cover its published grids; remove the option")
        return [_hedge_search(table, row, heading, changed, output) for heading in headings]
    return [_sweep(table, row, headings, changed, grid, output)]


def _sweep(
    table: PublishedTable, row: TableRow, wanted: list[str], changed: Sequence[str], grid: bool, output: str | None
) -> RowSearch:
    name = f"{table.name}/{row.name}"
    lines: Lines = {}
    configs: dict[Any, tuple[str, ConfigDict]] = {}
    base: ConfigDict = {}
    if grid and not any(heading in row.grids for heading in wanted):
        raise UserError(f"--grid: no grid is published for {', '.join(wanted)} on {row.title}; remove the option")
    for heading in wanted:
        for section in _sections(row, heading, grid):
            values = deepcopy(row.values) | {"name": name.replace("/", "-")} | without_slots(section)
            for override in changed:
                apply_override(values, lines, override)
            slots = {key: values.pop(key) for key in SLOT_SECTIONS if key in values}
            base = base or values
            _note(configs, heading, {**values["algorithm"], **slots} if slots else values["algorithm"], name)
    if output:
        base["output"] = output
    settings = base.pop("search", {})
    if not isinstance(settings, dict):
        raise UserError("--set search: `search` is a section; set one of its keys, such as search.concurrency=2")
    evaluation = base.get("evaluation")
    metric = evaluation.get("target_metric", "test_accuracy") if isinstance(evaluation, dict) else "test_accuracy"
    space = {"algorithm": {"grid": [section for _, section in configs.values()]}}
    # A trial's position in the grid determines its method.
    # A table keeps the protocol of its source, which selects by test samples.
    search = {"metric": metric, "allow_test_selection": True, **settings, "kind": "grid", "space": space}
    spec = parse_search(base | {"search": search}, lines, name)
    assert len(spec.configurations) == len(configs)
    return RowSearch(table, row, spec, [heading for heading, _ in configs.values()], _reported(changed), grid)


def _hedge_search(
    table: PublishedTable, row: TableRow, heading: str, changed: Sequence[str], output: str | None
) -> RowSearch:
    name = f"{table.name}/{row.name}/{heading}"
    values: ConfigDict = deepcopy(row.values) | {
        "name": name.replace("/", "-").replace(" ", "-").replace("=", ""),
        "algorithm": dict(row.methods[heading]),
        "search": {
            # No number depends on p^t, and experts that take turns need fewer processes if they may run ahead.
            **{"kind": "hedge", "gamma": GAMMA, "ahead": AHEAD, "deploy_every": 0},
            **row.values.get("search", {}),
            "space": row.grids[heading],
        },
    }
    lines: Lines = {}
    for override in changed:
        apply_override(values, lines, override)
    if output:
        values["output"] = output
    return RowSearch(table, row, parse_search(values, lines, name), [heading], _reported(changed))


def _note(found: dict[Any, tuple[str, ConfigDict]], heading: str, section: Any, name: str) -> None:
    """Add a configuration of a method unless it is present. Raises UserError if `--set` made two methods equal."""
    twin, _ = found.setdefault(frozen(section), (heading, section))
    if twin != heading:
        raise UserError(f"{name}: with these --set values, {heading} equals {twin}; exclude one of them with --methods")


def _reported(changed: Sequence[str]) -> list[str]:
    """Changes that may affect the numbers."""
    elsewhere = re.compile(r"(output|tracking|resources|search\.concurrency)[.=]")
    return [one for one in changed if not elsewhere.match(one)]


def _wanted_methods(table: str, headings: list[str], methods: Sequence[str]) -> list[str]:
    """Headings that `methods` names, ignoring case; all of them if it is empty. Raises UserError."""
    known = {heading.lower(): heading for heading in headings}
    for method in methods:
        if method.lower() not in known:
            raise UserError(
                f"--methods: {table} has no {method!r}{nearest(method, headings)} (its methods: {', '.join(headings)})"
            )
    selection = {known[method.lower()] for method in methods}
    return [heading for heading in headings if not selection or heading in selection]


def _sections(row: TableRow, heading: str, grid: bool) -> list[ConfigDict]:
    section = row.methods[heading]
    if not grid or heading not in row.grids:
        return [section]
    space = named_space(row.grids[heading])
    keys = [key for key, entry in space.items() if "grid" in entry]
    return [
        with_overrides({"algorithm": section}, dict(zip(keys, values, strict=True)))["algorithm"]
        for values in product(*(space[key]["grid"] for key in keys))
    ]
