"""Code blocks in Markdown: their text, their position, and their requirements."""

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced code block. title: its heading, such as a file name."""

    language: str
    title: str
    text: str
    line: int

    @property
    def needs(self) -> str:
        """Requirement for running the block; "" for none."""
        return self.title.removeprefix("needs ") if self.title.startswith("needs ") else ""

    @property
    def file(self) -> str:
        """Name of the file that the block contains; "" for none."""
        return self.title if re.fullmatch(r"[\w-]+\.(py|yaml)", self.title) else ""


def blocks(page: Path) -> list[Block]:
    """Code blocks of a page, in order."""
    text = page.read_text()
    return [Block(m[1], m[2] or "", m[3], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]
