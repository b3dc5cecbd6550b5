"""Runs the `hedgerow` command as `python -m hedgerow`."""

import sys
from pathlib import Path

# Python puts the working directory first, so that any module in it would take the place of an installed one.
if not sys.flags.safe_path and sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]

from hedgerow.cli import main

main()
