"""Import path and own code of a process, for the processes that work for it."""

import sys
from dataclasses import dataclass
from typing import Self

from hedgerow.algorithms.core.own_code import GIVEN_DATA, own_code
from hedgerow.platform.actors.small_messages import pack_code, unpack
from hedgerow.platform.config.experiment import Experiment


@dataclass(frozen=True)
class Surroundings:
    """Import path, folders and modules of the user's own code, and the passed classes and functions of a run."""

    path: tuple[str, ...]
    folders: tuple[str, ...]
    modules: tuple[str, ...]
    given: bytes

    @classmethod
    def here(cls, experiment: Experiment) -> Self:
        """Surroundings of this process for the others of a run."""
        own, text = own_code(), experiment.model_dump_json()
        # Processes receive the data set itself.
        code = {name: one for name, one in own.given.items() if name in text and not name.startswith(GIVEN_DATA)}
        return cls(tuple(sys.path), own.folders, own.modules, pack_code(code))

    def install(self) -> None:
        """Make the same modules importable and allowed in this process."""
        sys.path += [entry for entry in self.path if entry not in sys.path]
        own = own_code()
        # The process that sent them has refused other code; folders may have other paths here.
        vars(own).update(folders=self.folders, modules=self.modules, is_program=True)
        own.given = {**unpack(self.given), **own.given}
