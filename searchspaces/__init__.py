"""Hyperparameter search: Hedge over experts, sweeps, and the spaces they search."""
