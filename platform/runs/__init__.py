"""Runs of one experiment: start, resume and record them."""
