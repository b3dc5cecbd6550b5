"""Random and grid search: every configuration of the file runs to completion."""

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.searchspaces.spaces.search_section import SearchKind, SearchSetup


class RandomSearch(SearchKind):
    """Random search: draws configurations from the distributions of the space."""

    def build(self, setup: SearchSetup) -> tuple[None, None]:
        """Returns no searcher and no scheduler: the configurations, drawn with the file's seed, run to completion."""
        return None, None


class GridSearch(RandomSearch):
    """Grid search: tries every combination of the listed values."""

    def check(self, experiment: Experiment) -> None:
        """Raises UserError for keys whose values are drawn."""
        for key, dimension in self.space.items():
            if dimension.form != "grid":
                raise UserError(f"search.space.{key}: kind grid accepts only lists; use a list, or set `kind: random`")
