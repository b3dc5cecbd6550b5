"""The section `engine` of an experiment file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hedgerow.platform.common.section import Section


class StepPlan(Section):
    """Execution plan of one step."""

    mode: Literal["loop", "vmap"] = Field(description="loop: one client after the other; vmap: `chunk` clients at once")
    chunk: int = Field(1, ge=1, description="number of clients at once under vmap")
    compiled: bool = Field(False, description="whether vmap runs through torch.compile")


class EngineConfig(Section):
    """Execution of clients on an actor."""

    mode: Literal["auto", "loop", "vmap"] = Field(
        "auto", description="loop: one client after the other; vmap: many at once; auto: the faster one, as measured"
    )
    chunk: int | Literal["auto"] = Field("auto", description="number of clients at once under vmap")
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="whether vmap runs through torch.compile (all clients must have the same number of steps; from "
        "PyTorch 2.15 on); auto: in long runs, if it is faster",
    )
    plans: dict[str, StepPlan] = Field(
        {},
        description="plans of single steps by name, as in `plans` of another run's run.json; they take precedence over "
        "mode, chunk and compile, and reproduce that run's numbers bit for bit",
    )

    @model_validator(mode="after")
    def _chunk_is_positive(self) -> Self:
        if self.chunk != "auto" and self.chunk < 1:
            raise ValueError("`chunk` must be auto or at least 1")
        return self
