"""Hedgerow on clusters: job submission, dry runs of placement, and files that set clusters up."""
