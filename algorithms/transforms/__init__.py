"""Transforms of client updates, and compressed vectors."""
