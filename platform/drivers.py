"""Where a run's coordinator lives: in this process, or as a Ray actor beside its client actors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hedgerow.algorithms.trees import Tree
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.experiment import Experiment
from hedgerow.platform.learner import Record


class Driver(Protocol):
    """The methods of a Coordinator, wherever it lives."""

    def advance(self, seconds: float) -> tuple[list[Record], bool]: ...
    def plans(self) -> dict[str, Any]: ...
    def parameters(self) -> Tree: ...


@contextmanager
def open_driver(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    address: str | None,
) -> Iterator[Driver]:
    """The coordinator that the experiment asks for, inline or on Ray."""
    values = experiment.model_dump(mode="json")
    if experiment.resources.executor == "inline":
        yield Coordinator([values], dataset, partition, None, [checkpoints])
        return
    # Ray is imported only where it is used: an inline run needs none of it.
    from hedgerow.platform.placement import count_actors, ray_session, reserved
    from hedgerow.platform.ray_driver import RayDriver

    with ray_session(address):
        actors = count_actors(experiment.resources, experiment.cohort_size(len(partition)))
        with reserved(experiment.resources, actors) as group:
            driver = RayDriver(values, dataset, partition, checkpoints, group, actors)
            try:
                yield driver
            finally:
                driver.close()
