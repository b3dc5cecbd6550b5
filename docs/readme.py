"""The generated part of the README: the table of algorithms. `python docs/readme.py` writes it anew."""

import re
from functools import cache
from pathlib import Path

from hedgerow.algorithms import ALGORITHMS
from hedgerow.platform.config.choices import Choice, algorithms

README = Path(__file__).parent.parent / "README.md"
TABLE = re.compile(r"(?<=<!-- algorithms: written by docs/readme.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


@cache
def methods() -> dict[str, Choice]:
    """The algorithms by name, in the order of their registry."""
    return {choice.name: choice for choice in algorithms() if choice.name in ALGORITHMS}


def source_file(name: str) -> str:
    """Path of an algorithm's file, from the root of the repository."""
    return f"{ALGORITHMS[name].partition(':')[0].removeprefix('hedgerow.').replace('.', '/')}.py"


def tests(name: str) -> list[str]:
    """Tests of an algorithm, from the root of the repository: those of its family that name it, or that import it."""
    module, kind = ALGORITHMS[name].split(":")
    imported = re.compile(rf"from {re.escape(module)} import [^\n]*\b{kind}\b")
    named = re.compile(rf"{imported.pattern}|\"{name}\"")
    root = README.parent / "tests"
    family = root / Path(source_file(name)).parent
    files = _matches(sorted(family.glob("test_*.py")), named)
    files = files or _matches(sorted((root / "algorithms").rglob("test_*.py")), imported)
    return [file.relative_to(README.parent).as_posix() for file in files]


def _matches(files: list[Path], pattern: re.Pattern[str]) -> list[Path]:
    return [file for file in files if pattern.search(file.read_text())]


def cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def cells(files: list[str]) -> str:
    """Names of files, as code."""
    return ", ".join(f"`{file}`" for file in files)


def table() -> str:
    """One line per algorithm: its name, its source, its description, and its tests."""
    lines = [
        f"| `{name}` | {cell(method.source).rstrip('.')} | {cell(method.what)} | {cells(tests(name))} |\n"
        for name, method in methods().items()
    ]
    return "".join(["| `algorithm.name` | method and source | description | tests |\n|---|---|---|---|\n", *lines])


def written() -> str:
    """The README with its table as the registry has it."""
    return TABLE.sub(lambda _: table(), README.read_text())


if __name__ == "__main__":
    README.write_text(written())
