"""Asynchronous rounds on the simulated clock: events and stale updates."""
