"""Search spaces: the section of the file, configurations and published spaces."""

SEARCH_KINDS = {
    "hedge": "hedgerow.searchspaces.tune.kinds.hedge_search:HedgeSearch",
    "grid": "hedgerow.searchspaces.tune.kinds.plain_searches:GridSearch",
    "random": "hedgerow.searchspaces.tune.kinds.plain_searches:RandomSearch",
    "asha": "hedgerow.searchspaces.tune.kinds.halving_searches:AshaSearch",
    "hyperband": "hedgerow.searchspaces.tune.kinds.halving_searches:HyperbandSearch",
    "pbt": "hedgerow.searchspaces.tune.kinds.pbt_search:PbtSearch",
    "fedex": "hedgerow.searchspaces.tune.kinds.fedex_search:FedExSearch",
    "optuna": "hedgerow.searchspaces.tune.kinds.optuna_search:OptunaSearch",
}
"""Classes by their name under `search.kind`, as strings, so that spaces/ does not import tune/."""
