"""The `resources` section of an experiment file: executor, client actors, CPUs, GPUs and memory."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hedgerow.platform.common.section import Section

Kind = Literal["gpu", "cpu"]
"""Kind of a client actor: whether it reserves a GPU, or a fraction of one."""


def gpu_share(actors: int) -> float:
    """Share of a GPU for each of its `actors`, rounded down to Ray's unit of 1/10,000 so that all of them fit."""
    return (10_000 // actors) / 10_000


class SpeedChange(Section):
    """Relative speeds of the shares of the work from a round on."""

    from_round: int = Field(ge=1, description="first round with these speeds")
    speeds: list[Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="relative speed of each client actor's share of the work"
    )


class Resources(Section):
    """Executor and client actors, with the CPUs, GPUs and memory that they use."""

    executor: Literal["auto", "ray", "inline"] = Field(
        "auto",
        description="where clients run; ray: in Ray actors; inline: in this process; auto: in Ray actors on a cluster "
        "or with GPUs, and otherwise in processes that the command forks on this machine, with the same results (a run "
        "from Python begins in its own process, and starts Ray if much work remains)",
    )
    actors: int | Literal["auto"] = Field(
        "auto", description="number of client actors; auto: one per free CPU (or GPU share)"
    )
    cpus_per_actor: float = Field(1.0, ge=0, description="CPUs that each client actor reserves")
    gpus_per_actor: float = Field(
        0.0,
        ge=0,
        description="fraction of a GPU that each client actor reserves, at most 1; 0: clients compute on the CPU",
    )
    actors_per_gpu: int | None = Field(
        None, ge=1, le=10_000, description="client actors per GPU, in place of `gpus_per_actor`; null: use that key"
    )
    mixed: bool | list[Kind] = Field(
        False,
        description="whether nodes without GPUs host client actors that compute on the CPU, in addition to the client "
        "actors on GPUs; true: as many as fit, recorded as `kinds` in run.json; a list, as run.json has it, gives the "
        "kind of each client actor, gpu or cpu",
    )
    min_actors: int | None = Field(
        None,
        ge=1,
        description="number of client-actor processes that suffice to start a run, or to continue it when nodes are "
        "lost; the others join as nodes do, and the results stay those of `actors`; null: all of them",
    )
    wait: float | Literal["auto"] = Field(
        "auto",
        description="seconds to wait for nodes with room for the client actors, which a cluster that scales starts "
        "meanwhile; auto: 600 on a cluster, 0 where Ray is started on this machine",
    )
    speeds: Literal["equal", "measured"] | list[SpeedChange] = Field(
        "equal",
        description="relative speeds of the client actors, by which the clients of a round are dealt to them; equal: "
        "the same for all; measured: from the times of earlier rounds, recorded as `speeds` in run.json before they "
        "are used; a list, as run.json has it, repeats the numbers of that run",
    )
    device: Literal["auto", "cpu"] = Field(
        "auto",
        description="device of the clients' computations; auto: the GPU if an actor reserves one or a fraction of one; "
        "cpu: always the CPU",
    )
    deterministic: bool = Field(
        True,
        description="on a GPU, use PyTorch's deterministic algorithms where they exist, so that a run repeats bit for "
        "bit; false: the default algorithms",
    )
    tf32: bool = Field(
        False,
        description="on a GPU, compute products and convolutions of float32 in TF32, which has 10 instead of 23 bits "
        "of mantissa and may be faster",
    )
    max_quarantined: float = Field(
        0.1,
        ge=0,
        le=1,
        description="largest share of the clients that may be left out because each of them repeatedly kills its "
        "actor; the run ends if there are more",
    )
    silence: float | Literal["auto"] = Field(
        "auto",
        description="seconds after which a client actor, coordinator or trial that does not answer is reported; auto: "
        "10 times the longest exchange so far, at least 60",
    )
    actor_timeout: float | None = Field(
        None,
        gt=0,
        description="seconds after which an actor, coordinator or trial that does not answer is replaced, as if it had "
        "died; must be longer than any exchange; null: it is only reported",
    )
    placement: Literal["pack", "spread"] = Field(
        "pack", description="client actors; pack: on as few nodes as possible; spread: on as many as possible"
    )
    actors_per_node: int | None = Field(
        None,
        ge=1,
        description="client actors on each node that hosts any, in place of `placement`; null: use `placement`",
    )
    threads: int = Field(1, ge=1, le=1024, description="number of PyTorch threads of each client actor")
    memory_mb: float | None = Field(
        None,
        gt=0,
        le=1e12,
        description="megabytes that each client actor may use, on its GPU if it has one, otherwise reserved from its "
        "node's memory; limits the chunk",
    )
    state_memory_mb: float = Field(
        1000,
        ge=0,
        le=1e12,
        description="megabytes of client states that each actor holds in memory, and a quarter of it for copies of "
        "another actor's; the others are stored in a file",
    )
    state_folder: str | None = Field(
        None, description="folder of the file with client states, on each node's own disk; null: TMPDIR, else /var/tmp"
    )

    @property
    def gpu(self) -> float:
        """Number of GPUs, or fraction of a GPU, that each client actor computes on."""
        return self.gpus_per_actor if self.device == "auto" else 0.0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of client actors that a run may have."""
        if self.mixed:
            return "gpu", "cpu"
        return ("gpu",) if self.gpus_per_actor else ("cpu",)

    def of_kind(self, kind: Kind) -> Self:
        """Resources of the client actors of one kind, as those of a run that has no other kind."""
        own: dict[str, Any] = {} if kind == "gpu" else {"gpus_per_actor": 0.0, "actors_per_gpu": None}
        return self.model_copy(update={**own, "mixed": False})

    def unused_gpus(self, gpus: float) -> str | None:
        """Sentence about the GPUs of the nodes if clients use none of them, unless the file chooses the CPU.

        gpus: number of GPUs of the nodes.
        """
        if not gpus or self.gpus_per_actor or self.device == "cpu":
            return None
        return (
            f"the nodes have {gpus:g} GPU{'s' * (gpus > 1)}, but clients compute on the CPU, since "
            "resources.gpus_per_actor is 0; set resources.actors_per_gpu to use them, or resources.device to cpu"
        )

    @model_validator(mode="before")
    @classmethod
    def _share_of_a_gpu(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "gpus_per_actor" in values:
            return values
        count = values.get("actors_per_gpu")
        return {**values, "gpus_per_actor": gpu_share(count)} if isinstance(count, int) and count > 0 else values

    @model_validator(mode="before")
    @classmethod
    def _one_actor_per_kind(cls, values: Any) -> Any:
        kinds = values.get("mixed") if isinstance(values, dict) else None
        if not isinstance(kinds, list) or values.get("actors", "auto") != "auto":
            return values
        return {**values, "actors": max(1, len(kinds))}

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.actors_per_gpu and self.gpus_per_actor != gpu_share(self.actors_per_gpu):
            raise ValueError(
                f"`gpus_per_actor: {self.gpus_per_actor:g}` contradicts `actors_per_gpu: {self.actors_per_gpu}`; "
                "remove one of the two"
            )
        if self.silence != "auto" and self.silence <= 0:
            raise ValueError("`silence` must be auto or a number of seconds above 0")
        if self.wait != "auto" and self.wait < 0:
            raise ValueError("`wait` must be auto or a number of seconds, at least 0")
        if self.actors != "auto" and self.actors < 1:
            raise ValueError("`actors` must be auto or at least 1")
        if self.min_actors and self.actors == "auto":
            raise ValueError("`min_actors` needs a number of `actors`, which determines the results; set `actors`")
        if self.min_actors and isinstance(self.actors, int) and self.min_actors > self.actors:
            raise ValueError(f"`min_actors: {self.min_actors}` is more than `actors: {self.actors}`; lower it")
        if isinstance(self.speeds, list):
            self._check_speeds(self.speeds)
        if self.gpus_per_actor > 1:
            raise ValueError(
                f"`gpus_per_actor: {self.gpus_per_actor:g}` is above 1, but a client actor computes on one GPU; set it "
                "to 1, and `actors` to the number of GPUs"
            )
        if self.actors_per_node and self.placement == "spread":
            raise ValueError("`actors_per_node` decides where client actors are; remove `placement: spread`")
        if self.cpus_per_actor == 0 and self.gpus_per_actor == 0:
            raise ValueError("`cpus_per_actor` and `gpus_per_actor` are both 0: reserve at least one of them")
        if self.mixed is not False:
            self._check_mixed()
        return self

    def _check_mixed(self) -> None:
        """Raises ValueError if client actors of two kinds are not possible, or their list does not fit."""
        if not self.gpus_per_actor:
            raise ValueError("`mixed` adds client actors without a GPU to those with one; set `gpus_per_actor` as well")
        if not self.cpus_per_actor:
            raise ValueError("`mixed` needs `cpus_per_actor` above 0: client actors without a GPU reserve CPUs")
        if self.executor == "inline":
            raise ValueError("`mixed` needs client actors, but `executor: inline` has none; remove one of the two")
        if not isinstance(self.mixed, list):
            if self.min_actors:
                raise ValueError(
                    "`min_actors` needs the kind of each client actor, which determines the results; set `mixed` to a "
                    "list such as [gpu, cpu]"
                )
        elif "gpu" not in self.mixed:
            raise ValueError("`mixed` names no client actor of kind gpu; set `gpus_per_actor` to 0 and remove `mixed`")
        elif len(self.mixed) != self.actors:
            raise ValueError(
                f"`mixed` lists {len(self.mixed)} client actors, but `actors` is {self.actors}; remove `actors`"
            )

    def _check_speeds(self, changes: list[SpeedChange]) -> None:
        """Raises ValueError if a list of speeds does not fit the number of actors, or its rounds do not ascend."""
        if self.actors == "auto":
            raise ValueError("a list of `speeds` needs a number of `actors`; set `actors`, as `workers` in run.json")
        for change in changes:
            if len(change.speeds) != self.actors:
                raise ValueError(
                    f"`speeds` from round {change.from_round} has {len(change.speeds)} numbers for "
                    f"`actors: {self.actors}`; give one for each actor"
                )
        rounds = [change.from_round for change in changes]
        if any(later <= earlier for earlier, later in pairwise(rounds)):
            raise ValueError("`speeds` must be in the order of `from_round`, with each round at most once")
