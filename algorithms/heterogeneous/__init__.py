"""Clients with models of different sizes."""
