"""The `resources` section of an experiment file: executor, client actors, CPUs, GPUs and memory."""

from typing import Literal, Self

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.section import Section

Device = Literal["cpu", "cuda"]


class Resources(Section):
    """Executor and client actors, with the CPUs, GPUs and memory that they use."""

    executor: Literal["auto", "inline", "processes", "ray"] = Field(
        "auto",
        description="where clients run, with the same results; inline: in this process; processes: in processes that "
        "the command forks on this machine, on the CPU; ray: in Ray actors; auto: ray on a cluster, with several GPUs "
        "or fractions of a GPU, or where processes cannot be forked; inline on one GPU; and otherwise processes",
    )
    actors: int | Literal["auto"] = Field(
        "auto",
        description="number of client actors, or of processes; auto: one per free CPU (or GPU share); fewer run the "
        "same work if not all of them fit, with the same results",
    )
    cpus_per_actor: float = Field(1.0, ge=0, description="CPUs that each client actor reserves")
    gpus_per_actor: float | Literal["auto"] = Field(
        "auto",
        description="GPUs that each client actor reserves: 1, or a fraction such as 0.25 for four actors on a GPU; "
        "auto: 1 where clients compute on GPUs, otherwise none",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="device of the clients' computations; auto: GPUs where there are any, and otherwise the CPU; a run "
        "or a search keeps the device that it began on",
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
        description="on a GPU, use PyTorch's deterministic algorithms where they exist, so that a run repeats bit for "
        "bit; false: the default algorithms",
    )

    @property
    def fixed_device(self) -> Device | None:
        """Device that the section itself determines; None: GPUs where there are any."""
        if self.device == "cpu" or self.executor == "processes":
            return "cpu"
        return "cuda" if self.device == "cuda" or self.gpus_per_actor != "auto" else None

    def with_device(self, device: Device) -> Self:
        """The section with the chosen device."""
        return self.model_copy(update={"device": device})

    @property
    def reserved_gpus(self) -> float:
        """Number of GPUs, or fraction of a GPU, that each client actor reserves once the device is chosen."""
        return float(self.device == "cuda") if self.gpus_per_actor == "auto" else self.gpus_per_actor

    @property
    def gpu(self) -> float:
        """Fraction of a GPU that each client actor computes on; 0 on the CPU."""
        return 0.0 if self.device == "cpu" else self.reserved_gpus

    @property
    def own_actors(self) -> int:
        """Number of client actors of a run or a trial by itself: one, unless the file sets more."""
        return 1 if self.executor == "inline" or self.actors == "auto" else self.actors

    rules = (
        Rule(lambda r: r.actors != "auto" and r.actors < 1, "`actors` must be auto or at least 1"),
        Rule(
            lambda r: r.gpus_per_actor != "auto" and r.gpus_per_actor > 1,
            "`gpus_per_actor: {gpus_per_actor:g}` is above 1, but a client actor computes on one GPU; set it to "
            "1, and `actors` to the number of GPUs",
        ),
        Rule(
            lambda r: r.gpus_per_actor != "auto" and not r.gpus_per_actor > 0,
            "`gpus_per_actor: {gpus_per_actor:g}` is not a fraction of a GPU; remove it, and set `device: cpu` to "
            "compute on the CPU",
        ),
        Rule(
            lambda r: r.executor == "processes" and (r.device == "cuda" or r.gpus_per_actor != "auto"),
            "`executor: processes` computes on the CPU; set it to inline or ray, or remove `device` and "
            "`gpus_per_actor`",
        ),
        Rule(
            lambda r: r.cpus_per_actor == 0 and r.device != "cuda" and r.gpus_per_actor == "auto",
            "`cpus_per_actor: 0` leaves a client actor on the CPU with nothing to reserve; set `device: cuda`, or "
            "reserve a CPU",
        ),
    )
