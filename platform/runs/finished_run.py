"""Finished runs and run folders, for use in Python and in notebooks."""

from base64 import b64encode
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from hedgerow.algorithms.core.pytree import Tree, difference, tree_map
from hedgerow.algorithms.core.task import Task, trainable
from hedgerow.algorithms.personalized.adaptation import Adapting, PrototypeTask
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.algorithms.slots.train_mode_rounds import BUFFERS
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.same_settings import changed_settings_warnings
from hedgerow.platform.runs.trained_model import Support, TrainedModel, as_tensor
from hedgerow.platform.runtime.evaluation import scored_state
from hedgerow.platform.runtime.factory import Data, build_algorithms
from hedgerow.platform.storage.checkpoint import checkpoints, read_checkpoint, read_states, round_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.decisions import BestRound
from hedgerow.platform.tracking.formatting import summary_table
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.plots import curves

if TYPE_CHECKING:
    from pandas import DataFrame

TEST_SELECTED = (
    "test data took part in the selection (evaluation.allow_test_selection): scores of the best round, and of the last "
    "one after an early end, are not estimates of the performance on new data"
)

Round = int | Literal["best"] | None
"""Round of a checkpoint; "best": by `checkpoints.best`; None: the last one."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; or, read from its folder, a run with its rounds so far.

    records: one per round. summary: result of `summary.summarise`, empty before the first round. model: parameters, if
    they are in memory. warning: a sentence about failures that did not stop the run.
    """

    folder: RunFolder
    experiment: Experiment
    records: list[RoundRecord]
    summary: dict[str, Any]
    model: Tree | None = None
    warning: str | None = None
    data: Data | None = field(default=None, repr=False, compare=False)
    """Data set and partition, if the run was given its own, for `parameters`, `module` and `predict`."""

    @classmethod
    def read(cls, folder: RunFolder, data: Data | None = None) -> Self:
        """Read a run from its folder. data: data set and partition, if the run was given its own."""
        experiment, run = load_experiment(folder.experiment), Run.read(folder)
        summary = run.record.get("summary") or (run.summary if run.records else {})
        warnings = changed_settings_warnings(run.record) + run.record.get("diverged", [])
        warnings += [TEST_SELECTED] * experiment.selects_on_test
        return cls(folder, experiment, run.records, summary, warning="; ".join(warnings) or None, data=data)

    @property
    def status(self) -> str:
        """Status of the run: finished, running, interrupted, failed or stopped."""
        return self.folder.status

    @property
    def ended(self) -> str | None:
        """Reason why the run ended before its last round; None if it did not, or if its targets ended it."""
        return self.folder.record().get("ended")

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """Execution plan of each step. With these `engine.plans`, another run reproduces the numbers bit for bit."""
        return self.folder.record().get("plans", {})

    @cached_property
    def frame(self) -> "DataFrame":
        """A pandas frame with a row for each round and a column for each metric."""
        return rounds_frame(self.records)

    @cached_property
    def parameters(self) -> Tree:
        """Trained parameters of the model as arrays, without frozen ones.

        For a run that was read from its folder, this needs its data. Raises UserError.
        """
        return self.model if self.model is not None else saved_parameters(self._algorithm, self.folder)

    @property
    def missing_parameters(self) -> list[str]:
        """Parameters of the model that the server does not train: each client has them for itself, or no model does."""
        algorithm = self._algorithm
        initial = algorithm.init_server()
        # Without `w`, the model is in other entries of the server state.
        has = initial["w"] if algorithm.inner.is_personal and "w" in initial else self.parameters
        return [name for name in trainable(algorithm.task.module) if name not in has]

    @property
    def best_round(self) -> int | None:
        """Best round by `checkpoints.best`, the first one of equal rounds; None if there is none."""
        metric = self.experiment.checkpoints.best
        return BestRound(metric, records=self.records, modes=self.experiment.task.modes).round if metric else None

    def module(self, round: Round = None, client: int | None = None) -> torch.nn.Module:
        """The model with its trained and frozen parameters, in eval mode: an ordinary module, independent of the run.

        It maps `prepare(x)` to logits (samples, classes). round: a round that has a checkpoint, or "best"; None: the
        last one. client: whose own model, if models are personal; None: the common one, in which
        `missing_parameters` have their initial values. Needs the data of the run. Raises UserError.
        """
        trained = self._trained(round)
        w = trained.w if client is None else self._own_parameters(trained, round, client)
        return replace(trained, w=w).module(self.experiment, self._data[0], self.folder.constants)

    @property
    def task(self) -> Task:
        """Task of the run: its model, and the normalisation of its samples. Needs the data of the run."""
        return self._algorithm.task

    def prepare(self, x: ArrayLike) -> torch.Tensor:
        """Input of `module` for raw samples: normalised as in training, or integers for tokens."""
        return self.task.prepare(as_tensor(x))

    @property
    def samples(self) -> np.ndarray:
        """Raw test samples of the run's data set, as they are stored; training samples if there are none."""
        dataset = self._data[0]
        return dataset.x_test if len(dataset.x_test) else dataset.x_train

    def predict(self, x: ArrayLike, round: Round = None, client: int | None = None) -> np.ndarray:
        """Predictions for raw samples, stored like those of the data set: probabilities (samples, classes), or, if the
        targets are no classes, probabilities of labels or tokens, or numbers.

        round: see `module`. client: whose own model predicts, if models are personal: the one in the client's state, or
        the common model, adapted to the client's training samples. Raises UserError if the model cannot predict.
        """
        trained = self._trained(round)
        if client is None and trained.algorithm.inner.is_personal and trained.algorithm.task.is_scored:
            raise UserError(
                f"{self.folder.path}: with {self.experiment.algorithm.name} every client has its own model; choose "
                f"one by `client=`, from 0 to {len(self._data[1]) - 1}"
            )
        if client is None:
            return trained.predict(x)
        if isinstance(trained.algorithm.inner, Adapting):
            return trained.predict(x, self._support(trained, client))
        return replace(trained, w=self._own_parameters(trained, round, client)).predict(x)

    @cached_property
    def _data(self) -> Data:
        return same_data(self.folder, self.experiment, self.data, fix="load")

    @cached_property
    def _algorithm(self) -> ComposedAlgorithm:
        (algorithm,) = build_algorithms([self.experiment], *self._data)
        return algorithm

    def _trained(self, round: Round) -> TrainedModel:
        if round == "best":
            round = self.best_round
            if round is None:
                raise UserError(
                    f"{self.folder.path} has no best round: set `checkpoints.best` in the experiment, such as "
                    "validation_accuracy, before it runs"
                )
        parameters = self.parameters if round is None else saved_parameters(self._algorithm, self.folder, round)
        compare_constants(self._algorithm.task.module, self.folder.constants)
        return TrainedModel(self.folder.path, self._algorithm, tree_map(as_tensor, parameters))

    def _check_client(self, trained: TrainedModel, client: int) -> None:
        """Raises UserError if there is no model of this client."""
        if not trained.algorithm.inner.is_personal:
            name = self.experiment.algorithm.name
            raise UserError(f"{self.folder.path}: with {name} all clients have the same model; omit `client`")
        if not 0 <= client < len(self._data[1]):
            raise UserError(f"{self.folder.path}: no client {client}; choose one from 0 to {len(self._data[1]) - 1}")

    def _support(self, trained: TrainedModel, client: int) -> Support:
        """A client's training samples and their labels."""
        self._check_client(trained, client)
        dataset, partition = self._data
        rows = partition.samples(client)[: partition.train_sizes[client]]
        labels = dataset.y_train if partition.labels is None else partition.labels
        return dataset.x_train[rows], labels[rows]

    def _own_parameters(self, trained: TrainedModel, round: Round, client: int) -> Tree:
        """Parameters of a client's own model. Raises UserError if there is no such model, or it is no module."""
        self._check_client(trained, client)
        algorithm = trained.algorithm
        if not isinstance(algorithm.inner, Adapting):
            file = saved_checkpoint(self.folder, self.best_round if round == "best" else round)
            state = saved_state(file, client) or algorithm.init_client()
            own = algorithm.inner.personal_model(trained.w, state)
            if own is None:
                raise UserError(
                    f"{self.folder.path}: the clients' own models of {algorithm.hyper.name} cannot be read from their "
                    "states; `module()` has the common model"
                )
            return {**trained.w, **state.get(BUFFERS, {}), **own}
        task, w = trained.adapted(self._support(trained, client))
        if isinstance(task, PrototypeTask):
            raise UserError(
                f"{self.folder.path}: the model of a client compares outputs with the client's prototypes, so it is no "
                "module; use `predict`"
            )
        return w

    def figure(self, by: str = "round") -> Any:
        """Curves as a matplotlib figure. by: "round", or "traffic" for transmitted parameters."""
        return curves({self.experiment.name: [self.records]}, by, self.experiment.evaluation.accuracies)

    def __repr__(self) -> str:
        return f"<run {self.folder.name}: {self.status}, {len(self.records)} of {self.experiment.rounds} rounds>"

    def _repr_html_(self) -> str:
        table = summary_table([("", self.summary)] if self.summary else [])
        return page(self.folder, self.status, self.warning, table, self._repr_png_())

    def _repr_png_(self) -> bytes | None:
        return self.figure()._repr_png_() if self.records else None


def rounds_frame(records: list[RoundRecord]) -> "DataFrame":
    """Records as a pandas frame, indexed by round."""
    # Imported here: pandas takes a second to import.
    from pandas import DataFrame

    return DataFrame(records).set_index("round") if records else DataFrame()


def page(folder: RunFolder, status: str, warning: str | None, table: Table, png: bytes | None) -> str:
    """HTML of a run or a search in a notebook: name and folder, a table, a figure."""
    parts = [f"<p><b>{escape(folder.name)}</b> &ensp; {escape(status)} &ensp; <code>{escape(str(folder))}</code></p>"]
    if warning:
        parts.append(f"<p>{escape(warning)}</p>")
    if table.rows:
        parts.append(table.html())
    if png:
        source = f"data:image/png;base64,{b64encode(png).decode()}"
        parts.append(f'<img src="{source}" alt="{escape(folder.name)}" style="max-width: 100%; background: white">')
    return "\n".join(parts)


def saved_parameters(algorithm: ComposedAlgorithm, folder: RunFolder, round: int | None = None) -> Tree:
    """Parameters in a checkpoint of a run, as arrays. round: that of the checkpoint; None: the last one.

    Raises UserError if there is no such checkpoint, or if it is damaged or of another model.
    """
    file = saved_checkpoint(folder, round)
    server, _ = read_checkpoint(file)
    if mismatch := difference(algorithm.init_server(), server):
        raise UserError(f"{file} {mismatch} the model and the algorithm of {folder.experiment}; restore that file")
    return tree_map(lambda leaf: leaf.numpy(), algorithm.evaluate_params(scored_state(server)))


def saved_state(checkpoint: Path, client: int) -> Tree | None:
    """State of a client in a checkpoint; None if the client has not taken part yet. Raises UserError."""
    block = next((block for block in read_states(checkpoint) if client in block[0]), None)
    if block is None:
        return None
    row = int(np.flatnonzero(block[0] == client)[0])
    return tree_map(lambda leaf: leaf[row], block[1])


def saved_checkpoint(folder: RunFolder, round: int | None = None) -> Path:
    """Checkpoint of a round of a run; None: of the last one. Raises UserError if there is none."""
    files = {round_of(file): file for file in checkpoints(folder.checkpoints)}
    if not files:
        raise UserError(f"{folder.path} has no checkpoint yet, so it has no parameters; resume it")
    if round is not None and round not in files:
        raise UserError(
            f"{folder.path} has no checkpoint of round {round} (available: {', '.join(map(str, files))}); "
            "checkpoints.every, keep and best decide which rounds have one"
        )
    return files[max(files) if round is None else round]
