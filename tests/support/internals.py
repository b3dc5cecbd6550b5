"""Private names of torch and Ray that only tests use: an ImportError or AttributeError means that a name is gone."""

from typing import Any

import ray
import torch


def count_compilations() -> int:
    """Number of graphs that torch compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def known_actors() -> list[dict[str, Any]]:
    """Records of all actors: ActorClassName, State, Pid, Address."""
    return list(ray._private.state.actors().values())


def gcs_client(address: str) -> Any:
    """Client of a cluster's control store (GCS), which can drain nodes."""
    from ray._raylet import GcsClient

    return GcsClient(address=address)


def prepare_launcher_file(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a `ray up` file with Ray's defaults filled in."""
    from ray.autoscaler._private.util import prepare_config

    return prepare_config(values)


def check_launcher_file(values: dict[str, Any]) -> None:
    """Validate the settings of a `ray up` file against Ray's schema."""
    from ray.autoscaler._private.util import validate_config

    validate_config(values)


def scheduler_of(tuner: Any) -> Any:
    """Scheduler of a restored Tuner."""
    return tuner._local_tuner._tune_config.scheduler
