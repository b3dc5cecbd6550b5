"""Losses and metrics by the names that `task.loss` and `task.metrics` take."""

LOSSES = {
    "cross_entropy": "hedgerow.algorithms.core.measures:cross_entropy",
    "mse": "hedgerow.algorithms.measures.regression:mse",
    "mae": "hedgerow.algorithms.measures.regression:mae",
    "bce": "hedgerow.algorithms.measures.multi_label:bce",
    "next_token": "hedgerow.algorithms.measures.language:next_token",
}

METRICS = {
    "accuracy": "hedgerow.algorithms.core.measures:accuracy",
    "mse": "hedgerow.algorithms.measures.regression:mse",
    "rmse": "hedgerow.algorithms.measures.regression:rmse",
    "mae": "hedgerow.algorithms.measures.regression:mae",
    "f1": "hedgerow.algorithms.measures.multi_label:f1",
    "label_accuracy": "hedgerow.algorithms.measures.multi_label:label_accuracy",
    "perplexity": "hedgerow.algorithms.measures.language:perplexity",
    "token_accuracy": "hedgerow.algorithms.measures.language:token_accuracy",
    "macro_f1": "hedgerow.algorithms.measures.all_samples:macro_f1",
    "auroc": "hedgerow.algorithms.measures.all_samples:auroc",
    "calibration_error": "hedgerow.algorithms.measures.all_samples:calibration_error",
}

USUAL = {
    "cross_entropy": ("accuracy",),
    "mse": ("mse", "mae"),
    "mae": ("mae", "mse"),
    "bce": ("f1", "label_accuracy"),
    "next_token": ("perplexity", "token_accuracy"),
}
"""Loss -> metrics of a file that names none; the first one is the main metric. A user's own loss has none."""
