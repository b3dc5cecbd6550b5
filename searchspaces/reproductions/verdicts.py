"""Verdict on each published table: whether its claim was seen here, and the stored results behind the verdict."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, model_validator

from hedgerow.platform.common.section import Section
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.searchspaces.reproductions.published import all_tables
from hedgerow.searchspaces.reproductions.table_file import PublishedTable

Verdict = Literal[
    "reproduced",
    "direction reproduced at reduced scale",
    "not reproduced",
    "not runnable here",
    "no published claim",
]

NOT_RUN: Verdict = "not runnable here"
NO_CLAIM: Verdict = "no published claim"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

FILE = Path(__file__).parent / "papers" / "verdicts.yaml"


class LineVerdict(Section):
    """Verdict on a table, or on one of its rows, with the runs behind it.

    results: stored results, relative to `benchmarks/results` in the repository.
    """

    verdict: Verdict
    reason: str = Field("", description="what was seen, what was tried, or why nothing could be run")
    results: list[str] = Field([])

    @model_validator(mode="after")
    def _has_runs(self) -> "LineVerdict":
        if self.verdict not in (NOT_RUN, NO_CLAIM) and not self.results:
            raise ValueError(f"the verdict `{self.verdict}` needs a stored result in `results`")
        if self.verdict in (NOT_RUN, "not reproduced") and not self.reason:
            raise ValueError(f"the verdict `{self.verdict}` needs a `reason`")
        return self


class TableVerdict(LineVerdict):
    """Verdict on a table. lines: verdicts on its rows; a row without one was not run."""

    claim: str = Field(description="the source's claim in one sentence")
    lines: dict[str, LineVerdict] = Field({})
    command: str = Field("", description="command that runs the table; empty: `hedgerow table NAME`")


class VerdictFile(Section):
    """Contents of verdicts.yaml."""

    tables: dict[str, TableVerdict]


@cache
def verdicts() -> Mapping[str, TableVerdict]:
    """Verdicts by the names of the tables."""
    values, _ = parse_yaml(FILE.read_text(encoding="utf-8"), lambda line: f"{FILE}:{line}")
    return VerdictFile.model_validate(values, strict=True).tables


def verdict_on(table: str) -> Verdict:
    """Verdict on a table. A table without an entry was not run."""
    return verdicts()[table].verdict if table in verdicts() else NOT_RUN


def lines_not_run(table: PublishedTable) -> list[str]:
    """Names of the rows of a table without a run of their own."""
    lines = verdicts()[table.name].lines
    return [row.name for row in table.rows if row.name not in lines or lines[row.name].verdict == NOT_RUN]


def tables_by_family(families: list[str]) -> list[PublishedTable]:
    """Tables of some families, in the order of their files."""
    return [table for table in all_tables() if table.name.partition("/")[0] in families]
