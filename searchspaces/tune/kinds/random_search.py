"""Random search: configurations drawn from distributions."""

from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


class RandomSearch(SearchKind):
    """Configurations drawn at random."""

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Neither searcher nor scheduler: the configurations, which are drawn by the file's seed, run to their end."""
        return None, None
