"""The section `engine` of an experiment file."""

from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.precision import Precision
from hedgerow.platform.common.section import Section


class StepPlan(Section):
    """Execution plan of one step."""

    mode: Literal["loop", "graph", "vmap"] = Field(
        description="loop: one client after the other; graph: the same as a CUDA graph; vmap: `chunk` clients at once"
    )
    chunk: int = Field(1, ge=1, description="number of clients at once under vmap")
    compiled: bool = Field(False, description="whether vmap runs through torch.compile")

    rules = (
        Rule(
            lambda plan: plan.mode != "vmap" and (plan.chunk != 1 or plan.compiled),
            "`chunk` and `compiled` are for vmap; leave them out, or set `mode` to vmap",
        ),
    )


class EngineConfig(Section):
    """Execution of clients on an actor."""

    mode: Literal["auto", "loop", "graph", "vmap"] = Field(
        "auto",
        description="loop: one client after the other; graph: the same on a GPU, with all kernels of a client launched "
        "as one CUDA graph; vmap: many clients at once; auto: the fastest, as measured",
    )
    chunk: int | Literal["auto"] = Field("auto", description="number of clients at once under vmap")
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="whether vmap runs through torch.compile (all clients must have the same number of steps; from "
        "PyTorch 2.15 on); auto: in long runs, if it is faster",
    )
    precision: Precision = Field(
        "float32",
        description="precision of the model's products; tf32: on a GPU, factors are rounded to 10 bits; bfloat16: "
        "PyTorch's autocast in the forward pass and its gradient, with parameters, their gradients and all sums in "
        "float32",
    )
    plans: dict[str, StepPlan] = Field(
        {},
        description="plans of single steps by name, as in `plans` of another run's run.json; they take precedence over "
        "mode, chunk and compile, and reproduce that run's numbers bit for bit",
    )

    @property
    def of_gpus(self) -> str | None:
        """Key and value that only a GPU can have; None if there are none."""
        if self.mode == "graph" or any(plan.mode == "graph" for plan in self.plans.values()):
            return "mode: graph" if self.mode == "graph" else "plans: mode graph"
        return "precision: tf32" if self.precision == "tf32" else None

    @property
    def compiling(self) -> str | None:
        """Key that asks for compiled steps; None if none does."""
        if self.compile is True:
            return "compile"
        return "plans" if any(plan.compiled for plan in self.plans.values()) else None

    rules = (
        Rule(lambda engine: engine.chunk != "auto" and engine.chunk < 1, "`chunk` must be auto or at least 1"),
        Rule(
            lambda engine: engine.compiling and engine.precision == "bfloat16",
            "compiled steps compute in float32 or tf32, and `precision` is bfloat16; set `compile` to false",
        ),
    )
