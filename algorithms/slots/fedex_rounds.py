"""Rounds in which clients draw hyperparameters by FedEx.

Each client's values are added to the exchanges of a round, the client's model is scored after its local training, or
the server's before it, on the client's own validation samples, and the distributions are updated after the round.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ONCE, ClientData
from hedgerow.algorithms.core.messages import Aggregate, ClientStep, Exchange, StepResult
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.local_sgd import LOCAL, LocalSGD
from hedgerow.algorithms.slots.fedex import FedEx, draw, initial_state, theta, updated, updated_by_next
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm, Middleware
from hedgerow.algorithms.slots.slots import SlottedHyper

FEDEX = "fedex"
"""Key of the server state, of a client's message and of its validation stream that belong to FedEx."""

RECEIVED = "fedex_model"
"""Key of a client's message that has the server's model, for `score: server`."""

ERROR, SAMPLES = "validation_error", "validation_samples"
"""Metrics of a client's step: error of the model that it scores, and number of its validation samples."""


class FedExRounds(Middleware):
    """Lets clients draw some hyperparameters in each round.

    Values that are the same in all configurations are set once; the others are part of each client's message.
    """

    keys = (FEDEX,)

    def __init__(self, algorithm: ComposedAlgorithm, settings: FedEx):
        self.algorithm, self.settings = algorithm, settings
        first = {key: value for factor in settings.factors for key, value in factor[0].items()}
        inner = algorithm.inner
        known = {key.removeprefix("algorithm."): first[key] for key in _drawable(inner) if key in first}
        inner.hyper = inner.hyper.with_floats(known)

    def _path(self, key: str) -> str:
        """Path of a hyperparameter in `hyper`. key: its path in the experiment file."""
        return key if isinstance(self.algorithm.hyper, SlottedHyper) else key.removeprefix("algorithm.")

    def incompatibility(self) -> str | None:
        if reason := incompatibility(self.algorithm.inner, self.settings.keys, self.settings.score):
            return f"fedex: {reason}"
        if self.algorithm.task.is_static:
            return (
                "fedex: the model's normalisation has statistics of all clients, so that a client cannot score a "
                "model; choose another model, or remove `fedex`"
            )
        return self._wrong_value()

    def _wrong_value(self) -> str | None:
        hyper = self.algorithm.inner.hyper
        usual = hyper.model_dump(exclude={"name"})
        for i, factor in enumerate(self.settings.factors):
            for j, values in enumerate(factor):
                own = {key.removeprefix("algorithm."): value for key, value in values.items()}
                try:
                    type(hyper).model_validate(usual | own | {"name": hyper.name})
                except ValidationError as error:
                    message = error.errors()[0]["msg"]
                    return f"fedex.factors.{i}.{j}: a value of {', '.join(values)} is not valid ({message}); correct it"
        return None

    # ---- server part -------------------------------------------------------------------------------------------------

    def init_server(self) -> Tree:
        return {FEDEX: initial_state([len(factor) for factor in self.settings.factors])}

    def begin(self, server: Tree) -> None:
        if self.trains:
            self.draws = draw(server[FEDEX], self.cohort, self.settings.cutoff)
            self.columns = self._columns(self.cohort.round, self.draws)
            self.errors, self.sizes = torch.zeros((2, len(self.cohort.clients)), dtype=torch.float64)
            self.contributed = torch.ones(len(self.cohort.clients), dtype=torch.bool)
            self.received = (
                {RECEIVED: self.algorithm.evaluate_params(server)} if self.settings.score == "server" else {}
            )

    def before(self, exchange: Exchange) -> Exchange:
        """Lets each client also receive its values and score a model."""
        if not self.trains or exchange.site != "clients" or not len(exchange.clients):
            return exchange
        own: Tree = {}
        if self.columns:
            at = torch.from_numpy(np.searchsorted(self.cohort.clients, exchange.clients))
            own = {FEDEX: {path: column[at] for path, column in self.columns.items()}}
        exchange = replace(exchange, per_client={**exchange.per_client, **own})
        if exchange.step.__name__ not in self.algorithm.inner.training_steps:
            return exchange
        batches = {**exchange.batches, FEDEX: replace(ONCE, split="selection")}
        # The model is part of the message, or follows from it.
        return replace(exchange, batches=batches, local_inputs={**exchange.local_inputs, **self.received})

    def after(self, exchange: Exchange, result: Aggregate) -> Aggregate:
        if ERROR in result.metrics:
            at = np.searchsorted(self.cohort.clients, exchange.clients)
            self.errors[at], self.sizes[at] = (torch.from_numpy(result.metrics[name]) for name in (ERROR, SAMPLES))
            self.contributed[at] = torch.from_numpy(result.contributed)
        return result

    def end(self, server: Tree, after: Tree) -> Tree:
        state, settings = server[FEDEX], self.settings
        if settings.score == "server":
            state = updated_by_next(state, self.draws, self.errors, self.sizes, self.contributed, settings)
        else:
            # A client that diverged has error 1.
            errors = torch.where(self.contributed, self.errors, 1.0)
            state = updated(state, self.draws, errors, self.sizes, settings)
        return {**after, FEDEX: state}

    def without_contributions(self, server: Tree, exchanged: list[tuple[Exchange, Aggregate]]) -> Tree:
        self.begin(server)
        for exchange, result in exchanged:
            self.after(exchange, result)
        self.contributed[:] = False
        return self.end(server, {})

    def round_metrics(self, server: Tree) -> dict[str, float]:
        """Returns probability and number of draws of value j of distribution i: `theta_i_j` and `draws_i_j`."""
        metrics = dict[str, float]()
        for i, one in server[FEDEX]["distributions"].items():
            for j, (p, n) in enumerate(zip(theta(one).tolist(), one["draws"].tolist(), strict=True)):
                metrics |= {f"theta_{i}_{j}": p, f"draws_{i}_{j}": n}
        return metrics

    def _columns(self, round: int, draws: list[Tensor]) -> dict[str, Tensor]:
        """Values of each client, by path, (clients,) float64, for those that differ between configurations."""
        factors = [
            [{self._path(key): value for key, value in values.items()} for values in factor]
            for factor in self.settings.factors
        ]
        # A schedule may change other values than those that are drawn.
        usual = self._floats(round, {})
        alone = [self._floats(round, values) for factor in factors for values in factor[1:]]
        varying = [path for path in usual if any(floats[path] != usual[path] for floats in alone)]
        combinations, rows = torch.stack(draws, 1).unique(dim=0, return_inverse=True)
        drawn = [
            self._floats(
                round, {k: x for factor, j in zip(factors, numbers, strict=True) for k, x in factor[j].items()}
            )
            for numbers in combinations.tolist()
        ]
        return {path: torch.tensor([floats[path] for floats in drawn], dtype=torch.float64)[rows] for path in varying}

    def _floats(self, round: int, values: Mapping[str, float]) -> dict[str, float]:
        """Hyperparameters in effect in a round, by path. values: those that replace the usual ones in round 1."""
        return self.algorithm.hyper.with_floats(values).at(round).floats()

    # ---- client part -------------------------------------------------------------------------------------------------

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        own, model = down.get(FEDEX), down.get(RECEIVED)
        down = {key: entry for key, entry in down.items() if key not in (FEDEX, RECEIVED)}
        if own:
            # In double precision, every product with a tensor would be, too.
            hp = (
                _with_tensors(hp, {path: value.float() for path, value in own.items()})
                if data.batched
                else hp.with_floats({path: value.item() for path, value in own.items()})
            )
        scores = {} if model is None else self._scores(model, data)
        result = StepResult.of(step(hp, down, state, data))
        if FEDEX not in data.streams:
            return result
        if scores:
            return result._replace(metrics={**result.metrics, **scores})
        if result.model is None:
            raise ContractError(
                f"its step `{name}` is one of `training_steps`, but returns no model, which FedEx scores; return it "
                "as the `model` of the StepResult"
            )
        w = self.algorithm.evaluate_params({"w": result.model})
        return result._replace(metrics={**result.metrics, **self._scores(w, data)})

    def _scores(self, w: Tree, data: ClientData) -> dict[str, Tensor]:
        """Error of a model on a client's validation samples (NaN if there are none), and their number."""
        correct: Any = 0
        samples: Any = 0
        for batch in data.batches(FEDEX):
            # Only the predictions: the loss costs as much again for a small model.
            hits = self.algorithm.task.logits(w, batch.x).argmax(-1) == batch.y
            if batch.mask is None:
                correct, samples = correct + hits.sum(), samples + len(batch.y)
            else:
                correct, samples = correct + (hits * batch.mask).sum(), samples + batch.mask.sum()
        correct, samples = (torch.as_tensor(x, dtype=torch.float32, device=data.x.device) for x in (correct, samples))
        return {ERROR: 1 - correct / samples, SAMPLES: samples}


def _drawable(algorithm: Algorithm) -> list[str]:
    """Keys of an experiment file whose values the clients of an algorithm can draw: floats that only their training
    uses.
    """
    if not algorithm.training_steps or algorithm.trains_on != "clients":
        return []
    solver = LOCAL if isinstance(algorithm.hyper, LocalSGD) else ()
    return [f"algorithm.{key}" for key in dict.fromkeys((*solver, *algorithm.inferred.client_floats))]


def incompatibility(algorithm: Algorithm, keys: list[str], score: str) -> str | None:
    """Returns one sentence on why clients of an algorithm cannot draw the values of these keys, or why no model can be
    scored as `score` says; None if they can.
    """
    drawable, name = _drawable(algorithm), algorithm.hyper.name
    if not drawable:
        return f"clients of {name} have no hyperparameters that they can draw by FedEx; use another kind of search"
    for key in keys:
        if key not in drawable:
            return (
                f"clients of {name} cannot draw {key} by FedEx, only floats that their local training alone uses "
                f"({', '.join(drawable)}); remove it, or use another kind of search"
            )
    if score == "server" and algorithm.is_personal:
        return f"clients of {name} have models of their own, so the server has none to score; set `score: client`"
    return None


def _with_tensors(hp: Any, values: Mapping[str, Tensor]) -> Any:
    """Copy of batched hyperparameters in which tensors replace some values, by dotted path."""
    copy = SimpleNamespace(**vars(hp))
    for path, value in values.items():
        section, _, rest = path.partition(".")
        setattr(copy, section, _with_tensors(getattr(copy, section), {rest: value}) if rest else value)
    return copy
