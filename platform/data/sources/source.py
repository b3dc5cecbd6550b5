"""The base of all data sources: a section of the experiment file that loads what it names."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset

Seed = Annotated[
    int, Field(ge=0, lt=2**63, description="draws the data; the experiment's own seed does not change them")
]


class Source(Section):
    """Where a data set comes from. Its fields are its options in the experiment file."""

    name: str = ""
    """As in the experiment file, which stamps it on."""

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's own. Their code may change, so that what they load is never cached."""
        return "." in self.name

    def files(self, root: Path) -> list[Path]:
        """The files whose change makes a cached conversion stale; empty for sources that read none.

        Raises UserError when they are missing.
        """
        return []

    @property
    def drawn(self) -> int:
        """Numbers that are drawn for it, in float64; 0 for sources that read files."""
        return 0

    def load(self, root: Path) -> Dataset:
        """Read and convert. root: the folder of the data sets."""
        raise NotImplementedError
