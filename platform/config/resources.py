"""The `resources` section of an experiment file: where the clients live."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hedgerow.platform.common.section import Section


def gpu_share(actors: int) -> float:
    """What each of so many actors takes of a GPU. Ray counts in ten-thousandths; rounded down, all of them fit."""
    return (10_000 // actors) / 10_000


class Resources(Section):
    """Where the clients live."""

    executor: Literal["auto", "ray", "inline"] = Field(
        "auto",
        description="Ray actors, or this process alone; auto: Ray actors, and until they are there this process, with "
        "the same numbers",
    )
    actors: int | Literal["auto"] = Field("auto", description="client actors; auto: one per free CPU (or GPU share)")
    cpus_per_actor: float = Field(1.0, ge=0, description="CPUs that each client actor reserves")
    gpus_per_actor: float = Field(0.0, ge=0, description="GPUs, or the fraction of one, that each actor reserves")
    actors_per_gpu: int | None = Field(
        None, ge=1, le=10_000, description="client actors on each GPU, in place of `gpus_per_actor`; null: see there"
    )
    min_actors: int | None = Field(
        None,
        ge=1,
        description="with so many processes for the client actors a run may start, or go on when nodes are lost; the "
        "others join as nodes do, and the numbers stay those of `actors`; null: it starts with all of them",
    )
    device: Literal["auto", "cpu"] = Field(
        "auto",
        description="what clients are computed on; auto: the GPU, where an actor reserves any of one; cpu: the CPU, "
        "also there",
    )
    max_quarantined: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the clients that may be left out because each of them kills its actor again and again; "
        "with one more the run ends",
    )
    silence: float | Literal["auto"] = Field(
        "auto",
        description="seconds after which a client actor, coordinator or trial that does not answer is reported; auto: "
        "10 times the longest exchange so far, at least 60",
    )
    actor_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds after which one that does not answer is replaced, as if it had died: more than any "
        "exchange takes; null: it is only reported",
    )
    placement: Literal["pack", "spread"] = Field(
        "pack", description="client actors on as few nodes as hold them, or on as many as there are"
    )
    actors_per_node: int | None = Field(
        None, ge=1, description="client actors on each node that hosts any, in place of `placement`; null: see there"
    )
    threads: int = Field(1, ge=1, le=1024, description="torch threads of each client actor")
    memory_mb: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="memory that each client actor may take (on its GPU, if it has one; else it is reserved of its "
        "node's): bounds the chunk",
    )
    state_memory_mb: float = Field(
        1000,
        ge=0,
        le=1e12,
        description="megabytes of client states that each actor holds in memory; the others lie in a file",
    )
    state_folder: str | None = Field(
        None, description="folder of that file, on each node's own disk; null: TMPDIR, else /var/tmp"
    )

    @property
    def gpu(self) -> float:
        """The GPUs, or the fraction of one, that each client actor computes on."""
        return self.gpus_per_actor if self.device == "auto" else 0.0

    @model_validator(mode="before")
    @classmethod
    def _share_of_a_gpu(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "gpus_per_actor" in values:
            return values
        count = values.get("actors_per_gpu")
        return {**values, "gpus_per_actor": gpu_share(count)} if isinstance(count, int) and count > 0 else values

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.actors_per_gpu and self.gpus_per_actor != gpu_share(self.actors_per_gpu):
            raise ValueError(
                f"`gpus_per_actor: {self.gpus_per_actor:g}` is not what `actors_per_gpu: {self.actors_per_gpu}` makes "
                "it; remove one of the two"
            )
        if self.silence != "auto" and self.silence <= 0:
            raise ValueError("`silence` must be auto or seconds above 0")
        if self.actors != "auto" and self.actors < 1:
            raise ValueError("`actors` must be auto or at least 1")
        if self.min_actors and self.actors == "auto":
            raise ValueError("`min_actors` needs `actors`, which decides the numbers; write how many there shall be")
        if self.min_actors and isinstance(self.actors, int) and self.min_actors > self.actors:
            raise ValueError(f"`min_actors: {self.min_actors}` is more than `actors: {self.actors}`; lower it")
        if self.gpus_per_actor > 1 and self.gpus_per_actor != int(self.gpus_per_actor):
            raise ValueError("`gpus_per_actor` above 1 must be a whole number")
        if self.actors_per_node and self.placement == "spread":
            raise ValueError("`actors_per_node` decides where client actors are; remove `placement: spread`")
        if self.cpus_per_actor == 0 and self.gpus_per_actor == 0:
            raise ValueError("`cpus_per_actor` and `gpus_per_actor` are both 0: reserve at least one of them")
        return self
