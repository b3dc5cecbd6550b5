"""Hedge: weights, rounds and the Ray Tune scheduler."""
