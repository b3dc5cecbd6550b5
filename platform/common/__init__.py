"""Errors, the base of all sections, and registries."""
