"""The section `engine` of an experiment file."""

from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
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

    @property
    def compiling(self) -> str | None:
        """Key that asks for compiled steps; None if none does."""
        if self.compile is True:
            return "compile"
        return "plans" if any(plan.compiled for plan in self.plans.values()) else None

    rules = (Rule(lambda engine: engine.chunk != "auto" and engine.chunk < 1, "`chunk` must be auto or at least 1"),)
