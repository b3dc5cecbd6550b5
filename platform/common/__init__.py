"""Errors, the base of all sections, registries."""
