"""Objectives: what a client minimises in place of the task's loss.

`OBJECTIVES` names the classes that `objective.kind` takes, next to dotted paths of the user's own.
"""

OBJECTIVES = {
    "robustness": "hedgerow.algorithms.objectives.consistency:Robustness",
    "stability": "hedgerow.algorithms.objectives.consistency:Stability",
    "distillation": "hedgerow.algorithms.objectives.distilled:PlainDistillation",
    "both": "hedgerow.algorithms.objectives.distilled:DistillationRobustness",
    "simkd": "hedgerow.algorithms.objectives.feature_reuse:FeatureReuse",
    "disk": "hedgerow.algorithms.objectives.client_guide:GuidedDistillation",
    "simkd_disk": "hedgerow.algorithms.objectives.client_guide:GuidedFeatureReuse",
    "synthetic": "hedgerow.algorithms.objectives.synthetic_features:SyntheticFeatures",
}
