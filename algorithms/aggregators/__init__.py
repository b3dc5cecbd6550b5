"""Aggregation rules, which combine client updates.

`AGGREGATORS` maps the values of `aggregation.rule.kind` to classes; users may also give dotted paths of their own
classes.
"""

AGGREGATORS = {
    "mean": "hedgerow.algorithms.aggregators.mean:Mean",
    "median": "hedgerow.algorithms.aggregators.median:Median",
    "trimmed_mean": "hedgerow.algorithms.aggregators.trimmed_mean:TrimmedMean",
    "krum": "hedgerow.algorithms.aggregators.krum:Krum",
    "multi_krum": "hedgerow.algorithms.aggregators.krum:MultiKrum",
    "geometric_median": "hedgerow.algorithms.aggregators.geometric_median:GeometricMedian",
    "centered_clipping": "hedgerow.algorithms.aggregators.centered_clipping:CenteredClipping",
}
