"""The report as one self-contained HTML page, with style, script and charts."""

import base64
import hashlib
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hedgerow.platform.common.errors import unwritable
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.tracking.run_folder import now
from hedgerow.platform.ui.plotting import COLOURS, DARK_COLOURS
from hedgerow.reports.page.layout import sections, tiles
from hedgerow.reports.page.svg import svg
from hedgerow.reports.sections.report_data import ReportData

FOLDER = Path(__file__).parent / "template"


def render_page(data: ReportData) -> str:
    """Render the page as HTML. All texts from names and files are escaped."""
    groups, repeats = group_by_seed([run for run in data.all_runs if run.records])
    # Only style and script are not escaped.
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    light, dark = (
        "".join(f"--s{i}: {colour}; " for i, colour in enumerate(palette)) for palette in (COLOURS, DARK_COLOURS)
    )
    colours = Markup(f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    ).get_template("page.html")
    title, subtitle = _titles(data)
    return page.render(
        title=title,
        subtitle=subtitle,
        style=colours + style,
        script=script,
        script_hash=f"sha256-{digest}",
        sections=sections(data, groups),
        svg=svg,
        tiles=tiles(data, groups),
        notes=data.notes + repeats,
        version=version("hedgerow"),
        written=now().replace("T", " ")[:16],
    )


def write_page(page: str, output: Path) -> None:
    """Write a page to the file that --output names; a failed write leaves the page before. Raises UserError."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, page)
    except OSError as error:
        raise unwritable("--output", output, error) from None


def _titles(data: ReportData) -> tuple[str, str]:
    """Title, which names the table or the experiments, and subtitle, which names the folders."""
    names = list(dict.fromkeys(run.name for run in data.all_runs))
    title = data.tables[0].title if data.tables else ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    folders = [one.folder.name for one in data.recorded]
    return title, ", ".join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")
