"""Experiment files: schema, reader, error messages, and registries of the classes that they can name."""
