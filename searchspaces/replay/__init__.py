"""Replays of recorded searches: what another tuner would have chosen, and at which cost."""
