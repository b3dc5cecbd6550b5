"""Runs of one experiment: begun, resumed and recorded."""
