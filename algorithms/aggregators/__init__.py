"""Rules that combine the clients' updates.

`AGGREGATORS` names the classes that `aggregation.rule.kind` takes, next to dotted paths of the user's own.
"""

AGGREGATORS = {
    "mean": "hedgerow.algorithms.aggregators.mean:Mean",
}
