"""Checkpoints, copies, and files that are complete or absent."""
