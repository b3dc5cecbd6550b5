"""The blocks of code in Markdown: which they are, where they stand, and what they need."""

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block. title: what stands above it, such as the name of the file that it is."""

    language: str
    title: str
    text: str
    line: int

    @property
    def needs(self) -> str:
        """What it cannot be run without; "" for nothing."""
        return self.title.removeprefix("needs ") if self.title.startswith("needs ") else ""

    @property
    def file(self) -> str:
        """The name of the file that it is, if it is one."""
        return self.title if re.fullmatch(r"[\w-]+\.(py|yaml)", self.title) else ""


def blocks(page: Path) -> list[Block]:
    """Those of a page, in order."""
    text = page.read_text()
    return [Block(m[1], m[2] or "", m[3], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]
