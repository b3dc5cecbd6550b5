"""The experiment file: its schema, its reader, and what is built from it."""
