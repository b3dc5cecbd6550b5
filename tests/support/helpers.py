"""Small tasks with known solutions, and shortcuts to run an algorithm on them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.slots.slots import Slots
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.experiment import Checkpoints, EngineConfig, Evaluation, Experiment, TaskConfig
from hedgerow.platform.config.registries import ObjectiveConfig, TransformConfig, algorithms, partitions
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.config.slots_section import SLOT_SECTIONS, AggregationConfig
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.coordinator import Coordinator, build_executor
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.transport import InProcess
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.history import RoundRecord


class QuadraticTask(Task):
    """L_k(w) = 1/2 (w - c_k)' A_k (w - c_k); a sample is the row [A_k, c_k]."""

    def __init__(self, dimension: int):
        super().__init__(nn.Identity(), torch.zeros(()), torch.ones(()))
        object.__setattr__(self, "dimension", dimension)

    def init(self) -> Params:
        return {"x": torch.zeros(self.dimension)}

    def to(self, device: torch.device) -> "QuadraticTask":
        return self

    def loss(self, w: Params, batch: Batch) -> Tensor:
        d = self.dimension
        matrix, centre = batch.x[0, : d * d].reshape(d, d), batch.x[0, d * d :]
        offset = w["x"] - centre
        return 0.5 * offset @ (matrix @ offset)

    def score(self, w: Params, batch: Batch) -> Tensor:
        return torch.stack([self.loss(w, batch), torch.zeros(()), torch.ones(())])


class Quadratics:
    """m random quadratics in d dimensions with eigenvalues in [0.2, 1], one client each."""

    def __init__(self, clients: int = 6, dimension: int = 4, seed: int = 0):
        rng = np.random.default_rng(seed)
        basis = [np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] for _ in range(clients)]
        self.A = np.stack([q @ np.diag(rng.uniform(0.2, 1, dimension)) @ q.T for q in basis])
        self.c = rng.normal(size=(clients, dimension))
        self.task = QuadraticTask(dimension)
        x = np.concatenate([self.A.reshape(clients, -1), self.c], axis=1).astype(np.float32)
        y = np.zeros(clients, np.int64)
        self.dataset = dataset(x, y)
        self.partition = partition(np.ones(clients, int))

    @property
    def optimum(self) -> np.ndarray:
        """w* = (sum A_k)^-1 sum A_k c_k"""
        return np.linalg.solve(self.A.sum(0), np.einsum("kij,kj->i", self.A, self.c))


def dataset(x: np.ndarray, y: np.ndarray, test: int = 0) -> Dataset:
    """A data set of the given arrays; the last `test` samples (or, with 0, all of them) are for testing."""
    train, held = (slice(None), slice(None)) if not test else (slice(None, -test), slice(-test, None))
    shape = (1,) * (x.ndim - 1)
    names = tuple(str(label) for label in range(int(y.max()) + 1))
    zero, one = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    return Dataset("test", x[train], y[train], x[held], y[held], len(names), zero, one, names)


def partition(sizes: np.ndarray, seed: int | None = None) -> Partition:
    """Clients of these sizes, with samples in order or (with a seed) shuffled."""
    total = int(sizes.sum())
    order = np.arange(total) if seed is None else np.random.default_rng(seed).permutation(total)
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]), sizes.astype(np.int64))


def blobs(samples: int = 240, features: int = 6, classes: int = 3, seed: int = 0) -> Dataset:
    """Gaussian blobs, one per class; a quarter is for testing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    y[:classes] = np.arange(classes)
    x = rng.normal(size=(classes, features))[y] * 2 + rng.normal(size=(samples, features))
    return dataset(x.astype(np.float32), y.astype(np.int64), samples // 4)


def small_task(data: Dataset, seed: int = 0) -> Task:
    """A tiny MLP on a data set of features."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(data.sample_shape[0], 8), nn.Tanh(), nn.Linear(8, data.classes))
    return Task(module, torch.from_numpy(data.mean), torch.from_numpy(data.std), sample_shape=data.sample_shape)


def experiment(hyper: Any, **settings: Any) -> Experiment:
    """An experiment without a task section, for runs that bring their own task."""
    values: dict[str, Any] = {
        "name": "test",
        "seed": 0,
        "rounds": 3,
        "clients_per_round": "all",
        "task": TaskConfig.model_construct(partition=partitions.section("natural")()),
        "algorithm": hyper,
        "evaluation": Evaluation(),
        "resources": Resources(executor="inline"),
        "engine": EngineConfig(mode="vmap", chunk=2),
        "checkpoints": Checkpoints(),
    }
    return Experiment.model_construct(**{**values, **settings})


class PackRun(Coordinator):
    """Rounds of several servers on one worker: an iterator that yields their records by number.

    folders: run folders, without a record.
    """

    def __init__(self, servers: list[FederatedServer], worker: Worker, folders: list[Any], parts: int = 1):
        self.worker = worker
        super().__init__(
            servers,
            build_executor(servers, InProcess(lambda: worker), parts),
            folders and [folder and folder / "checkpoints" for folder in folders],
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.done:
            raise StopIteration
        return self.next_round()


class SingleRun(PackRun):
    """A run of one server, which yields its records."""

    def __next__(self) -> RoundRecord:
        return super().__next__()[0]

    @property
    def server(self) -> Any:
        return self.servers[0].state

    @property
    def states(self) -> Any:
        """The client states: `read` stacks those of some clients."""
        return States(self.executor.stores[0])


@dataclass
class States:
    """Client states of a store; None: clients that keep none."""

    store: Any

    def read(self, clients: np.ndarray) -> Any:
        return read_states(self.store, clients)


def read_states(store: Any, clients: np.ndarray) -> Any:
    """Current states of some clients, stacked; {} if there is no store."""
    if store is None:
        return {}
    return store.layout.unpack(store.rows(clients, keeps=False).read(np.arange(len(clients))))


def write_states(store: Any, clients: np.ndarray, states: Any) -> None:
    """Give clients these states, stacked."""
    rows = store.rows(clients, keeps=True)
    rows.write(np.arange(len(clients)), states, store.layout)
    store.keep(clients, rows, np.ones(len(clients), bool), [])
    store.commit()


def objective(**values: Any) -> Any:
    """Section `objective` of an experiment file with these keys."""
    return _Slots(objective=values).objective


def named(kind: type[Algorithm]) -> Any:
    """Hyperparameter class of a built-in algorithm with its name set, or of any other algorithm."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    name = next((name for name, one in ALGORITHMS.items() if one == path), None)
    return algorithms.section(name) if name else kind.Hyper


def objection(algorithm: type[Algorithm], task: Task, objective: Any) -> str | None:
    """Reason why an algorithm cannot learn a task with an objective; None if it can."""
    return compose(algorithm(named(algorithm)(), task), Slots(objective=objective)).incompatibility()


class _Slots(Section):
    aggregation: AggregationConfig = AggregationConfig()
    transforms: list[TransformConfig] = []  # noqa: RUF012
    objective: ObjectiveConfig | None = None


def slots_of(section: dict[str, Any]) -> Slots:
    """Slots that a section has in addition to the keys of its algorithm."""
    return Slots.model_construct(**dict(_Slots(**{key: section[key] for key in SLOT_SECTIONS if key in section})))


def build(kind: type[Algorithm], section: dict[str, Any], task: Task, always: bool = False, fedex: Any = None) -> Any:
    """Build an algorithm with its slots, as the platform does. always: also if no slot is filled."""
    inner = kind(named(kind)(**{key: value for key, value in section.items() if key not in SLOT_SECTIONS}), task)
    slots = slots_of(section)
    return compose(inner, slots if always or slots.are_filled else None, fedex)


def run_inline(
    algorithm: type[Algorithm],
    task: Task,
    data: Dataset,
    clients: Partition,
    hyper: dict[str, Any],
    folder: Any = None,
    **settings: Any,
) -> SingleRun:
    """Inline run of an algorithm, ready to be iterated. hyper: its section, including its slots."""
    hosted, driven = build(algorithm, hyper, task), build(algorithm, hyper, task)
    spec = experiment(hosted.inner.hyper, **settings)
    follow = spec.evaluation.follows
    worker = Worker([hosted], data, clients, spec.seed, spec.resources, follow, spec.engine.precision)
    return SingleRun([FederatedServer(spec, driven, clients, len(data.y_test))], worker, [folder])


def model(run: SingleRun) -> dict[str, Tensor]:
    """The server's parameters."""
    return run.server["w"]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest absolute difference of two models."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two models are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def set_paths(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Values of a file with settings such as task__data={...}; returns the values."""
    for path, value in settings.items():
        node = values
        *sections, last = path.split("__")
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return values


def without_clock(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """Records without the time that they took."""
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def check_resuming(start: Callable[[Any], SingleRun], saved: int, folder: Any) -> None:
    """Check that a run resumed after `saved` rounds ends like an undisturbed one. start: folder -> run."""
    calm = start(None)
    calmly = list(calm)
    first = start(folder)
    for _ in range(saved):
        next(first)
    first.save()
    second = start(folder)
    rest = list(second)
    assert identical(flatten(calm.server), flatten(second.server))
    assert list(flatten(calm.server)) == list(flatten(second.server))
    assert without_clock(calmly[saved:]) == without_clock(rest)
