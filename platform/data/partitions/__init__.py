"""Partition schemes by name."""
