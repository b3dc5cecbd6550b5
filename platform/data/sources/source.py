"""Base class of all data sources: a section of the experiment file that loads the data set that it names."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset

Seed = Annotated[int, Field(ge=0, lt=2**63, description="seed of the data; independent of the experiment's own seed")]

TestFraction = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="share of each client, or of each class if there are no clients, that is used for testing if there "
        "are no test samples",
    ),
]


class Source(Section):
    """Source of a data set. Its fields are its options in the experiment file."""

    name: str = ""
    """Name of the source in the experiment file, set by the registry."""

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own class. Its code may change, so its data are never cached."""
        return "." in self.name

    def files(self, root: Path) -> list[Path]:
        """Files whose change invalidates a cached conversion; empty for sources that read none.

        Raises UserError when they are missing.
        """
        return []

    @property
    def drawn(self) -> int:
        """Number of float64 values that are drawn at random; 0 for sources that read files."""
        return 0

    def load(self, root: Path) -> Dataset:
        """Reads and converts the data set. root: folder of the data sets."""
        raise NotImplementedError
