"""Checkpoints, copies of runs, and files that are complete or absent."""
