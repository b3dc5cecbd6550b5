"""Pictures of the README: `python docs/pictures.py` runs the examples and draws their results again.

Writes docs/digits_by_traffic.png, the comparison of four runs, and docs/terminal.svg, the end of a search's output.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

DOCS = Path(__file__).parent
RUNS = [f"examples/digits_{name}.yaml" for name in ("fedavg", "fedprox", "feddyn", "scaffold")]
SEARCH = "examples/digits_hedge.yaml"
WIDTH = 124
"""Columns of the terminal."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the SVG would fetch from the network."""


def run(command: list[str], folder: Path) -> str:
    """Output of a `hedgerow` command whose runs are stored in `folder`."""
    words = [*command, "--set", f"output={folder}", "--set", "tracking.enabled=false"]
    done = subprocess.run([sys.executable, "-m", "hedgerow", *words], capture_output=True, text=True, cwd=DOCS.parent)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def terminal(command: str, lines: list[str], file: Path) -> None:
    """Draw a command and lines of its output as a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in lines:
        console.print(Text(line.rstrip()))
    file.write_text(FONTS.sub("", console.export_svg(title="hedgerow", theme=MONOKAI)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        run(["run", *RUNS], Path(scratch))
        (figure,) = Path(scratch).rglob("comparison/curves_by_traffic.png")
        shutil.copy(figure, DOCS / "digits_by_traffic.png")
        output = run(["search", SEARCH], Path(scratch)).splitlines()
    # The lines that name the folder are left out.
    first = next(number for number, line in enumerate(output) if "round 90/100" in line)
    last = next(number for number, line in enumerate(output) if line.startswith("Test score"))
    terminal(f"hedgerow search {SEARCH}", output[first : last + 1], DOCS / "terminal.svg")
