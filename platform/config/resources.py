"""The `resources` section of an experiment file: executor, client actors, CPUs, GPUs and memory."""

from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.section import Section


class Resources(Section):
    """Executor and client actors, with the CPUs, GPUs and memory that they use."""

    executor: Literal["auto", "inline", "processes", "ray"] = Field(
        "auto",
        description="where clients run, with the same results; inline: in this process; processes: in processes that "
        "the command forks on this machine; ray: in Ray actors; auto: ray on a cluster, with GPUs, or where processes "
        "cannot be forked, and otherwise processes",
    )
    actors: int | Literal["auto"] = Field(
        "auto",
        description="number of client actors, or of processes; auto: one per free CPU (or GPU share); fewer run the "
        "same work if not all of them fit, with the same results",
    )
    cpus_per_actor: float = Field(1.0, ge=0, description="CPUs that each client actor reserves")
    gpus_per_actor: float = Field(
        0.0,
        ge=0,
        description="GPUs that each client actor reserves: 1, or a fraction such as 0.25 for four actors on a GPU; 0: "
        "clients compute on the CPU",
    )
    device: Literal["auto", "cpu"] = Field(
        "auto",
        description="device of the clients' computations; auto: the GPU if an actor reserves one or a fraction of one; "
        "cpu: always the CPU",
    )
    threads: int = Field(1, ge=1, le=1024, description="number of PyTorch threads of each client actor")
    memory_mb: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="megabytes that each client actor may use, on its GPU if it has one, otherwise reserved from its "
        "node's memory; limits the chunk",
    )
    placement: Literal["pack", "spread"] = Field(
        "pack", description="client actors; pack: on as few nodes as possible; spread: on as many as possible"
    )
    timeout: float | None = Field(
        None,
        gt=0,
        description="seconds after which a client actor, coordinator or trial that does not answer is replaced, as if "
        "it had died; must be longer than any exchange, and in a search than any round; null: never",
    )
    deterministic: bool = Field(
        True,
        description="on a GPU, use PyTorch's deterministic algorithms where they exist, and compute products of "
        "float32 in float32, so that a run repeats bit for bit; false: the default algorithms, and TF32",
    )

    @property
    def gpu(self) -> float:
        """Number of GPUs, or fraction of a GPU, that each client actor computes on."""
        return self.gpus_per_actor if self.device == "auto" else 0.0

    def unused_gpus_warning(self, gpus: float) -> str | None:
        """Sentence about the GPUs of the nodes if clients use none of them, unless the file chooses the CPU.

        gpus: number of GPUs of the nodes.
        """
        if not gpus or self.gpus_per_actor or self.device == "cpu":
            return None
        return (
            f"the nodes have {gpus:g} GPU{'s' * (gpus > 1)}, but clients compute on the CPU, since "
            "resources.gpus_per_actor is 0; set it to 1 to use them, or resources.device to cpu"
        )

    rules = (
        Rule(lambda r: r.actors != "auto" and r.actors < 1, "`actors` must be auto or at least 1"),
        Rule(
            lambda r: r.gpus_per_actor > 1,
            "`gpus_per_actor: {gpus_per_actor:g}` is above 1, but a client actor computes on one GPU; set it to "
            "1, and `actors` to the number of GPUs",
        ),
        Rule(
            lambda r: r.cpus_per_actor == 0 and r.gpus_per_actor == 0,
            "`cpus_per_actor` and `gpus_per_actor` are both 0: reserve at least one of them",
        ),
    )
