"""From what was read to one page that needs nothing else: style, script and pictures are in it."""

import base64
import hashlib
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hedgerow.platform.tracking.run_folder import now
from hedgerow.reports.analysis.run_reader import Material
from hedgerow.reports.analysis.seed_groups import grouped
from hedgerow.reports.page.layout import sections, tiles

FOLDER = Path(__file__).parent / "template"


def render(material: Material) -> str:
    """The page, as HTML. Whatever names and files say is escaped."""
    groups, repeated = grouped([run for run in material.all_runs if run.records])
    # The template's own texts, the only ones that are taken as they are.
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    ).get_template("page.html")
    title, subtitle = _titles(material)
    return page.render(
        title=title,
        subtitle=subtitle,
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
        sections=sections(material, groups),
        tiles=tiles(material, groups),
        notes=material.notes + repeated,
        version=version("hedgerow"),
        written=now().replace("T", " ")[:16],
    )


def _titles(material: Material) -> tuple[str, str]:
    """What the page is about: the table, or the names of experiments; and its folders."""
    names = list(dict.fromkeys(run.name for run in material.all_runs))
    title = material.tables[0].title if material.tables else ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    folders = [one.folder.name for one in material.recorded]
    return title, ", ".join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")
