"""Data sets by name, and their loaders."""
