"""Asynchronous rounds on the simulated clock: events, stale updates and compatibility."""
