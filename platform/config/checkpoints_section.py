"""The section `checkpoints` of an experiment file."""

from pydantic import Field, field_validator

from hedgerow.platform.common.section import Section
from hedgerow.platform.storage.remote import uri_objection


class Checkpoints(Section):
    """Checkpoints of a run: frequency, number and storage."""

    every: int = Field(10, ge=0, description="save every this many rounds, and after the last; 0: only after the last")
    keep: int = Field(2, ge=1, description="number of checkpoints to keep")
    best: str | None = Field(
        None,
        description="metric of evaluated rounds, such as validation_accuracy: save every round that improves it, and "
        "keep the best one in addition to `keep`; null: none",
    )
    storage: str | None = Field(
        None, description="URI of a folder for a copy of the run folder, updated after every checkpoint; null: no copy"
    )

    @field_validator("storage")
    @classmethod
    def _is_a_uri(cls, storage: str | None) -> str | None:
        if storage is not None and (objection := uri_objection(storage)):
            raise ValueError(objection)
        return storage
