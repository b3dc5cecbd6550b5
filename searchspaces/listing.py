"""Every name that an experiment file accepts, for the command `list` and the reference pages."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.platform.config.choices import Choice, algorithms, datasets, models, partitions
from hedgerow.searchspaces.reproductions.published import all_tables
from hedgerow.searchspaces.reproductions.verdicts import NOT_RUN, verdict_on
from hedgerow.searchspaces.spaces.published_spaces import NamedSpace, named_spaces


@dataclass(frozen=True)
class TableChoice(Choice):
    """A published table, with the verdict on its claim."""

    verdict: str = NOT_RUN


def spaces() -> list[Choice]:
    """Published search spaces, by the names that `search.space` accepts."""
    return [Choice(space.name, _keys(space), space.source) for space in named_spaces().values()]


def tables() -> list[Choice]:
    """Published tables, by the names that `hedgerow table` accepts."""
    return [
        TableChoice(table.name, table.title, re.split(r"; |\. |\.$", table.source)[0], verdict_on(table.name))
        for table in all_tables()
    ]


KINDS: dict[str, Callable[[], list[Choice]]] = {
    "algorithms": algorithms,
    "datasets": datasets,
    "partitions": partitions,
    "models": models,
    "spaces": spaces,
    "tables": tables,
}
"""Kinds that can be listed, with the function that returns the entries of each."""


def _keys(space: NamedSpace) -> str:
    keys = ", ".join(key.removeprefix("algorithm.") for key in space.space)
    return f"{keys} ({space.size} configurations)" if space.size else keys
