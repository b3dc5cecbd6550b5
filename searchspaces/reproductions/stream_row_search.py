"""A line of a table about streams: every method has its own Hedge over its published grid."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hedgerow.platform.config.loader import apply_override
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.searchspaces.reproductions.published import Table
from hedgerow.searchspaces.reproductions.row_search import told, wanted_methods
from hedgerow.searchspaces.reproductions.shared_trainings import trainings
from hedgerow.searchspaces.spaces.search_file import SearchPlan, parse_search

GAMMA = 0.1
"""Of Hedge, in every published number."""


@dataclass(frozen=True)
class StreamLine:
    """A stream, and the methods compared on it. Its name is unique within the table.

    values: its experiment file, without `algorithm`. methods: heading -> `algorithm` section. grids: heading -> the
    named space whose configurations are the experts. published: heading -> metric ("ctm", "ltm") -> what was printed,
    per cent. remark: what the source leaves open.
    """

    name: str
    title: str
    values: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    grids: dict[str, str]
    published: dict[str, dict[str, str]] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True)
class StreamPlan:
    """A method on a stream, ready to run."""

    table: Table
    line: StreamLine
    heading: str
    search: SearchPlan
    changed: list[str]

    @property
    def name(self) -> str:
        return f"{self.table.name}/{self.line.name}/{self.heading}"

    @property
    def note(self) -> dict[str, Any]:
        """What the run folder remembers, so that the table can be printed again."""
        return {"line": self.name, "changed": self.changed, "trainings": trainings(self.search)}


def plan_streams(
    table: Table,
    line: StreamLine,
    changed: Sequence[str] = (),
    methods: Sequence[str] = (),
    output: str | None = None,
) -> list[StreamPlan]:
    """One search per method of a line.

    changed: "key=value" each, applied to every method's file. methods: headings, in any case; none: all of them.
    output: folder of the runs. Raises UserError.
    """
    plans = []
    for heading in wanted_methods(table.name, list(line.methods), methods):
        name = f"{table.name}/{line.name}/{heading}"
        values: dict[str, Any] = deepcopy(line.values) | {
            "name": name.replace("/", "-").replace(" ", "-").replace("=", ""),
            "algorithm": dict(line.methods[heading]),
            "search": {"kind": "hedge", "gamma": GAMMA, "space": line.grids[heading]},
        }
        lines: Lines = {}
        for override in changed:
            apply_override(values, lines, override)
        if output:
            values["output"] = output
        plans.append(StreamPlan(table, line, heading, parse_search(values, lines, name), told(changed)))
    return plans
