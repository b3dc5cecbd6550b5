"""Pictures of the README and the documentation: `python docs/pictures.py` runs the examples and draws their results.

Writes docs/digits_by_traffic.png, the comparison of four runs, docs/terminal.svg, the end of a search's output, and
docs/report.png, the report on three methods with three seeds each. The last one needs Chromium.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.search_table import closing_tables

DOCS = Path(__file__).parent
RUNS = [f"examples/digits_{name}.yaml" for name in ("fedavg", "fedprox", "feddyn", "scaffold")]
SEARCH = "examples/digits_hedge.yaml"
SEEDS = ["--seeds", "0,1,2", "--set", "rounds=60"]
WIDTH = 140
"""Columns of the terminal."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the SVG would fetch from the network."""


def hedgerow(*words: object) -> str:
    """Output of a command."""
    command = [sys.executable, "-m", "hedgerow", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=DOCS.parent)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def run(command: list[str], folder: Path) -> str:
    """Output of a command whose runs are stored in `folder`."""
    return hedgerow(*command, "--set", f"output={folder}", "--set", "tracking.enabled=false")


def screenshot(page: Path, file: Path) -> None:
    """Draw the top of a page."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        # Chromium has no sandbox for root.
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=os.geteuid() != 0)
        view = browser.new_page(viewport={"width": 1240, "height": 1165})
        view.goto(page.as_uri())
        view.screenshot(path=file)
        browser.close()


def tables(folder: Path) -> list[str]:
    """Tables and sentences that close a search, on a terminal with WIDTH columns."""
    finished, out = FinishedSearch.read(RunFolder(folder)), io.StringIO()
    console = Console(file=out, width=WIDTH)
    closing_tables(finished.rows, finished.summary, finished.best_rows, console, winner=finished.winner_name)
    return out.getvalue().splitlines()


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
        seeded, page = Path(scratch) / "seeded", Path(scratch) / "report.html"
        run(["run", *(file for file in RUNS if "prox" not in file), *SEEDS], seeded)
        hedgerow("report", *sorted(seeded.glob("digits-*")), "-o", page, "--no-mlflow")
        screenshot(page, DOCS / "report.png")
        (search,) = Path(scratch).glob("digits-hedge-*")
        progress = [line for line in output if re.search("round (90|100)/100", line)]
        end = [line for line in output if line.startswith(("Mean accuracy", "Work:", "Validation samples:", "Winner:"))]
        terminal(f"hedgerow search {SEARCH}", [*progress, *tables(search), *end], DOCS / "terminal.svg")
