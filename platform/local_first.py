"""The first rounds of a run, in the driver's process, while Ray starts its own."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import RayLost
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

    Where Ray does not start, or is lost, the rounds that were run here are saved first.

    ready: Ray. on_ray: makes the driver on Ray once that is there; it is given `needless` of RayHealth.
    """

    def __init__(
        self,
        local: Coordinator,
        ready: Future[None],
        on_ray: Callable[[Callable[[RayLost], bool]], AbstractContextManager["RayDriver"]],
    ):
        self.local: Coordinator | None = local
        self.workers = local.workers
        self._told = len(local.run.learners[0].history)
        self._ready, self._on_ray = ready, on_ray
        self._wanted, self._computing = True, False
        self._lost: RayLost | None = None
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
        if self.local is not None and not self._is_ready():
            try:
                with self._at_work():
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
        with self._at_work() if self.local else nullcontext():
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
        return self._opened.enter_context(self._on_ray(self._needless)) if self._wanted else None

    def _needless(self, error: RayLost) -> bool:
        """Take note that Ray is lost; returns whether this process runs or saves rounds itself. In another thread."""
        self._lost = error
        return self._computing

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Meanwhile this process is not ended for the loss of Ray."""
        self._computing = True
        try:
            yield
        finally:
            self._computing = False

    def _is_ready(self) -> bool:
        """Whether the run can be handed over. Saves the rounds that were run here where Ray fails."""
        try:
            if self._lost:
                raise self._lost
            return self._remote.done() and self._there().is_ready()
        except Exception:
            self._save_here()
            raise

    def _save_here(self) -> None:
        if self.local is not None and self.local.run.round:
            with self._at_work():
                self.local.run.save()

    def _there(self) -> "RayDriver":
        driver = self._remote.result()
        assert driver is not None
        return driver

    def _handed_over(self) -> "RayDriver":
        # Saved before the wait: Ray may fail meanwhile.
        self._save_here()
        driver = self._there()
        if self.local is not None:
            if self.local.run.round:
                driver.go_on_from(self.local.run.round)
            self.local = None
        return driver
