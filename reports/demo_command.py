"""Body of the command `demo`: the report of a small stored search, without training."""

import tempfile
import webbrowser
import zipfile
from pathlib import Path

import click

from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.reports.page.page import render_page, write_page
from hedgerow.reports.sections.report_data import read_all

RECORDS = Path(__file__).parent / "demo.zip"
"""Records of a finished Hedge search on the digits, which docs/demo.py runs and stores."""


def show_demo(output: Path | None, browse: bool) -> CommandOutput:
    """Write the report of the stored search. browse: open it in a browser. Raises UserError."""
    output = output or Path("hedgerow-demo.html")
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(RECORDS) as archive:
            for name in archive.namelist():
                file = Path(scratch, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                if not name.endswith("/"):
                    file.write_bytes(archive.read(name))
        (folder,) = Path(scratch).iterdir()
        page = render_page(read_all([str(folder)]))
    write_page(page, output)
    page_file = output.resolve()

    def render() -> None:
        click.echo(f"demo: {page_file}")
        if browse and not webbrowser.open(page_file.as_uri()):
            click.echo("--open: there is no browser on this machine; open the file yourself", err=True)

    return CommandOutput({"report": page_file}, render)
