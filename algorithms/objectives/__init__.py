"""Objectives: losses that are added to a client's loss."""
