"""Objectives: losses that clients minimise instead of the task's loss.

`OBJECTIVES` maps the values of `objective.kind` to classes; users may also give dotted paths of their own classes.
"""

OBJECTIVES = {
    "robustness": "hedgerow.algorithms.objectives.consistency:Robustness",
    "stability": "hedgerow.algorithms.objectives.consistency:Stability",
    "distillation": "hedgerow.algorithms.objectives.distilled:PlainDistillation",
    "both": "hedgerow.algorithms.objectives.distilled:DistillationRobustness",
    "simkd": "hedgerow.algorithms.objectives.feature_reuse:FeatureReuse",
    "disk": "hedgerow.algorithms.objectives.client_guide:GuidedDistillation",
    "simkd_disk": "hedgerow.algorithms.objectives.client_guide:GuidedFeatureReuse",
    "synthetic": "hedgerow.algorithms.objectives.synthetic_samples:SyntheticFeatures",
}
