"""From a line of a table to the sweep that runs it."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.config.loader import apply_override
from hedgerow.platform.config.old_spellings import SLOTS
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.reproductions.published import Line, Table
from hedgerow.searchspaces.reproductions.shared_trainings import trainings
from hedgerow.searchspaces.spaces.published_spaces import named_space
from hedgerow.searchspaces.spaces.search_file import SearchPlan, parse_search
from hedgerow.searchspaces.spaces.space import frozen, with_overrides, without_slots


@dataclass(frozen=True)
class LinePlan:
    """A line, ready to run. headings: the method of each configuration of the search."""

    table: Table
    line: Line
    search: SearchPlan
    headings: list[str]
    changed: list[str]
    grid: bool

    @property
    def name(self) -> str:
        return f"{self.table.name}/{self.line.name}"

    @property
    def note(self) -> dict[str, Any]:
        """What the run folder remembers, so that the table can be printed again."""
        return {
            "line": self.name,
            "headings": self.headings,
            "changed": self.changed,
            "grid": self.grid,
            "trainings": trainings(self.search),
        }


def plan_line(
    table: Table,
    line: Line,
    changed: Sequence[str] = (),
    methods: Sequence[str] = (),
    grid: bool = False,
    output: str | None = None,
) -> LinePlan:
    """The sweep over the methods of a line.

    changed: "key=value" each, applied to every method's experiment. methods: headings, in any case; none: all of them.
    grid: each method with every configuration of its published grid, if there is one. output: folder of the runs.
    Raises UserError.
    """
    name = f"{table.name}/{line.name}"
    lines: Lines = {}
    found: dict[Any, tuple[str, dict[str, Any]]] = {}
    base: dict[str, Any] = {}
    wanted = wanted_methods(table.name, list(line.methods), methods)
    if grid and not any(heading in line.grids for heading in wanted):
        raise UserError(f"--grid: no grid is published for {', '.join(wanted)} on {line.title}; leave the option out")
    for heading in wanted:
        for section in _sections(line, heading, grid):
            values = deepcopy(line.values) | {"name": name.replace("/", "-")} | without_slots(section)
            for override in changed:
                apply_override(values, lines, override)
            slots = {key: values.pop(key) for key in SLOTS if key in values}
            base = base or values
            _note(found, heading, {**values["algorithm"], **slots} if slots else values["algorithm"], name)
    if output:
        base["output"] = output
    given = base.pop("search", {})
    if not isinstance(given, dict):
        raise UserError("--set search: it is a section; set one of its keys, such as search.concurrency=2")
    evaluation = base.get("evaluation")
    metric = evaluation.get("target_metric", "test_accuracy") if isinstance(evaluation, dict) else "test_accuracy"
    space = {"algorithm": {"grid": [section for _, section in found.values()]}}
    # Which method a trial belongs to is told by its place in the grid.
    search = {"metric": metric, **given, "kind": "grid", "space": space}
    plan = parse_search(base | {"search": search}, lines, name)
    assert len(plan.configurations) == len(found)
    return LinePlan(table, line, plan, [heading for heading, _ in found.values()], told(changed), grid)


def _note(found: dict[Any, tuple[str, dict[str, Any]]], heading: str, section: Any, name: str) -> None:
    """Add a configuration of a method, unless it is there; `--set` may have made two alike. Raises UserError."""
    twin, _ = found.setdefault(frozen(section), (heading, section))
    if twin != heading:
        raise UserError(f"{name}: with these --set, {heading} is the same as {twin}; leave one out with --methods")


def told(changed: Sequence[str]) -> list[str]:
    """Those of the changes that may change the numbers."""
    elsewhere = ("output", "tracking", "resources")
    return [one for one in changed if one.partition("=")[0].partition(".")[0] not in elsewhere]


def wanted_methods(table: str, headings: list[str], methods: Sequence[str]) -> list[str]:
    """The headings that are named, in any case; all of them where none is. Raises UserError."""
    known = {heading.lower(): heading for heading in headings}
    for method in methods:
        if method.lower() not in known:
            raise UserError(
                f"--methods: {table} has no {method!r}{nearest(method, headings)} (its methods: {', '.join(headings)})"
            )
    chosen = {known[method.lower()] for method in methods}
    return [heading for heading in headings if not chosen or heading in chosen]


def _sections(line: Line, heading: str, grid: bool) -> list[dict[str, Any]]:
    section = line.methods[heading]
    if not grid or heading not in line.grids:
        return [section]
    space = named_space(line.grids[heading])
    keys = [key for key, entry in space.items() if "grid" in entry]
    return [
        with_overrides({"algorithm": section}, dict(zip(keys, values, strict=True)))["algorithm"]
        for values in product(*(space[key]["grid"] for key in keys))
    ]
