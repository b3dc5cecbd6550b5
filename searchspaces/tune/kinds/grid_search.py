"""Grid search: every combination of lists."""

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


class GridSearch(SearchKind):
    """Every combination of the grids."""

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Neither searcher nor scheduler: the configurations run to their end."""
        return None, None

    def check(self, experiment: Experiment) -> None:
        """Raises UserError for keys that are drawn."""
        for key, dimension in self.space.items():
            if dimension.form != "grid":
                raise UserError(f"search.space.{key}: kind grid takes lists only; give one, or take `kind: random`")
