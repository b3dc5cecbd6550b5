"""Verdict on each published table: whether its claim was seen here, and the stored results behind the verdict."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.searchspaces.extra.table_file import PAPERS

NOT_RUN = "not runnable here"


@cache
def verdicts() -> Mapping[str, Mapping[str, Any]]:
    """Entries of verdicts.yaml by the names of the tables: claim, verdict, reason, results, and those of rows."""
    file = PAPERS / "verdicts.yaml"
    values, _ = parse_yaml(file.read_text(encoding="utf-8"), lambda line: f"{file}:{line}")
    return values["tables"]


def verdict_on(table: str) -> str:
    """Verdict on a table. A table without an entry was not run."""
    return verdicts()[table]["verdict"] if table in verdicts() else NOT_RUN
