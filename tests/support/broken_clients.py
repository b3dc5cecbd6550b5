"""A module of clients that fails when it is imported."""

raise RuntimeError("no credentials")
