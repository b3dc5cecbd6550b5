"""The base of every section of an experiment file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of an experiment file: unknown keys are refused, values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
