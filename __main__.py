"""`python -m hedgerow` is the `hedgerow` command."""

from hedgerow.platform.cli import main

main()
