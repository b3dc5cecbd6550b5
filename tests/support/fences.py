"""Code blocks in Markdown: their text, their position, and their requirements."""

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r'^(?:<!-- needs ([^>]*) -->\n)?```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced code block.

    needs: requirement for running it, from a comment in the line before; "" for none. title: its heading, such as a
    file name. line: of its first line in the page.
    """

    needs: str
    language: str
    title: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """Name of the file that the block contains; "" for none."""
        return self.title if re.fullmatch(r"[\w-]+\.(py|yaml)", self.title) else ""


def blocks(page: Path) -> list[Block]:
    """Code blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(m[1] or "", m[2], m[3] or "", m[4], text[: m.start()].count("\n") + 1 + bool(m[1]))
        for m in FENCE.finditer(text)
    ]
