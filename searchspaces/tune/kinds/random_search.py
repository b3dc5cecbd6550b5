"""Random search: configurations are drawn from distributions."""

from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


class RandomSearch(SearchKind):
    """Random search: draws configurations from the distributions of the space."""

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Returns no searcher and no scheduler: the configurations, drawn with the file's seed, run to completion."""
        return None, None
