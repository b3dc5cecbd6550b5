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


def tests(name: str) -> str:
    """Folder of an algorithm's tests, from the root of the repository."""
    return f"tests/{Path(source_file(name)).parent.as_posix()}"


def cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def table() -> str:
    """One line per algorithm: its name, its source, its description, and its tests."""
    lines = [
        f"| `{name}` | {cell(method.source).rstrip('.')} | {cell(method.what)} | `{tests(name)}` |\n"
        for name, method in methods().items()
    ]
    return "".join(["| `algorithm.name` | method and source | description | tests |\n|---|---|---|---|\n", *lines])


def written() -> str:
    """The README with its table as the registry has it."""
    return TABLE.sub(lambda _: table(), README.read_text())


if __name__ == "__main__":
    README.write_text(written())
