"""Searchers of Ray Tune with packages that only their kind of search imports."""
