"""Running and resuming experiments."""
