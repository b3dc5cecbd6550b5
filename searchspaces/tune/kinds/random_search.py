"""Random search: configurations are drawn from distributions."""

from hedgerow.searchspaces.spaces.search_section import SearchKind


class RandomSearch(SearchKind):
    """Random search: draws configurations from the distributions of the space, with the file's seed."""
