"""Choice of the device on which clients compute, and of the executor that runs them."""

import sys
from typing import Literal

import torch

from hedgerow.platform.actors.actor_room import local_gpus, named_cluster
from hedgerow.platform.actors.forked import is_prepared
from hedgerow.platform.common.errors import UserError, say
from hedgerow.platform.config.engine_section import EngineConfig
from hedgerow.platform.config.resources import Device, Resources
from hedgerow.platform.tracking.run_folder import RunFolder


def choose_device(
    resources: Resources, address: str | None, started: RunFolder | None = None, on_ray: bool = False
) -> Device:
    """Device of a run or a search: as its section or its start says, and otherwise GPUs where there are any.

    address: of a Ray cluster. started: folder of what was started before. on_ray: whether it runs on Ray whatever its
    executor, as a search does. Raises UserError if it needs a GPU and there is none.
    """
    kept = started.record().get("settings", {}).get("resources.device") if started else None
    device = resources.fixed_device or kept
    if device == "cpu":
        return "cpu"
    if _uses_running_ray(address) and (on_ray or resources.executor != "inline"):
        # Ray is imported only where it is used.
        from hedgerow.platform.actors.placement import gpus_of_nodes

        gpus = gpus_of_nodes(resources.with_device(device or "cpu"), address)
    else:
        gpus = local_gpus()
    if gpus or device is None:
        return "cuda" if gpus else "cpu"
    needs, fix = f"{started} computes on a GPU", "set resources.device to cpu"
    if resources.fixed_device:
        needs = "resources.device: cuda needs a GPU"
    if resources.gpus_per_actor != "auto":
        needs, fix = "resources.gpus_per_actor needs a GPU", f"{fix} and remove resources.gpus_per_actor"
    if started:
        fix += f" in {started.experiment}, and `hedgerow resume {started} --changed` continues on the CPU"
    raise UserError(f"{needs}, but PyTorch finds none on this machine; {fix}")


def check_engine(engine: EngineConfig, device: Device) -> None:
    """Raise UserError for a setting that this device cannot have."""
    if device == "cpu" and engine.of_gpus:
        raise UserError(f"engine.{engine.of_gpus} needs a GPU, and clients compute on the CPU; remove it")


def say_device(device: Device, address: str | None) -> None:
    """Print one line if clients compute on GPUs, with the models of those of this machine."""
    if device == "cuda":
        here = 0 if named_cluster(address) else torch.cuda.device_count()
        models = sorted({torch.cuda.get_device_name(i) for i in range(here)})
        say(" ".join(["clients compute on cuda", *(f"({model})" for model in models)]))


def executor_of(
    resources: Resources, address: str | None, started: RunFolder | None = None
) -> Literal["inline", "processes", "ray"]:
    """Where the clients of an experiment run. For the arguments and errors see `choose_device`.

    Raises UserError also where processes cannot be forked.
    """
    if resources.executor == "processes" and not is_prepared():
        raise UserError(
            "resources.executor: processes cannot be forked here (outside Linux, or from a program with several "
            "threads); set it to inline or ray"
        )
    if resources.executor in ("auto", "ray") and _uses_running_ray(address):
        return "ray"
    chosen = resources.with_device(choose_device(resources, address, started))
    if resources.executor != "auto":
        return resources.executor
    if chosen.reserved_gpus:
        return "inline" if local_gpus() * int(1 / chosen.reserved_gpus + 1e-6) == 1 else "ray"
    return "processes" if is_prepared() else "ray"


def _uses_running_ray(address: str | None) -> bool:
    """Whether there is a Ray already: one that the user names, or that this process is connected to."""
    ray = sys.modules.get("ray")
    return bool(named_cluster(address) or (ray and ray.is_initialized()))
