"""MkDocs hooks: generated parts of pages, equations as MathML, and results as pages.

A line `::: PART ARGUMENT` in a page is replaced by a generated part, such as `::: algorithm feddyn`. Other
lines with `:::` belong to mkdocstrings, such as `::: hedgerow.api.run`.
"""

import ast
import logging
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

from command_pages import commands
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from readme import PACKAGES, ROOT, cell, cells, families, methods, source_file, tests
from settings_pages import experiment_file, hyperparameters, indented, paragraphs, rules
from share_table import shares
from slot_tables import slots
from tuning_tables import tuning
from verdict_pages import reproductions

from hedgerow.searchspaces.extra.table_file import all_tables
from hedgerow.searchspaces.listing import KINDS
from hedgerow.searchspaces.spaces.importing_keys import importing_keys

LOG = logging.getLogger("mkdocs.hooks")
UNDER = re.compile(r"(?:\\(arg))?\\(min|max)_(\{[^}]*\}|\\[a-z]+|\w)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def algorithm(name: str) -> str:
    """Reference of an algorithm: its source, its tests, its hyperparameters and its code."""
    file = source_file(name)
    source = (ROOT / file).read_text()
    code = indented(f"```python\n{source}```\n")
    about = paragraphs(ast.get_docstring(ast.parse(source)) or "")
    return (
        f"**`algorithm: {{name: {name}}}`**  \n{about}  \n"
        f"Tests: {cells(tests(name))}\n\n"
        f"{hyperparameters(name)}\n"
        f'??? example "The code: `{file}`"\n\n{code}\n'
    )


def index(_: str) -> str:
    """Table of all algorithms, with links to their equations."""
    rows = []
    for name, method in methods().items():
        page = page_of(name)
        link = f"[`{name}`]({page.name}#{anchor(page, name)})"
        rows.append(f"| {link} | {cell(method.what)} | {cell(method.source.rstrip('.'))} |\n")
    return "| `algorithm.name` | description | source |\n|---|---|---|\n" + "".join(rows)


def importing_keys_list() -> str:
    """List of the keys of an experiment file that may name code."""
    return ", ".join(f"`{key}`" for key in importing_keys()) + ".\n"


def choices(kind: str) -> str:
    """Table of the names that an experiment file accepts, as `hedgerow list` prints them."""
    rows = [f"| `{one.name}` | {cell(paragraphs(one.what))} |\n" for one in KINDS[kind]()]
    return "| name | description |\n|---|---|\n" + "".join(rows)


def tables(_: str) -> str:
    """Table of the published tables, with the first sentence of their source."""
    sources = {table.name: re.split(r"; |\. |\.$", table.source)[0] for table in all_tables()}
    rows = [f"| `{one.name}` | {cell(paragraphs(one.title))} | {cell(sources[one.name])} |\n" for one in all_tables()]
    return "| table | contents | source |\n|---|---|---|\n" + "".join(rows)


def references(_: str) -> str:
    """Table of the sources of all algorithms, with their keys and methods."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, method in methods().items():
        found.setdefault((keys(method.what)[-1], method.source.rstrip(".")), []).append(name)
    rows = [f"| [{key}] | {cell(source)} | {cells(names)} |\n" for (key, source), names in sorted(found.items())]
    return "| key | source | `algorithm.name` |\n|---|---|---|\n" + "".join(rows)


def keys(text: str) -> list[str]:
    """Keys of sources in a text, such as Acar2021."""
    return re.findall(r"\[([A-Z][A-Za-z]+\d{4}[a-z]?)[\],]", text)


def page_of(name: str) -> Path:
    """Page with the equations of an algorithm."""
    marker = f"::: algorithm {name}\n"
    return next(page for page in sorted((ROOT / "docs/algorithms").glob("*.md")) if marker in page.read_text() + "\n")


def anchor(page: Path, name: str) -> str:
    """Identifier of the section that contains an algorithm."""
    before = (page.read_text() + "\n").partition(f"::: algorithm {name}\n")[0]
    return re.findall(r"^## .*\{ ?#([\w-]+) ?\}$", before, re.MULTILINE)[-1]


PARTS = {
    "algorithm": algorithm,
    "algorithms": index,
    "choices": choices,
    "commands": commands,
    "experiment_file": lambda _: experiment_file(),
    "families": lambda _: families(""),
    "importing_keys": lambda _: importing_keys_list(),
    "references": references,
    "rules": lambda _: rules(),
    "shares": shares,
    "slots": slots,
    "tables": tables,
    "tuning": tuning,
    "reproductions": reproductions,
}
PART = re.compile(rf"^::: ({'|'.join(PARTS)})(?: (.*))?$", re.MULTILINE)


def mathml(found: re.Match[str]) -> str:
    """A TeX equation as MathML, which browsers render natively. Unknown TeX is logged as a warning."""
    # The variable of a minimum or maximum is placed below it.
    tex = UNDER.sub(lambda m: rf"\underset{{{m[3]}}}{{\text{{{'arg ' if m[1] else ''}{m[2]}}}}}\,", unescape(found[2]))
    tex = tex.replace("\\arg", r"\text{arg }")
    markup = convert(tex, display="block" if found[1] == "div" else "inline")
    if unknown := re.findall(r"\\\w+|<mi>&</mi>", markup):
        LOG.warning("the equation %s has unknown TeX: %s", tex, unknown)
    # Both bars of a norm have the same height.
    return markup.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')


# ---- hooks of MkDocs -------------------------------------------------------------------------------------------------


def on_startup(**_: Any) -> None:
    """Links the modules into a folder of their own, from which mkdocstrings reads them.

    The root of the repository has more than the package, and mkdocstrings needs an `__init__.py` in `platform/`.
    """
    home = ROOT / "build" / "docs-source" / "hedgerow"
    shutil.rmtree(home, ignore_errors=True)
    for path in [*ROOT.glob("*.py"), *(one for package in PACKAGES for one in (ROOT / package).rglob("*.py"))]:
        link = home / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (home / "platform" / "__init__.py").touch()


def on_files(files: Files, config: Any) -> Files:
    """Adds the results of the benchmarks, with their tables and figures, as pages."""
    results = ROOT / "benchmarks"
    for path in [results / "README.md", *results.glob("results/**/*.md"), *results.glob("results/**/*.png")]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("benchmarks/"):
        # Links to files of the repository that are not pages of the site become plain code.
        markdown = re.sub(
            r"\[([^]]+)\]\((?:\.\./(?!docs/)|results/)[\w./-]+\.(?:csv|json|py|yaml)\)", r"`\1`", markdown
        )
        markdown = markdown.replace("](../docs/", "](../")
    return PART.sub(lambda part: PARTS[part[1]]((part[2] or "").strip()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    return EQUATION.sub(mathml, html)
