"""Federated bilevel optimisation."""
