"""MkDocs hooks: generated parts of pages, equations as MathML, and results as pages.

A line `::: PART ARGUMENT` in a page is replaced by a generated part: `::: algorithm feddyn`, `::: commands`.
"""

import ast
import logging
import re
from html import unescape
from pathlib import Path
from typing import Any

from docstring_pages import commands, module, prose
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from readme import cells, methods, source_file, tests
from settings_pages import experiment_file, hyperparameters, indented
from slot_tables import slots
from tuning_tables import tuning
from verdict_pages import reproductions

ROOT = Path(__file__).parent.parent
LOG = logging.getLogger("mkdocs.hooks")
UNDER = re.compile(r"(?:\\(arg))?\\(min|max)_(\{[^}]*\}|\\[a-z]+|\w)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
PART = re.compile(r"^::: (\w+) ?(.*)$", re.MULTILINE)


def algorithm(name: str) -> str:
    """Reference of an algorithm: its source, its tests, its hyperparameters and its code."""
    file = source_file(name)
    source = (ROOT / file).read_text()
    code = indented(f"```python\n{source}```\n")
    return (
        f"**`algorithm: {{name: {name}}}`**  \n{prose(ast.get_docstring(ast.parse(source)))}  \n"
        f"Tests: {cells(tests(name))}\n\n"
        f"{hyperparameters(name)}\n"
        f'??? example "The code: `{file}`"\n\n{code}\n'
    )


def index(_: str) -> str:
    """Table of all algorithms, with links to their equations."""
    rows = []
    for name in methods():
        page = page_of(name)
        rows.append(f"| [`{name}`]({page.name}#{anchor(page, name)}) | {methods()[name].source.rstrip('.')} |\n")
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
    "slots": slots,
    "tuning": tuning,
    "reproductions": reproductions,
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
        markdown = re.sub(
            r"\[([^]]+)\]\((?:\.\./(?!docs/)|results/)[\w./-]+\.(?:csv|json|py|yaml)\)", r"`\1`", markdown
        )
        markdown = markdown.replace("](../docs/", "](../")
    return PART.sub(lambda part: PARTS[part[1]](part[2].strip()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    return EQUATION.sub(mathml, html)
