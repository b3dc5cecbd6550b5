"""Federated optimisation of one model."""
