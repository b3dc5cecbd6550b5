"""MkDocs hooks: generated parts of pages, equations as MathML, and results as pages.

A line `::: PART ARGUMENT` in a page is replaced by a generated part: `::: algorithm feddyn`, `::: commands`.
"""

import ast
import logging
import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from docstring_pages import commands, module, prose
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from settings_pages import experiment_file, hyperparameters, indented

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger("mkdocs.hooks")
UNDER = re.compile(r"(?:\\(arg))?\\(min|max)_(\{[^}]*\}|\\[a-z]+|\w)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
PART = re.compile(r"^::: (\w+) ?(.*)$", re.MULTILINE)


class Method(NamedTuple):
    """A row of the README's table of methods."""

    method: str
    tests: list[str]


@cache
def methods() -> dict[str, Method]:
    """`algorithm.name` -> its row in the README."""
    rows = {}
    for line in (ROOT / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and line.startswith("| `") and "tests/" in cells[3]:
            for name in re.findall(r"`(\w+)`", cells[0]):
                rows[name] = Method(cells[1], re.findall(r"`(tests/[\w/]+\.py)`", cells[3]))
    return rows


def algorithm(name: str) -> str:
    """Reference of an algorithm: its source, its tests, its hyperparameters and its code."""
    from hedgerow.algorithms import ALGORITHMS

    file = f"{ALGORITHMS[name].partition(':')[0].removeprefix('hedgerow.').replace('.', '/')}.py"
    source, tests = (ROOT / file).read_text(), ", ".join(f"`{test}`" for test in methods()[name].tests)
    code = indented(f"```python\n{source}```\n")
    return (
        f"**`algorithm: {{name: {name}}}`**  \n{prose(ast.get_docstring(ast.parse(source)))}  \nTests: {tests}\n\n"
        f"{hyperparameters(name)}\n"
        f'??? example "The code: `{file}`"\n\n{code}\n'
    )


def index(_: str) -> str:
    """Table of all algorithms, with links to their equations."""
    rows = []
    for name in methods():
        page = page_of(name)
        rows.append(f"| [`{name}`]({page.name}#{anchor(page, name)}) | {methods()[name].method} |\n")
    return "| `algorithm.name` | method |\n|---|---|\n" + "".join(rows)


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
    "commands": lambda _: commands(),
    "module": lambda argument: module(*argument.split()),
    "experiment_file": lambda _: experiment_file(),
}


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


def on_files(files: Files, config: Any) -> Files:
    """Adds the results of the benchmarks, with their tables and figures, as pages."""
    results = ROOT / "benchmarks"
    for path in [results / "README.md", *results.glob("results/**/*.md"), *results.glob("results/**/*.png")]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("benchmarks/"):
        # Links to files of the repository that are not pages of the site become plain code.
        markdown = re.sub(r"\[([^]]+)\]\((?:\.\./(?!docs/)|results/)[\w./-]+\.(?:csv|json|py|yaml)\)", r"`\1`", markdown)
        markdown = markdown.replace("](../docs/", "](../")
    return PART.sub(lambda part: PARTS[part[1]](part[2].strip()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    return EQUATION.sub(mathml, html)
