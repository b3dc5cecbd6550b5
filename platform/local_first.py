"""The first rounds of a run, in the driver's process, while Ray starts its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from hedgerow.algorithms.trees import Tree
from hedgerow.platform.coordinator import Coordinator
from hedgerow.platform.executors import Unmeasured
from hedgerow.platform.learner import Record

if TYPE_CHECKING:
    from hedgerow.platform.ray_driver import RayDriver


class LocalFirst:
    """Runs rounds here until client actors are ready, then hands the run over to them, by a checkpoint.

    Ray and its processes take some ten seconds to start; a small run is done by then. Whoever runs a round, its numbers
    are the same bits, because the local coordinator keeps the actors' shares apart. Plans are measured on the actors,
    with all of them at work: a run whose plans are not known yet waits for them.

    ready: Ray. on_ray: makes the driver on Ray once that is there.
    """

    def __init__(
        self, local: Coordinator, ready: Future[None], on_ray: Callable[[], AbstractContextManager["RayDriver"]]
    ):
        self.local: Coordinator | None = local
        self.workers = local.workers
        self._told = len(local.run.learners[0].history)
        self._ready, self._on_ray = ready, on_ray
        self._wanted = True
        self._opened = ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="client-actors")
        self._remote = self._thread.submit(self._start)

    def __enter__(self) -> "LocalFirst":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._wanted = False
        self._thread.shutdown()
        self._opened.__exit__(*raised)

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """As Coordinator.advance."""
        if self.local is not None and not (self._remote.done() and self._there().is_ready()):
            try:
                _, done = self.local.advance(seconds)
            except Unmeasured:
                done = False
            news = self.local.run.learners[0].history[self._told :]
            self._told += len(news)
            if news:
                # Those before a round that needs a measurement, too.
                return news, done
        return self._handed_over().advance(seconds)

    def save(self) -> None:
        (self.local or self._there()).save()

    @property
    def gathered(self) -> list[int]:
        """As RayDriver.gathered."""
        return (self.local or self._there()).gathered

    def plans(self) -> dict[str, Any]:
        return (self.local or self._there()).plans()

    def warnings(self) -> list[str]:
        return (self.local or self._there()).warnings()

    def parameters(self) -> Tree:
        return (self.local or self._there()).parameters()

    def _start(self) -> "RayDriver | None":
        """In the background; None when the run has ended before."""
        self._ready.result()
        return self._opened.enter_context(self._on_ray()) if self._wanted else None

    def _there(self) -> "RayDriver":
        driver = self._remote.result()
        assert driver is not None
        return driver

    def _handed_over(self) -> "RayDriver":
        driver = self._there()
        if self.local is not None:
            if self.local.run.round:
                self.local.run.save()
                driver.go_on_from(self.local.run.round)
            self.local = None
        return driver
