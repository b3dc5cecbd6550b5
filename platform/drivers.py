"""Where a run's coordinator lives: in this process, or as a Ray actor beside its client actors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import RayLost, UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.coordinator import Coordinator, in_this_process
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.learner import Record
from hedgerow.platform.local_first import LocalFirst
from hedgerow.platform.storage.run_lock import Claim


class Driver(Protocol):
    """The methods of a Coordinator, wherever it lives."""

    def advance(self, seconds: float) -> tuple[list[Record], bool]: ...
    def save(self) -> None: ...
    def plans(self) -> dict[str, Any]: ...
    def warnings(self) -> list[str]: ...
    def parameters(self) -> Tree: ...

    @property
    def workers(self) -> int:
        """Shares into which the clients' work is dealt; a run has the same bits with the same number."""

    @property
    def gathered(self) -> list[int]:
        """The number of client actors, for each time that they were gathered from the nodes there were."""


@contextmanager
def open_driver(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    address: str | None,
    workers: int | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
    claim: Claim | None = None,
) -> Iterator[Driver]:
    """The coordinator that the experiment asks for, inline or on Ray.

    workers: of a run that goes on, as it was begun, however many actors there is room for now. notify: takes sentences
    for the user on what happens meanwhile. claim: see FederatedRun.
    """
    values = experiment.model_dump(mode="json")
    resources = experiment.resources
    if resources.executor == "inline":
        if resources.gpu and not torch.cuda.is_available():
            raise UserError(
                f"resources.gpus_per_actor: {resources.gpus_per_actor:g} is above 0 with `executor: inline`, and "
                "PyTorch finds no GPU on this machine; set it to 0"
            )
        yield Coordinator([values], dataset, partition, None, [checkpoints], claim)
        return
    # Ray is imported only where it is used: an inline run needs none of it.
    from hedgerow.platform.placement import count_actors, local_resources, ray_starting, starts_here
    from hedgerow.platform.ray_driver import RayDriver

    cohort = experiment.cohort_size(len(partition))

    @contextmanager
    def on_ray(wanted: int, needless: Callable[[RayLost], bool] = lambda error: False) -> Iterator[RayDriver]:
        least = resources.min_actors or wanted
        driver = RayDriver(values, dataset, partition, checkpoints, wanted, least, notify, claim, needless)
        try:
            yield driver
        except BaseException:
            driver.close()
            raise
        driver.rest()

    if workers:
        # It may go on with fewer.
        resources = resources.model_copy(update={"actors": workers, "min_actors": resources.min_actors or 1})

    with ray_starting(address) as ready:
        here = resources.executor == "auto" and not resources.gpus_per_actor and starts_here(address)
        if here and not ready.done():
            wanted = count_actors(resources, cohort, [local_resources()])
            executor = in_this_process([experiment], dataset, partition, wanted, measures=False)
            local = Coordinator([values], dataset, partition, executor, [checkpoints], claim)
            with LocalFirst(local, ready, partial(on_ray, wanted)) as first:
                yield first
        else:
            ready.result()
            with on_ray(count_actors(resources, cohort)) as driver:
                yield driver
