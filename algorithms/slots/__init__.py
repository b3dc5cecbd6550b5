"""Slots around an algorithm: aggregation, transforms and an objective."""
