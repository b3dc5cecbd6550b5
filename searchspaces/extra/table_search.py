"""Plans the searches of a table row: one sweep or, for a stream, one Hedge search per method."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.config.loader import apply_override
from hedgerow.platform.config.slots_section import SLOT_SECTIONS
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.extra.shared_trainings import trainings
from hedgerow.searchspaces.extra.table_file import ConfigDict, PublishedTable, TableRow
from hedgerow.searchspaces.spaces.published_spaces import named_space
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.spaces.space import frozen, with_overrides, without_slots

HEDGE = {"kind": "hedge", "gamma": 0.1, "ahead": 20, "deploy_every": 0, "comeback": "off"}
"""Section `search` of a stream: the published gamma. Every expert runs every task. No number depends on p^t, and
experts that take turns need fewer processes if they may run ahead."""

WITHOUT_EFFECT = re.compile(r"(output|tracking|resources|search\.concurrency)[.=]")
"""Changes that cannot affect the numbers."""


@dataclass(frozen=True)
class RowSearch:
    """A validated search of a row. headings: method of each configuration."""

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
        changed = [one for one in self.changed if not WITHOUT_EFFECT.match(one)]
        note = {"line": self.name, "headings": self.headings, "changed": changed, "grid": self.grid}
        return {**note, "trainings": trainings(self.search)}


def row_searches(
    table: PublishedTable,
    row: TableRow,
    changed: Sequence[str] = (),
    methods: Sequence[str] = (),
    grid: bool = False,
    output: str | None = None,
) -> list[RowSearch]:
    """The searches over the methods of a row.

    changed: overrides "key=value" of every method's experiment. methods: headings, ignoring case; empty: all of them.
    grid: run each method with every configuration of its published grid, if there is one; a stream always does.
    output: folder of the runs. Raises UserError.
    """
    known = {heading.lower(): heading for heading in row.methods}
    for method in methods:
        if method.lower() not in known:
            raise UserError(
                f"--methods: {table.name} has no {method!r}{nearest(method, row.methods)} (its methods: "
                f"{', '.join(row.methods)})"
            )
    wanted = {known[method.lower()] for method in methods} or set(row.methods)
    headings = [heading for heading in row.methods if heading in wanted]
    if grid and row.is_stream:
        raise UserError(f"--grid: the experts of {table.name} already cover its published grids; remove the option")
    if grid and not wanted & row.grids.keys():
        raise UserError(f"--grid: no grid is published for {', '.join(headings)} on {row.title}; remove the option")
    name, values = f"{table.name}/{row.name}", row.values | ({"output": output} if output else {})
    if not row.is_stream:
        search, found = _sweep(row, values, name, headings, changed, grid)
        return [RowSearch(table, row, search, found, list(changed), grid)]
    searches = {heading: _hedge(row, values, f"{name}/{heading}", heading, changed) for heading in headings}
    return [
        RowSearch(table, row, search, [heading] * len(search.configurations), list(changed))
        for heading, search in searches.items()
    ]


def _sweep(
    row: TableRow, base: ConfigDict, name: str, headings: list[str], changed: Sequence[str], grid: bool
) -> tuple[SearchSpec, list[str]]:
    """A sweep over methods, and the method of each configuration. base: experiment file, without `algorithm`."""
    lines: Lines = {}
    configs: dict[Any, tuple[str, ConfigDict]] = {}
    first: ConfigDict = {}
    for heading in headings:
        for section in _sections(row, heading, grid):
            values = deepcopy(base) | {"name": name.replace("/", "-")} | without_slots(section)
            for override in changed:
                apply_override(values, lines, override)
            slots = {key: values.pop(key) for key in SLOT_SECTIONS if key in values}
            section = {**values["algorithm"], **slots} if slots else values["algorithm"]
            twin, _ = configs.setdefault(frozen(section), (heading, section))
            if twin != heading:
                raise UserError(
                    f"{name}: with these --set values, {heading} equals {twin}; exclude one of them with --methods"
                )
            first = first or values
    settings = first.pop("search", {})
    if not isinstance(settings, dict) or {"kind", "space"} & settings.keys():
        raise UserError("--set search: set one key of this section, such as search.concurrency=2, not kind or space")
    evaluation = first.get("evaluation")
    metric = evaluation.get("target_metric", "test_accuracy") if isinstance(evaluation, dict) else "test_accuracy"
    # A trial's position in the grid determines its method. A table keeps the protocol of its source, which selects by
    # test samples.
    space = {"algorithm": {"grid": [section for _, section in configs.values()]}}
    search = {"metric": metric, "allow_test_selection": True, **settings, "kind": "grid", "space": space}
    return parse_search(first | {"search": search}, lines, name), [heading for heading, _ in configs.values()]


def _hedge(row: TableRow, base: ConfigDict, name: str, heading: str, changed: Sequence[str]) -> SearchSpec:
    """Hedge over the published grid of one method. base: experiment file, without `algorithm`."""
    values: ConfigDict = deepcopy(base) | {
        "name": name.replace("/", "-").replace(" ", "-").replace("=", ""),
        "algorithm": dict(row.methods[heading]),
        "search": HEDGE | base.get("search", {}) | {"space": row.grids[heading]},
    }
    lines: Lines = {}
    for override in changed:
        apply_override(values, lines, override)
    return parse_search(values, lines, name)


def _sections(row: TableRow, heading: str, grid: bool) -> Iterator[ConfigDict]:
    """Section `algorithm` of each configuration of a method."""
    section = row.methods[heading]
    space = named_space(row.grids[heading]) if grid and heading in row.grids else {}
    keys = [key for key, entry in space.items() if "grid" in entry]
    for values in product(*(space[key]["grid"] for key in keys)):
        yield with_overrides({"algorithm": section}, dict(zip(keys, values, strict=True)))["algorithm"]
