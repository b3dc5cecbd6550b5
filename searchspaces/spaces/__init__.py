"""Search spaces: the section of the file, configurations, published spaces."""

SEARCH_KINDS = {
    "hedge": "hedgerow.searchspaces.tune.kinds.hedge_search:HedgeSearch",
    "grid": "hedgerow.searchspaces.tune.kinds.grid_search:GridSearch",
    "random": "hedgerow.searchspaces.tune.kinds.random_search:RandomSearch",
    "asha": "hedgerow.searchspaces.tune.kinds.asha_search:AshaSearch",
    "pbt": "hedgerow.searchspaces.tune.kinds.pbt_search:PbtSearch",
    "optuna": "hedgerow.searchspaces.tune.kinds.optuna_search:OptunaSearch",
}
"""The classes by the name under `search.kind`: strings, so that spaces/ imports nothing of tune/."""
