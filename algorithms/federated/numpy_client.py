"""Federated averaging over existing clients: objects with the methods of Flower's `NumPyClient`."""

import inspect
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.core.messages import Aggregate, ClientStep, Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.own_code import ImportRefusedError, find, is_own
from hedgerow.algorithms.core.parts import ContractError, Part
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Task, trainable
from hedgerow.algorithms.slots.train_mode_rounds import BUFFERS, typed

Scalar = bool | int | float | str

FACTORY = "algorithm.client_fn"
"""Hyperparameter that names the factory of the clients."""

MESSAGE_APP = "ClientApp"
"""Class of Flower whose functions take and return messages."""

EXAMPLES = "num_examples"
"""Metric of the client steps: number of samples that a client's `fit` or `evaluate` used."""

OWN = "@own/"
"""Prefix of the metrics that the clients' own `evaluate` returns."""


class NumPyClients(Algorithm):
    """FedAvg whose client step is the `fit` of an object that the user's factory makes for each client [McMahan2017].

    A client receives and returns the arrays of the model's `state_dict`, without frozen parameters: parameters and
    buffers. Means are weighted by the `num_examples` that clients return. Flower itself is not imported.
    """

    parts: Mapping[str, Mapping[str, Part]] = {"train": {"w": Part("w", "value")}}
    training_steps = ()
    single_exchange = False

    class Hyper(HyperParameters):
        """The factory of the clients, and values for the factory and the clients."""

        dotted_key: ClassVar[str] = "client_fn"
        no_vmap: ClassVar[str] = "clients with a `fit` of their own run one after the other"

        client_fn: str = Field(
            description="dotted path of the function that makes a client: client_fn(context) as in Flower, with "
            "context.node_config and context.run_config, or client_fn(cid)"
        )
        run_config: dict[str, Scalar] = Field({}, description="values of context.run_config")
        config: dict[str, Scalar] = Field(
            {}, description="values of the `config` of fit and evaluate, next to server_round"
        )

        @field_validator("client_fn")
        @classmethod
        def _can_be_imported(cls, client_fn: str) -> str:
            _factory(client_fn)
            return client_fn

        def at(self, round: int) -> Self:
            return self.model_copy(update={"config": {"server_round": round, **self.config}})

    def __init__(self, hyper: Any, task: Task):
        # Training mode is a matter of the user's clients.
        super().__init__(hyper, replace(task, train_mode=None))
        self.names = _names(task.module)
        buffers = dict(task.module.named_buffers())
        self.buffers = {name: buffers[name].detach().clone() for name in self.names if name in buffers}
        if self.buffers:
            self.parts = {"train": {**self.parts["train"], BUFFERS: Part(BUFFERS, "opaque")}}

    def incompatibility(self) -> str | None:
        mode = getattr(self.task.module, "train_mode", None)
        if mode is not None and mode.buffers and mode.policy != "average":
            return "task.model.buffers: the server averages all arrays that clients return; set it to average"
        return None

    def init_server(self) -> Tree:
        return {"w": self.task.init(), **({BUFFERS: self.buffers} if self.buffers else {})}

    def evaluate_params(self, server: Tree) -> Tree:
        return {**server["w"], **server.get(BUFFERS, {})}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self._exchange(self.train, server, cohort, weighted_by=EXAMPLES)
        return {"w": result.up["w"], **({BUFFERS: typed(result.up[BUFFERS], self.buffers)} if self.buffers else {})}

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        test, held_out = yield from super().evaluate(server, cohort)
        own = yield self._exchange(self.evaluate_own, server, cohort)
        return replace(test, metrics={**test.metrics, **own.metrics}), held_out

    def evaluation_metrics(self, server: Tree, test: Aggregate) -> dict[str, float]:
        """Means of the results of the clients' own `evaluate`, weighted by their `num_examples`."""
        own = {name.removeprefix(OWN): values for name, values in test.metrics.items() if name.startswith(OWN)}
        samples = own.pop(EXAMPLES, None)
        has_samples = samples is not None and samples.any()
        return {
            f"client_evaluate_{name}": float(np.average(values, weights=samples)) if has_samples else math.nan
            for name, values in own.items()
        }

    def _exchange(self, step: ClientStep, server: Tree, cohort: Cohort, weighted_by: str | None = None) -> Exchange:
        return Exchange(
            step,
            server,
            cohort.clients,
            local_inputs={"population": torch.tensor(cohort.population)},
            local_inputs_per_client={"id": torch.from_numpy(cohort.clients)},
            weighted_by=weighted_by,
            keyed=True,
        )

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        with _seeded(data.key), _named(hp.client_fn):
            answer = _client(hp, down).fit(self._arrays(down), dict(hp.config))
        parameters, examples, numbers = _parts(answer, f"`fit` of {hp.client_fn}", "parameters")
        model = self._tree(parameters, self.evaluate_params(down), hp.client_fn)
        up = {"w": {name: model[name] for name in down["w"]}}
        if self.buffers:
            # Whole numbers, such as a number of mini-batches, are averaged as 64-bit floats.
            own = {name: model[name] for name in self.buffers}
            up[BUFFERS] = {name: value if value.is_floating_point() else value.double() for name, value in own.items()}
        return StepResult(up, state, {**numbers, EXAMPLES: torch.tensor(examples)}, model)

    def evaluate_own(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step after a round: the client's own `evaluate`, if it has one."""
        with _seeded(data.key), _named(hp.client_fn):
            client = _client(hp, down)
            if not callable(getattr(client, "evaluate", None)):
                return {}, state, {}
            answer = client.evaluate(self._arrays(down), dict(hp.config))
        loss, examples, numbers = _parts(answer, f"`evaluate` of {hp.client_fn}", "loss")
        numbers |= _numbers({"loss": loss, EXAMPLES: examples})
        return {}, state, {OWN + name: value for name, value in numbers.items()}

    def _arrays(self, down: Tree) -> list[np.ndarray]:
        model = self.evaluate_params(down)
        return [model[name].detach().cpu().numpy().copy() for name in self.names]

    def _tree(self, parameters: Any, like: Tree, client_fn: str) -> Tree:
        """Names the arrays that `fit` returns. Raises ContractError if they are not those of the model."""
        arrays = [np.asarray(array) for array in parameters]
        shapes = [tuple(like[name].shape) for name in self.names]
        if [array.shape for array in arrays] != shapes:
            returned = ", ".join(str(array.shape) for array in arrays)
            raise ContractError(
                f"`fit` of {client_fn} returns arrays of shapes {returned}, but those of task.model have shapes "
                f"{', '.join(map(str, shapes))}; return the values of `state_dict()` in its order, without frozen "
                "parameters",
                FACTORY,
            )
        # A parameter that is in the model under several names has the value under the first one.
        named = dict(zip(reversed(self.names), reversed(arrays), strict=True))
        return {name: torch.from_numpy(np.array(named[name])).to(leaf) for name, leaf in like.items()}


def _names(module: nn.Module) -> list[str]:
    """Names of the arrays that a client receives, in the order of `state_dict`: trainable parameters and buffers.

    A parameter that layers share has one name, as often as `state_dict` has it.
    """
    parameters = {id(parameter): name for name, parameter in trainable(module).items()}
    state = module.state_dict(keep_vars=True).items()
    names = [parameters.get(id(value), name) for name, value in state]
    buffers = {name for name, _ in module.named_buffers()}
    return [name for name in names if name in buffers or name in parameters.values()]


def _factory(dotted: str) -> Callable[..., Any]:
    """Imports the factory of the clients. Raises ValueError, with the reason in one sentence."""
    path = dotted.replace(":", ".")
    try:
        found = find(path) if "." in path and all(part.isidentifier() for part in path.split(".")) else None
    except ImportRefusedError as error:
        raise ValueError(f"cannot import {dotted!r}: {error}") from None
    except ImportError as error:
        raise ValueError(f"cannot import {dotted!r} ({error}); put it into the folder of the experiment file") from None
    except Exception as error:
        raise ValueError(f"cannot import {dotted!r}: {_located(error)}; fix it there") from error
    if type(found).__name__ == MESSAGE_APP:
        raise ValueError(
            f"{dotted!r} is a {MESSAGE_APP} of Flower's Message API (@app.train, @app.evaluate), which is not taken; "
            "write the client as a NumPyClient, and name a function client_fn(context) that returns it"
        )
    if not callable(found):
        raise ValueError(f"{dotted!r} is not a function; write a dotted path such as my_client.client_fn")
    if not is_own(found, path):
        raise ValueError(f"{dotted!r} is not a function of yours; name one in a module next to the experiment file")
    return found  # type: ignore[no-any-return]


def _client(hp: Any, down: Tree) -> Any:
    """Makes the client of a step, in the way in which Flower's simulation makes one for each message."""
    number, population = int(down["id"]), int(down["population"])
    make = _factory(hp.client_fn)
    if list(inspect.signature(make).parameters) == ["cid"]:
        client = make(str(number))
    else:
        nodes = {"partition-id": number, "num-partitions": population}
        client = make(SimpleNamespace(node_id=number, node_config=nodes, run_config=dict(hp.run_config)))
    # `NumPyClient.to_client` wraps the object.
    client = getattr(client, "numpy_client", client)
    if not callable(getattr(client, "fit", None)):
        raise ContractError(
            f"{hp.client_fn} returns an object of type {type(client).__name__}, which has no method `fit`; return a "
            "NumPyClient",
            FACTORY,
        )
    return client


@contextmanager
def _named(client_fn: str) -> Iterator[None]:
    """Errors of the user's clients become a ContractError with their location."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(
            f"a client of {client_fn} fails: {_located(error)}; fix it there, or make algorithm.run_config and "
            "task.model those of the clients",
            FACTORY,
        ) from error


def _located(error: Exception) -> str:
    """An error of the user's code on one line, with its last place outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), frames[-1])
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {' '.join(str(error).split())[:300]}"


def _described(answer: Any) -> str:
    return f"{type(answer).__name__} of {len(answer)}" if isinstance(answer, tuple | list) else type(answer).__name__


def _parts(answer: Any, what: str, first: str) -> tuple[Any, float, dict[str, Tensor]]:
    """First entry, num_examples, and numeric metrics of the answer of a client. Raises ContractError."""
    if not (isinstance(answer, tuple | list) and len(answer) == 3 and isinstance(answer[2], Mapping)):
        raise ContractError(
            f"{what} returns {_described(answer)}; return a tuple ({first}, num_examples, metrics), with a dictionary "
            "of metrics",
            FACTORY,
        )
    examples = answer[1]
    if not isinstance(examples, int | float | np.number) or not 0 <= examples < math.inf:
        raise ContractError(
            f"{what} returns num_examples {examples!r}; return the number of samples that it used", FACTORY
        )
    return answer[0], float(examples), _numbers(answer[2])


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    """Metrics that are numbers, as 0-d tensors."""
    return {
        name: torch.tensor(float(value))
        for name, value in metrics.items()
        if isinstance(value, bool | int | float | np.number)
    }


@contextmanager
def _seeded(key: Tensor | None) -> Iterator[None]:
    """Seeds the global generators that clients may use, by seed, round, exchange and client; restores them after."""
    assert key is not None
    words = key.tolist()
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(words[0] << 31 | words[1] >> 1)
        np.random.seed(words)
        random.seed(words[0] << 32 | words[1])
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
