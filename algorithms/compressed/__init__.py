"""Compressed communication."""
