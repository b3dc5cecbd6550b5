"""A worker: hosts clients, runs their steps, adds up their updates and keeps their states. One worker per actor."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import is_narrow
from hedgerow.algorithms.core.messages import MODEL, PREDICTIONS
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, flatten, stack, sub, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.hardware import hardware
from hedgerow.platform.common.memory import is_out_of_memory
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.config.old_spellings import current_states
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.partition import SPLITS, Slices
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.aggregation import PartialAggregate, finite_clients
from hedgerow.platform.runtime.autotune import Measurement, shortened
from hedgerow.platform.runtime.client_states import ClientStates
from hedgerow.platform.runtime.engine import Samples, run_clients
from hedgerow.platform.runtime.process import free_memory, memory_in_use, peak, reset_peak
from hedgerow.platform.runtime.shards import (
    EVALUATION,
    ChunkTooLarge,
    CopiedStates,
    MovedStates,
    Place,
    WorkShard,
    step_name,
    to_wire,
)
from hedgerow.platform.storage.checkpoint import read_states, save_tree, seal_of

PREPARED = 64 * 2**20
"""A training set of at most this many bytes is normalised once in each worker; a larger one batch by batch."""

TEST_SHARD = 1000
"""Number of samples per shard of the test set."""

HIDDEN = -1
"""Label of a public sample. It is not a class, so a step that uses it fails."""

LATEST_CLIENT_MODEL = "latest_model"
"""Client-state key, if models are tracked: the client's own model when it last took part, at first the initial one."""


def test_shards(samples: int) -> int:
    """Number of shards of a test set, or of the server's validation samples, with `samples` samples."""
    return -(-samples // TEST_SHARD)


def _shards(samples: int) -> Slices:
    starts = np.arange(test_shards(samples)) * TEST_SHARD
    return Slices(starts, np.minimum(samples - starts, TEST_SHARD))


def deal(
    dataset: Dataset,
    partition: Partition,
    task: Task,
    load: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy,
    prepared: int = 0,
) -> dict[Place, Samples]:
    """Samples of each place where a step runs.

    load: moves an array to the device. prepared: size in bytes up to which samples are normalised here, once.
    """
    train_x, test_x, prepare = load(dataset.x_train), load(dataset.x_test), task.prepare
    labels = dataset.y_train if partition.labels is None else partition.labels
    if partition.public is not None:
        labels = labels.copy()
        labels[partition.public] = HIDDEN
    train_y, test_y = load(labels), load(dataset.y_test)
    # Augmentation works on samples as they are stored.
    if 4 * train_x.numel() <= prepared and task.augment is None:
        train_x, test_x, prepare = prepare(train_x), prepare(test_x), nn.Identity()
    shards = _shards(len(test_y))
    pool = partition.pool()
    models = [task.module, *([task.teacher] if task.teacher is not None else [])]
    narrow = is_narrow(parameter for model in models for parameter in model.parameters())
    clients = Samples(train_x, train_y, prepare, partition.places, partition.shares(), task.augment, narrow=narrow)
    test = Samples(test_x, test_y, prepare, np.arange(len(test_y)), dict.fromkeys(SPLITS, shards), narrow=narrow)
    places: dict[Place, Samples] = {
        "clients": clients,
        "test": test,
        "pool": Samples(train_x, train_y, prepare, pool.places, pool.shares(), task.augment, clients, narrow),
    }
    if (held_back := partition.server_validation) is not None:
        shares = dict.fromkeys(SPLITS, _shards(len(held_back)))
        places["validation"] = Samples(train_x, train_y, prepare, held_back, shares, narrow=narrow)
    return places


class Worker:
    """Hosts a share of the clients on one device.

    algorithms: of one experiment, or of several variants of it, which share task, data, clients and seed. track_models:
    keep each client's latest own model next to its state, for the average over all clients. name: prefix of its client
    state files. owns: maps ids to bool, True for the clients whose states it hosts; None: all.
    """

    def __init__(
        self,
        algorithms: list[Algorithm],
        dataset: Dataset,
        partition: Partition,
        seed: int,
        resources: Resources | None = None,
        track_models: bool = False,
        *,
        name: str = "states",
        owns: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        resources = resources or Resources()
        self.track_models, self.name, self.owns = track_models, name, owns
        self.device = torch.device("cuda" if resources.gpu else "cpu")
        task = algorithms[0].task.to(self.device)
        for algorithm in algorithms:
            algorithm.task = task
        self.algorithms = algorithms
        self.seed = seed
        memory, folder = int(resources.state_memory_mb * 1e6) // len(algorithms), resources.state_folder
        latest = {LATEST_CLIENT_MODEL: task.init()} if track_models else {}
        self.states = [
            ClientStates(tree_map(self._load, algorithm.init_client() | latest), len(partition), memory, folder)
            for algorithm in algorithms
        ]
        self.is_timed = resources.speeds == "measured"
        self.clock: dict[tuple[int, int], tuple[float, int]] = {}
        """Where timed: seconds and samples of the training of a share in a round, since they were last asked for."""
        self.samples = deal(dataset, partition, task, self._load, PREPARED)
        # Memory that earlier workers held in the same process does not count.
        reset_peak(self.device)
        self.at_rest = memory_in_use(self.device)

    def hardware(self) -> dict[str, Any]:
        """Kind of hardware that this worker runs on."""
        return hardware(self.device)

    def lend(
        self, variant: int, clients: np.ndarray, round: int, position: int, committed: int, *moved: MovedStates
    ) -> MovedStates:
        """States of clients at an exchange of a round, for another worker. moved: accepted first."""
        self.accept(*moved)
        states = self.states[variant]
        states.enter(round, position, committed)
        return MovedStates(variant, round, clients, to_wire(states.read(clients, lasting=True)), lent=True)

    def give_back(self, variant: int, clients: np.ndarray) -> MovedStates:
        """New states of clients of another worker."""
        states = self.states[variant]
        clients, new = states.give_back(clients)
        return MovedStates(variant, states.round, clients, to_wire(new), lent=False)

    def copy_changes(self, variant: int, round: int, since: int, *moved: MovedStates) -> CopiedStates:
        """New states of its clients in a round, for another worker. For `since` see CopiedStates."""
        self.accept(*moved)
        return CopiedStates(variant, since, *self.states[variant].changes(round))

    def copied_part(self, variant: int, since: int, number: int) -> CopiedStates | None:
        """Part of the copies that it keeps of another worker's states; None after the last one."""
        part = self.states[variant].copied(since, number)
        return part and CopiedStates(variant, since, *part)

    def restore(self, copied: CopiedStates) -> None:
        """Make copies of its clients' states final, in place of those of the checkpoint."""
        self.states[copied.variant].committed.write(copied.clients, copied.records)

    def accept(self, *moved: MovedStates | CopiedStates) -> None:
        """Take states that come from other workers."""
        for one in moved:
            states = self.states[one.variant]
            if isinstance(one, CopiedStates):
                states.keep_copies(one.since, one.clients, one.records)
            elif len(one.clients):
                take = states.borrow if one.lent else states.take_back
                take(one.round, one.clients, tree_map(self._load, one.states))

    def run(
        self, shards: list[WorkShard], *moved: MovedStates | CopiedStates, broadcasts: list[Tree]
    ) -> list[PartialAggregate]:
        """Run shards of exchanges that run in parallel. moved: states that arrive for them.

        broadcasts: one per exchange. If the worker has several shares of the work, `shards` lists one share after the
        other, each in the order of the exchanges. Raises ChunkTooLarge if a chunk of several clients does not fit into
        memory.
        """
        self.accept(*moved)
        first = {shard.variant: shard for shard in reversed(shards)}
        for variant, shard in first.items():
            compare_constants(self.algorithms[variant].task.module, shard.constants)
            position = shard.position if shard.begins else max(1, shard.position)
            self.states[variant].enter(shard.round, position, shard.committed_round)
        partials = [PartialAggregate(shard.reduce) for shard in shards]
        groups: dict[Any, list[int]] = {}
        downs = broadcasts * (len(shards) // max(1, len(broadcasts)))
        for i, (shard, down) in enumerate(zip(shards, downs, strict=True)):
            if len(shard.clients):
                # A float may determine the shape of a message, or the values that clients draw: such variants do not
                # run together.
                shapes = tuple(
                    (path, leaf.shape) for path, leaf in flatten({"all": down, "own": shard.per_client}).items()
                )
                groups.setdefault((shard.fusion_key, shard.clients.tobytes(), shapes), []).append(i)
        for group in groups.values():
            first_of_group = shards[group[0]]
            failure, start = "", time.perf_counter()
            try:
                self._carry_out([shards[i] for i in group], [downs[i] for i in group], [partials[i] for i in group])
            except ContractError as error:
                if error.key is None:
                    raise
                # The user's code may fail in a later round than the one of the contract check.
                raise UserError(f"algorithm.{error.key}: {error} (round {first_of_group.round})") from error
            except Exception as error:
                if first_of_group.plan.chunk == 1 or not is_out_of_memory(error):
                    raise
                failure = first_line(error)
            if failure:
                # Not within `except`: the error's traceback refers to the tensors of the chunk.
                free_memory()
                name = step_name(first_of_group.step, first_of_group.on)
                raise ChunkTooLarge(name, first_of_group.plan, failure)
            if self.is_timed and first_of_group.on == "clients" and first_of_group.keep_states:
                self._time(first_of_group, time.perf_counter() - start)
        gpu_peak = peak(self.device) if self.device.type == "cuda" else 0.0
        return [replace(part.to_wire(), gpu_peak_mb=gpu_peak) for part in partials]

    def _time(self, shard: WorkShard, seconds: float) -> None:
        key = shard.number, shard.round
        before, samples = self.clock.get(key, (0.0, 0))
        mine = self.samples["clients"].shares["train"].sizes[shard.clients].sum()
        self.clock[key] = before + seconds, samples + int(mine)

    def seconds_per_sample(self) -> dict[int, float]:
        """Seconds of training per sample of each share, where timed: the median of the rounds since the last call."""
        rounds: dict[int, list[float]] = {}
        for (share, _), (seconds, samples) in self.clock.items():
            if samples:
                rounds.setdefault(share, []).append(seconds / samples)
        self.clock = {}
        return {share: float(np.median(ratios)) for share, ratios in rounds.items()}

    @own_errors()
    def _carry_out(self, shards: list[WorkShard], downs: list[Tree], partials: list[PartialAggregate]) -> None:
        """Run shards with the same fusion key and clients as one, and split the answers."""
        first, clients = shards[0], shards[0].clients
        chunks = run_clients(
            first,
            step=self.algorithms[0].client_step(first.step),
            hypers=[self.algorithms[shard.variant].hyper.at(shard.round) for shard in shards],
            broadcasts=[tree_map(self._load, down) for down in downs],
            per_client=tree_map(lambda *parts: self._load(np.stack(parts)), *(shard.per_client for shard in shards)),
            states=lambda clients: self._states(shards, clients),
            samples=self.samples[first.on],
            seed=self.seed,
        )
        for rows, answers in chunks:
            for i, (shard, part) in enumerate(zip(shards, partials, strict=True)):
                up, state, metrics = (tree_map(lambda leaf, i=i: leaf[i], tree) for tree in answers)
                finite = finite_clients(up, rows.stop - rows.start)
                model = metrics.pop(MODEL, None)
                if predictions := metrics.pop(PREDICTIONS, None):
                    part.add_predictions(predictions)
                weights = torch.from_numpy(shard.weights[rows])
                if shard.weighted_by:
                    weights = weights * metrics[shard.weighted_by].detach().cpu().double()
                part.add(up, weights, finite, metrics)
                if shard.on == "clients" and shard.keep_states:
                    self._keep(shard, clients[rows], state, model, finite, part)

    def _keep(
        self,
        shard: WorkShard,
        clients: np.ndarray,
        state: Tree,
        model: Tree | None,
        finite: torch.Tensor,
        part: PartialAggregate,
    ) -> None:
        """Keep the new states of clients that did not diverge. model: their own models, if the step returns them."""
        states = self.states[shard.variant]
        if self.track_models:
            before = states.read(clients)[LATEST_CLIENT_MODEL]
            if model is not None:
                part.add_client_model_delta(sub(model, before), finite)
            state = {**state, LATEST_CLIENT_MODEL: before if model is None else model}
        if state:
            if not finite.all():
                state = tree_map(lambda leaf: leaf[finite.to(leaf.device)], state)
                clients = clients[finite.numpy()]
            states.keep(clients, state)

    def _states(self, shards: list[WorkShard], clients: np.ndarray) -> Tree:
        """States of some clients, for the variant of each shard: leaves (shards, clients, ...)."""
        if shards[0].on != "clients":
            return {}
        evaluated = shards[0].position >= EVALUATION
        states = stack(*(self.states[shard.variant].read(clients, lasting=evaluated) for shard in shards))
        states.pop(LATEST_CLIENT_MODEL, None)
        return states

    @own_errors()
    def measure(self, shards: list[WorkShard], steps: int | None, broadcasts: list[Tree]) -> Measurement:
        """Time one chunk of shards with one fusion key under their plan, on their first clients.

        steps: number of mini-batches; None: all mini-batches of a round.
        """
        n = shards[0].plan.chunk
        chunk = [
            replace(
                shard,
                clients=shard.clients[:n],
                weights=shard.weights[:n],
                per_client=tree_map(lambda leaf: leaf[:n], shard.per_client),
                batches=shortened(shard.batches, steps),
                keep_states=False,
            )
            for shard in shards
        ]
        # The time of this thread hardly depends on other work on the machine. Other threads and GPUs need the clock.
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = time.thread_time if alone else time.perf_counter
        seconds: list[float] = []
        reset_peak(self.device)
        # The first run is a warm-up; then repeat for a tenth of a second, at least once.
        while len(seconds) < 2 or (sum(seconds[1:]) < 0.1 and len(seconds) < 20):
            start = clock()
            self.run(chunk, broadcasts=broadcasts)
            seconds.append(clock() - start)
        return Measurement(min(seconds[1:]), self.at_rest, peak(self.device) - self.at_rest)

    def save_states(self, variant: int, folder: Path, round: int, *moved: MovedStates) -> bool:
        """Make `round` final and write a variant's client states into `folder`, in files of bounded size.

        Returns whether they are written: not if this node does not have the folder.
        """
        self.accept(*moved)
        self.states[variant].enter(round + 1, 0, round)
        if not folder.is_dir():
            return False
        for number, (clients, states) in enumerate(self.states[variant].shards()):
            save_tree({"clients": torch.from_numpy(clients), "states": states}, folder / self._file(number))
        return True

    def states_part(self, variant: int, number: int) -> tuple[str, Tree] | None:
        """Part of the states that `save_states` has made final, and the name of its file; None after the last one."""
        part = self.states[variant].shard(number)
        return (
            (self._file(number), to_wire({"clients": torch.from_numpy(part[0]), "states": part[1]})) if part else None
        )

    def _file(self, number: int) -> str:
        return f"{self.name}-{number:04d}.safetensors"

    def load_states(self, variant: int, folder: Path | None, seal: str | None = None) -> bool:
        """Replace a variant's client states with those in `folder`, or the initial ones. Raises DamagedCheckpoint.

        seal: see `seal_of`. Returns whether the states are complete: not if this node does not have the folder with
        this seal; they then follow by `put_states`.
        """
        self.states[variant].clear()
        if folder is None:
            return True
        if seal is not None and seal_of(folder) != seal:
            return False
        for clients, mine in read_states(folder, self.owns or partial(np.ones_like, dtype=bool)):
            self._put(variant, folder, clients, mine)
        return True

    def put_states(self, variant: int, folder: Path, clients: np.ndarray, states: Tree) -> None:
        """Set final states of some clients, which another process has read from `folder`."""
        self._put(variant, folder, clients, tree_map(torch.as_tensor, states))

    def _put(self, variant: int, folder: Path, clients: np.ndarray, mine: Tree) -> None:
        states = self.states[variant]
        mine = current_states(mine, states.initial)
        if flatten(mine).keys() != flatten(states.initial).keys():
            raise UserError(
                f"{folder}: the entries of the client states ({', '.join(sorted(flatten(mine)))}) are not those "
                "of this algorithm, so an earlier version wrote them; start a new run"
            )
        states.load(clients, mine)

    def _load(self, array: Any) -> torch.Tensor:
        """Move an array to this worker's device; on the CPU, a view of the same memory, which must not change."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor.to(self.device)
