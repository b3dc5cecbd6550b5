"""A worker: runs the steps of clients and adds up their updates. It keeps data and models, but nothing of a client."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hedgerow.algorithms.core.client_data import needs_default_format
from hedgerow.algorithms.core.messages import PREDICTIONS
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.precision import Precision
from hedgerow.algorithms.core.pytree import Tree, flatten, leaves, sub, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.common.cuda_graphs import CapturedCalls, CaptureFailed
from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.hardware import hardware
from hedgerow.platform.common.memory import is_out_of_memory
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.partition import SPLITS, Slices
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.aggregation import Content, PartialAggregate, check_no_reuse, content_of, to_cpu
from hedgerow.platform.runtime.autotune import Measurement, shortened
from hedgerow.platform.runtime.engine import Samples, run_clients
from hedgerow.platform.runtime.process import free_memory, memory_in_use, peak, reset_peak
from hedgerow.platform.runtime.shards import PlanFailed, Site, WorkShard, step_name
from hedgerow.platform.runtime.state_store import StateLayout

PREPARED, PREPARED_GPU = 2**26, 2**30
"""A training set of at most this many bytes in float32, on the CPU and on a GPU, is normalised once in each worker; a
larger one batch by batch. On a GPU it takes at most a sixteenth of the worker's share of the memory."""

IN_TURN = 4
"""Clients of a measurement that run one after the other on a GPU."""

HELD, HELD_GPU = 2**22, 2**29
"""Bytes of new client states that wait to be written together. On a GPU, reading one waits for all clients before."""

TEST_SHARD = 1000
"""Number of samples per shard of the test set."""

HIDDEN = -1
"""Label of a public sample. It is not a class, so a step that uses it fails."""

LATEST_CLIENT_MODEL = "latest_model"
"""Client-state key, if models are tracked: the client's own model when it last took part, at first the initial one."""


def initial_state(algorithm: ComposedAlgorithm, track_models: bool) -> Tree:
    """State of a client that never took part; {} if clients have no states between rounds."""
    return algorithm.init_client() | ({LATEST_CLIENT_MODEL: algorithm.task.init()} if track_models else {})


def test_shards(samples: int) -> int:
    """Number of shards of a test set, or of the server's validation samples, with `samples` samples."""
    return -(-samples // TEST_SHARD)


def _shards(samples: int) -> Slices:
    starts = np.arange(test_shards(samples)) * TEST_SHARD
    return Slices(starts, np.minimum(samples - starts, TEST_SHARD))


def samples_of_places(
    dataset: Dataset,
    partition: Partition,
    task: Task,
    load: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy,
    prepared: int = 0,
) -> dict[Site, Samples]:
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
    plain = needs_default_format(parameter for model in models for parameter in model.parameters())
    plain |= any(vars(part).get("plain_format") for model in models for part in model.modules())
    takes_padding = task.train_mode is None or task.train_mode.takes_padding
    clients = Samples(
        train_x, train_y, prepare, partition.places, partition.splits(), task.augment, None, plain, takes_padding
    )
    test = Samples(test_x, test_y, prepare, np.arange(len(test_y)), dict.fromkeys(SPLITS, shards), plain=plain)
    places: dict[Site, Samples] = {
        "clients": clients,
        "test": test,
        "pool": Samples(train_x, train_y, prepare, pool.places, pool.splits(), task.augment, clients, plain),
    }
    if (held_back := partition.server_validation) is not None:
        splits = dict.fromkeys(SPLITS, _shards(len(held_back)))
        places["validation"] = Samples(train_x, train_y, prepare, held_back, splits, plain=plain)
    return places


class Worker:
    """Runs the steps of clients on one device. It has nothing that cannot be built again.

    algorithms: of one experiment, or of several variants of it, which share task, data, clients and seed. track_models:
    keep each client's latest own model in its state, for the average over all clients.
    """

    def __init__(
        self,
        algorithms: list[ComposedAlgorithm],
        dataset: Dataset,
        partition: Partition,
        seed: int,
        resources: Resources | None = None,
        track_models: bool = False,
        precision: Precision = "float32",
    ):
        resources = resources or Resources()
        self.track_models, self.precision = track_models, precision
        self.keeps_sums = False
        """Whether sums stay on the GPU, since the executor is in this process."""
        self.captured = CapturedCalls()
        self.device = torch.device("cuda" if resources.gpu else "cpu")
        task = algorithms[0].task.to(self.device)
        for algorithm in algorithms:
            algorithm.inner.task = task
        self.algorithms = algorithms
        self.seed = seed
        self.layouts = [StateLayout(initial_state(algorithm, track_models)) for algorithm in algorithms]
        prepared = PREPARED
        if self.device.type != "cpu":
            share = min(resources.gpu, 1.0) * torch.cuda.get_device_properties(self.device).total_memory
            prepared = min(PREPARED_GPU, int(share / 16))
        self.samples = samples_of_places(dataset, partition, task, self._load, prepared)
        # Memory that earlier workers held in the same process does not count.
        reset_peak(self.device)
        self.at_rest = memory_in_use(self.device)

    def hardware(self) -> dict[str, Any]:
        """Kind of hardware that this worker runs on."""
        return hardware(self.device)

    def run(self, shards: list[WorkShard], broadcasts: list[Tree]) -> list[PartialAggregate]:
        """Run shards of exchanges that run in parallel. broadcasts: one per exchange.

        Raises PlanFailed if a chunk of several clients does not fit into memory, or a step cannot be captured.
        """
        for shard in {shard.variant: shard for shard in shards}.values():
            compare_constants(self.algorithms[shard.variant].task.module, shard.constants)
        partials = [PartialAggregate(shard.reduce, kept=np.zeros(len(shard.clients), bool)) for shard in shards]
        groups: dict[Any, list[int]] = {}
        downs = [broadcasts[shard.exchange] for shard in shards]
        for i, (shard, down) in enumerate(zip(shards, downs, strict=True)):
            # A float may determine the shape of a message, or the values that clients draw: such variants do not run
            # together.
            shapes = tuple((path, leaf.shape) for path, leaf in flatten({"all": down, "own": shard.per_client}).items())
            groups.setdefault((shard.fusion_key, shard.clients.tobytes(), shapes), []).append(i)
        for group in groups.values():
            first_of_group, failure = shards[group[0]], ""
            try:
                self._carry_out([shards[i] for i in group], [downs[i] for i in group], [partials[i] for i in group])
            except ContractError as error:
                if error.key is None:
                    raise
                # The user's code may fail in a later round than the one of the contract check.
                raise UserError(f"{error.key}: {error} (round {first_of_group.round})") from error
            except Exception as error:
                if first_of_group.plan.simpler is None or not (
                    isinstance(error, CaptureFailed) or is_out_of_memory(error)
                ):
                    raise
                failure = first_line(error)
            if failure:
                # Not within `except`: the error's traceback refers to the tensors of the chunk.
                self.captured.clear()
                free_memory()
                raise PlanFailed(step_name(first_of_group.step, first_of_group.site), first_of_group.plan, failure)
        gpu_peak = peak(self.device) if self.device.type == "cuda" else 0.0
        return [replace(part.to_wire(self.keeps_sums), gpu_peak_mb=gpu_peak) for part in partials]

    def measure(self, shards: list[WorkShard], steps: int | None, broadcasts: list[Tree]) -> Measurement:
        """Time one chunk of shards with one fusion key under their plan, on their first clients.

        steps: number of mini-batches; None: all mini-batches of a round.
        """
        plan = shards[0].plan
        # On a GPU, several clients one after the other: sending the model takes as long as one of them.
        n = plan.chunk if plan.mode == "vmap" or self.device.type == "cpu" else min(IN_TURN, len(shards[0].clients))
        chunk = [shard.first(n, shortened(shard.batches, steps)) for shard in shards]
        # The time of this thread hardly depends on other work on the machine. Other threads and GPUs need the clock.
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = time.thread_time if alone else time.perf_counter
        seconds: list[float] = []
        reset_peak(self.device)
        # The first run is a warm-up, and the second one captures a graph; then repeat for a tenth of a second.
        warm = 2 if plan.mode == "graph" else 1
        while len(seconds) <= warm or (sum(seconds[warm:]) < 0.1 and len(seconds) < 20):
            start = clock()
            self.run(chunk, broadcasts)
            seconds.append(clock() - start)
        self.captured.clear()
        return Measurement(min(seconds[warm:]) * plan.chunk / n, self.at_rest, peak(self.device) - self.at_rest)

    def _carry_out(self, shards: list[WorkShard], downs: list[Tree], partials: list[PartialAggregate]) -> None:
        """Run shards with the same fusion key and clients as one, and split the answers."""
        first = shards[0]
        chunks = run_clients(
            first,
            step=self.algorithms[0].client_step(first.step),
            hypers=[self.algorithms[shard.variant].hyper.at(shard.round) for shard in shards],
            broadcasts=[tree_map(self._load, down) for down in downs],
            per_client=tree_map(lambda *parts: self._load(np.stack(parts)), *(shard.per_client for shard in shards)),
            states=lambda positions: [self._states(shard, positions) for shard in shards],
            samples=self.samples[first.site],
            seed=self.seed,
            captured=self.captured,
            precision=self.precision,
            scheduled=() if self.device.type == "cpu" else [self._scheduled(shard) for shard in shards],
        )
        weights_of, waiting, held = [self._load(shard.weights) for shard in shards], list[Any](), 0
        # That of the last single client on the CPU, where the step may return the same memory for each.
        last: list[tuple[Tree, Content]] = []
        for rows, answers in chunks:
            fresh: Tree = {}
            for shard, part, variant_weights, answer in zip(shards, partials, weights_of, answers, strict=True):
                up, state, metrics, model = answer
                if predictions := metrics.pop(PREDICTIONS, None):
                    part.add_predictions(predictions)
                elif shard.step.startswith("predict_client"):
                    part.predictions += [None] * (rows.stop - rows.start)
                weights = variant_weights[rows]
                if shard.weighted_by:
                    if shard.weighted_by not in metrics:
                        raise ContractError(
                            f"step {shard.step} reports no metric {shard.weighted_by!r}, which weights its clients",
                            "algorithm.name",
                        )
                    weights = weights * metrics[shard.weighted_by].detach().to(weights.device, torch.float64)
                finite = part.add(up, weights, metrics)
                if shard.keeps_states and (state or self.track_models):
                    fresh[str(shard.exchange)] = {"state": state, "model": model}
                    waiting.append((shard, np.arange(rows.start, rows.stop), state, model, finite, part))
                    held += sum(leaf.nbytes for tree in (state, model) for leaf in leaves(tree))
            check_no_reuse(last, fresh)
            if held > (HELD if self.device.type == "cpu" else HELD_GPU):
                self._keep_all(waiting)
                last.clear()
                held = 0
            elif fresh and rows.stop - rows.start == 1 and self.device.type == "cpu":
                last = [(fresh, content_of(fresh))]
            # The next chunk takes their memory.
            del answers, answer, up, state, metrics, model, fresh
        self._keep_all(waiting)

    def _scheduled(self, shard: WorkShard) -> dict[str, float]:
        """Floats of the hyperparameters that a schedule has changed since round 1, by path."""
        hyper = self.algorithms[shard.variant].hyper
        first = hyper.at(1).floats()
        return {path: value for path, value in hyper.at(shard.round).floats().items() if value != first.get(path)}

    def _states(self, shard: WorkShard, positions: np.ndarray) -> Tree:
        """States of some clients of a shard, stacked, as their step sees them."""
        lasting = self._lasting(shard, positions)
        lasting.pop(LATEST_CLIENT_MODEL, None)
        return {**lasting, **tree_map(lambda leaf: self._load(leaf[positions]), shard.scratch)}

    def _lasting(self, shard: WorkShard, positions: np.ndarray) -> Tree:
        if shard.rows is None:
            return {}
        return self.layouts[shard.variant].unpack(self._load(shard.rows.read(positions)))

    def _keep_all(self, waiting: list[Any]) -> None:
        """Keep the new states of some chunks of clients. Those of a shard are written together."""
        new: dict[int, list[tuple[WorkShard, np.ndarray, Tree]]] = {}
        masks = to_cpu([finite for *_, finite, _ in waiting])
        for (shard, positions, state, model, _, part), finite in zip(waiting, masks, strict=True):
            kept, lasting = self._keep(shard, positions, state, model, finite, part)
            if shard.rows is not None and len(kept):
                new.setdefault(shard.exchange, []).append((shard, kept, lasting))
        waiting.clear()
        for chunks in new.values():
            (shard, *_), every, states = zip(*chunks, strict=True)
            together = tree_map(lambda *parts: torch.cat(parts) if len(parts) > 1 else parts[0], *states)
            shard.rows.write(np.concatenate(every), together, self.layouts[shard.variant])

    def _keep(
        self,
        shard: WorkShard,
        positions: np.ndarray,
        state: Tree,
        model: Tree,
        finite: torch.Tensor,
        part: PartialAggregate,
    ) -> tuple[np.ndarray, Tree]:
        """Positions and states to write of the clients that did not diverge.

        model: the clients' own models, {} if the step returns none.
        """
        if self.track_models:
            before = self._lasting(shard, positions)
            latest = before[LATEST_CLIENT_MODEL]
            if model:
                part.add_client_model_delta(sub(model, latest), finite)
            # A step that returns no state changes none.
            state = {**before, **state, LATEST_CLIENT_MODEL: model or latest}
        if not state:
            return positions[:0], {}
        if not finite.all():
            state = tree_map(lambda leaf: leaf[finite.to(leaf.device)], state)
            positions = positions[finite.numpy()]
        names = self.layouts[shard.variant].initial
        part.kept[positions] = True
        if scratch := {name: value for name, value in state.items() if name not in names}:
            part.scratch.append((positions, to_wire(scratch)))
        return positions, {name: state[name] for name in names}

    def _load(self, array: Any) -> torch.Tensor:
        """Move an array to this worker's device; on the CPU, a view of the same memory, which must not change."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor.to(self.device, non_blocking=True)


def to_wire(states: Tree) -> Tree:
    """NumPy leaves, except for types that NumPy does not have, such as bfloat16."""
    return tree_map(lambda leaf: leaf.cpu() if leaf.dtype == torch.bfloat16 else leaf.detach().cpu().numpy(), states)
