"""Runs the `hedgerow` command as `python -m hedgerow`."""

from hedgerow.cli import main

main()
