"""Aggregation rules, which combine client updates.

`AGGREGATORS` maps the values of `aggregation.rule.kind` to classes; users may also give dotted paths of their own
classes.
"""

AGGREGATORS = {
    "mean": "hedgerow.algorithms.aggregators.mean:Mean",
}
