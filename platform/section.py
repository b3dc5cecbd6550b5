"""The base of every section of an experiment file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of an experiment file: unknown keys are refused, values never change after validation."""

    # Infinity is refused where a number is wanted; in the arguments of the user's own model it stays what it is.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )
