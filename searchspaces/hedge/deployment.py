"""Deployed policies of Hedge: what is predicted with in each round, and the folder with the state that is deployed now.

The process of an expert writes a file for each of its rounds (`keep_round`): its predictions on the samples of the
round and its model after the round. When a round is complete, `Deployment` reads the files of all experts, mixes the
predictions, replaces the deployed state, and deletes the files.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError

from hedgerow.algorithms.core.messages import Predictions
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.checkpoint import load_sealed, save_sealed

Policy = Literal["leader", "sample", "mixture"]
"""leader: expert with the largest weight, the first one on ties; of promotion, with the best score. sample: expert
drawn from the weights. mixture: all experts, with the weighted mean of their predicted probabilities."""

KEPT = ".rounds"
"""Folder of an expert with the files of its rounds that are not complete yet. The copy in a storage has none of it."""

STATE = "state.safetensors"
"""The one file of the folder `deployed`. A folder cannot be replaced in one step, but a file can."""

LARGEST = 64 * 2**20
"""Largest size in bytes of an expert's predictions in one round (4 bytes per sample and class). Above it, there is no
mixture."""


class Score(NamedTuple):
    """Accuracy and mean cross-entropy of a prediction."""

    accuracy: float
    loss: float


def score_names(metric: str) -> dict[str, str]:
    """Names of the accuracy and of the loss on the samples of a metric, by "accuracy" and "loss"."""
    return {kind: f"{metric.partition('_')[0]}_{kind}" for kind in ("accuracy", "loss")}


def draw(seed: int, round: int, weights: np.ndarray) -> int:
    """Index of the expert that the policy `sample` draws from the weights (experts,) of a round.

    The draw depends on seed, round and weights only. round: number of earlier rounds of Hedge.
    """
    return int(np.random.default_rng((seed, round)).choice(len(weights), p=weights))


def mixture_score(weights: Mapping[int, float], predictions: Mapping[int, Predictions]) -> Score | None:
    """Score of the prediction sum_i p_i softmax(logits_i) on the samples that all experts have predicted.

    weights: p by expert; they are normalised. Experts whose predictions are not finite are left out. None: no expert is
    left, or the experts have not predicted the same samples. The loss is at most the mean of the experts' losses under
    p, by Jensen's inequality.
    """
    finite = {i: one for i, one in predictions.items() if i in weights and np.isfinite(one.log_probabilities).all()}
    mass = sum(weights[i] for i in finite)
    if not finite or mass <= 0:
        return None
    first = next(iter(finite.values()))
    if any(not np.array_equal(one.labels, first.labels) for one in finite.values()) or not len(first.labels):
        return None
    mixed = np.zeros(first.log_probabilities.shape)
    for i, one in sorted(finite.items()):
        mixed += weights[i] / mass * np.exp(one.log_probabilities.astype(float))
    # In logarithms: the probability of a class may be 0 in double precision.
    right = [
        np.log(weights[i] / mass)
        + np.take_along_axis(one.log_probabilities, one.labels[:, None], 1)[:, 0].astype(float)
        for i, one in sorted(finite.items())
        if weights[i] > 0
    ]
    loss = -np.logaddexp.reduce(right, axis=0).mean()
    return Score(float((mixed.argmax(1) == first.labels).mean()), float(loss))


def keep_round(folder: Path, round: int, predictions: Predictions | None, model: Tree | None) -> None:
    """Write the file of an expert's round. folder: the expert's run folder."""
    tree: Tree = {}
    if predictions is not None:
        # The outputs of a metric that needs them are not mixed.
        parts = {"log_probabilities": predictions.log_probabilities, "labels": predictions.labels}
        tree["predictions"] = {name: torch.from_numpy(part) for name, part in parts.items()}
    if model is not None:
        tree["model"] = model
    if tree:
        file = kept_file(folder, round)
        file.parent.mkdir(exist_ok=True)
        aside = file.with_suffix(f".{os.getpid()}.tmp")
        # Not flushed to disk: after a crash of the machine, the round may have no mixture, but nothing else is lost.
        save_sealed(tree, aside)
        aside.replace(file)


def kept_file(folder: Path, round: int) -> Path:
    """File of an expert's round. folder: the expert's run folder."""
    return folder / KEPT / f"{round:08d}.safetensors"


@dataclass(frozen=True)
class DeployedState:
    """Content of the folder `deployed`. round: the complete round, or the block, after which the models are. weights:
    probability of each deployed expert, by number. models: parameters of each, as
    `Algorithm.evaluate_params` returns them.
    """

    round: int
    policy: Policy
    weights: dict[int, float]
    models: dict[int, Tree]

    def write(self, folder: Path) -> None:
        """Replace the state in a folder in one step."""
        folder.mkdir(exist_ok=True)
        aside = folder / f".{STATE}.{os.getpid()}.tmp"
        models = {str(expert): model for expert, model in self.models.items()}
        save_sealed(models, aside, round=self.round, policy=self.policy, weights=list(self.weights.items()))
        aside.replace(folder / STATE)

    @classmethod
    def read(cls, folder: Path) -> "DeployedState | None":
        """The verified state in a folder; None if there is none. Raises UserError when the file is damaged."""
        file = folder / STATE
        if not file.exists():
            return None
        try:
            tree, notes = load_sealed(file)
            weights = {int(expert): float(weight) for expert, weight in notes["weights"]}
            return cls(notes["round"], notes["policy"], weights, {int(expert): tree[expert] for expert in tree})
        except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
            raise UserError(
                f"{file} cannot be read ({error}); delete it: the search replaces it in its next complete round"
            ) from None


class Deployment:
    """Mixes the predictions of complete rounds, and deploys the state of the experts that a policy chooses.

    folder: folder of the deployed state. expert_folder: run folder of an expert, by its number. policy: whose state is
    deployed. every: rounds between two replacements of the state; 0: it is never deployed. last: last round, which is
    always deployed unless `every` is 0. mixes: whether the experts keep their predictions. warn: called at most once
    for each kind of file that is missing.
    """

    def __init__(
        self,
        folder: Path,
        expert_folder: Callable[[int], Path],
        policy: Policy,
        every: int,
        last: int,
        mixes: bool,
        warn: Callable[[str], None],
    ):
        self.folder, self.expert_folder, self.policy = folder, expert_folder, policy
        self.every, self.last, self.mixes, self.warn = every, last, mixes, warn
        self._warned: set[str] = set()
        self._deployed: int | None = None

    def mixture(self, round: int, weights: Mapping[int, float]) -> Score | None:
        """Score of the mixture in a round; None if some expert has no predictions. weights: p^t by expert."""
        if not self.mixes:
            return None
        found: dict[int, Predictions] = {}
        for expert in weights:
            tree = self._read(expert, round, "predictions")
            if tree is None:
                self._warn_once(
                    "mixture",
                    f"no mixture is recorded in round {round}: expert {expert} did not return its predictions",
                )
                return None
            found[expert] = Predictions(tree["log_probabilities"].numpy(), tree["labels"].numpy())
        score = mixture_score(weights, found)
        if score is None:
            self._warn_once("mixture", f"no mixture is recorded in round {round}: the predictions cannot be combined")
        return score

    def is_due(self, round: int) -> bool:
        """Whether the state after a round is deployed."""
        return is_due(round, self.every, self.last)

    def deploy(self, round: int, weights: Mapping[int, float], rounds: Mapping[int, int] | None = None) -> None:
        """Replace the deployed state. weights: of the deployed experts in the next round, by expert. rounds: round of
        each expert's model; None: this one.
        """
        if self._deployed is None:
            # A resumed search passes its complete rounds again, whose files are gone.
            state = DeployedState.read(self.folder)
            self._deployed = 0 if state is None else state.round
        if round <= self._deployed:
            return
        models: dict[int, Tree] = {}
        for expert in weights:
            model = self._read(expert, round if rounds is None else rounds[expert], "model")
            if model is None:
                now = (
                    f"the deployed state is still that of round {self._deployed}"
                    if self._deployed
                    else "none is deployed"
                )
                self._warn_once("model", f"{now} after round {round}: expert {expert} kept no model of that round")
                return
            models[expert] = model
        DeployedState(round, self.policy, dict(weights), models).write(self.folder)
        self._deployed = round

    def forget(self, round: int, experts: Iterable[int]) -> None:
        """Delete the files of all rounds of some experts up to this one."""
        for expert in experts:
            folder = self.expert_folder(expert) / KEPT
            for file in folder.iterdir() if folder.exists() else ():
                if file.stem.isdigit() and int(file.stem) <= round:
                    file.unlink(missing_ok=True)

    def _read(self, expert: int, round: int, branch: str) -> Tree | None:
        """Part of the file of an expert's round; None if it is missing or damaged."""
        try:
            return load_sealed(kept_file(self.expert_folder(expert), round), branch)[0].get(branch)
        except (OSError, KeyError, ValueError, TypeError, SafetensorError):
            return None

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            self.warn(text)


def is_due(round: int, every: int, last: int) -> bool:
    """Whether the state after a round is deployed. every: see Deployment."""
    return every > 0 and (round % every == 0 or round == last)
