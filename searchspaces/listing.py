"""Every name that an experiment file accepts, for the command `list` and the reference pages."""

from collections.abc import Callable

from hedgerow.platform.config import registries
from hedgerow.platform.config.choices import Choice, algorithms, choices_of
from hedgerow.searchspaces.spaces.published_spaces import NamedSpace, named_spaces


def spaces() -> list[Choice]:
    """Published search spaces, by the names that `search.space` accepts."""
    return [Choice(space.name, _keys(space), space.source) for space in named_spaces().values()]


KINDS: dict[str, Callable[[], list[Choice]]] = {
    "algorithms": algorithms,
    "datasets": lambda: choices_of(registries.datasets),
    "partitions": lambda: choices_of(registries.partitions),
    "models": lambda: choices_of(registries.models),
    "spaces": spaces,
}
"""Kinds that can be listed, with the function that returns the entries of each."""


def _keys(space: NamedSpace) -> str:
    keys = ", ".join(key.removeprefix("algorithm.") for key in space.space)
    return f"{keys} ({space.size} configurations)" if space.size else keys
