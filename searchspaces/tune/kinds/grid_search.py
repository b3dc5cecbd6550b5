"""Grid search: every combination of lists of values."""

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


class GridSearch(SearchKind):
    """Grid search: tries every combination of the listed values."""

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Returns no searcher and no scheduler: every configuration runs to completion."""
        return None, None

    def check(self, experiment: Experiment) -> None:
        """Raises UserError for keys whose values are drawn."""
        for key, dimension in self.space.items():
            if dimension.form != "grid":
                raise UserError(f"search.space.{key}: kind grid accepts only lists; use a list, or set `kind: random`")
