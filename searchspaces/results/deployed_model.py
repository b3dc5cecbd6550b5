"""The model that a Hedge search deploys now, ready to predict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.trained_model import Support, TrainedModel
from hedgerow.platform.runtime.factory import Data, build_algorithms
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.hedge.deployment import DeployedState, Policy
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.search_file import SearchSpec
from hedgerow.searchspaces.spaces.space import Overrides

DEPLOYED = "deployed"
"""Name of the folder of the deployed state, and of its model in MLflow."""


class Mixture(nn.Module):
    """Logarithms of the weighted mean of the probabilities of several models."""

    def __init__(self, models: list[nn.Module], weights: list[float]):
        super().__init__()
        self.models, self.weights = nn.ModuleList(models), weights

    def forward(self, x: Tensor) -> Tensor:
        shares = [weight * model(x).softmax(-1) for model, weight in zip(self.models, self.weights, strict=True)]
        return torch.stack(shares).sum(0).log()


@dataclass(frozen=True)
class DeployedModel:
    """Model of the policy `search.deploy` after a complete round of Hedge or, with `allocate: promote`, after a block.

    round: number of the round or block. policy: leader, sample or mixture. weights: probability of each deployed
    expert, by its number; several only for a mixture. models: parameters of each, as tensors.
    """

    folder: RunFolder
    round: int
    policy: Policy
    weights: dict[int, float]
    models: Mapping[int, Tree] = field(repr=False)
    trials: Mapping[int, Experiment] = field(repr=False)
    """Experiment of each deployed expert."""
    experiment: Experiment = field(repr=False)
    data: Data | None = field(default=None, repr=False, compare=False)
    """Data set and partition, if the search was given its own."""

    @property
    def experts(self) -> list[int]:
        """Numbers of the deployed experts."""
        return list(self.weights)

    def predict(self, x: ArrayLike, support: Support | None = None) -> np.ndarray:
        """Probabilities (samples, classes) of raw samples, stored like those of the data set.

        For several experts, these are the weighted means of their probabilities. support: samples and labels of a task,
        to which a model that learns to adapt is adapted first; None: it predicts without adaptation.
        Raises UserError if the data of the search have changed, or if the model cannot predict.
        """
        return sum(
            weight * TrainedModel(self.folder.path, self._algorithms[expert], self.models[expert]).predict(x, support)
            for expert, weight in self.weights.items()
        )  # type: ignore[return-value]

    @property
    def module(self) -> nn.Module:
        """The model as a module: that of the expert, or a mixture of all of them."""
        models = [
            TrainedModel(self.folder.path, self._algorithms[expert], self.models[expert]).module(
                experiment, self._data[0], expert_folder(self.folder.path, expert).constants
            )
            for expert, experiment in self.trials.items()
        ]
        return models[0] if len(models) == 1 else Mixture(models, list(self.weights.values()))

    @cached_property
    def _data(self) -> Data:
        return same_data(self.folder, self.experiment, self.data, fix="load")

    @cached_property
    def _algorithms(self) -> dict[int, ComposedAlgorithm]:
        algorithms = {}
        for expert, experiment in self.trials.items():
            (algorithms[expert],) = build_algorithms([experiment], *self._data)
            compare_constants(algorithms[expert].task.module, expert_folder(self.folder.path, expert).constants)
        return algorithms


def read_deployed(
    folder: RunFolder, spec: SearchSpec, overrides: Mapping[int, Overrides], data: Data | None
) -> DeployedModel:
    """The model that a search deploys now. overrides: of each expert. data: see DeployedModel. Raises UserError."""
    state = DeployedState.read(folder.path / DEPLOYED)
    if state is None:
        raise UserError(
            f"{folder.path} has deployed no model yet: a search of kind hedge deploys one after each complete round, "
            "unless search.deploy_every is 0"
        )
    trials = {expert: spec.trial(overrides[expert]) for expert in state.weights}
    return DeployedModel(folder, state.round, state.policy, state.weights, state.models, trials, spec.experiment, data)
