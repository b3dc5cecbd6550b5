"""Middleware: all that stands around an algorithm, and changes its exchanges, its client steps or its states.

The algorithm is not aware of it. `platform/runtime/middleware_order.py` lists all middleware in its order.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import (
    Aggregate,
    ClientStep,
    Cohort,
    Exchange,
    Exchanges,
    ExchangeSteps,
    StepResult,
)
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Task

AS_IS = "@as_is"
"""Suffix of the name of a step that runs without the transforms, such as a training step in an evaluation."""


_STATELESS = (Algorithm.evaluate_client, Algorithm.predict_client, Algorithm.batch_norm_statistics)
"""Steps that read no client state."""


class Middleware:
    """Stands around a generator of exchanges. Each hook changes nothing unless a subclass defines it.

    The first three hooks are those of any generator, the others those of a ComposedAlgorithm, which gives each round
    and each evaluation a copy of its own, with `cohort` and `trains`: whether it is a round.
    """

    cohort: Cohort
    trains: bool

    def before(self, exchange: Exchange) -> Exchange:
        """Returns an exchange of the algorithm as the clients receive it."""
        return exchange

    def after(self, exchange: Exchange, result: Aggregate) -> Aggregate:
        """Returns the result of an exchange as the algorithm receives it. exchange: as `before` returned it."""
        return result

    def parallel(self, exchanges: list[Exchange], number: int) -> ExchangeSteps:
        """Yields exchanges that run in parallel, and returns their results. number: of exchanges before them."""
        sent = [self.before(exchange) for exchange in exchanges]
        results = yield sent
        return [self.after(exchange, result) for exchange, result in zip(sent, results, strict=True)]

    def begin(self, server: Tree) -> None:
        """Begins a round or an evaluation. May change `cohort`, which the algorithm receives."""

    def end(self, server: Tree, after: Tree) -> Tree:
        """Returns the server state after a round. server: the state before it. after: as the algorithm returned it."""
        return after

    def without_contributions(self, server: Tree, exchanged: list[tuple[Exchange, Aggregate]]) -> Tree:
        """Returns entries of the server state that change after a round to which no client contributed.

        exchanged: the last parallel exchanges of the round with their results.
        """
        return {}

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        """Runs a client step. name: its name, maybe with `AS_IS`."""
        return StepResult.of(step(hp, down, state, data))

    def init_server(self) -> Tree:
        """Returns entries that it adds to the initial server state."""
        return {}

    def init_client(self) -> Tree:
        """Returns entries that it adds to the initial state of a client."""
        return {}

    @property
    def keys(self) -> Sequence[str]:
        """Entries of the server state that the algorithm does not receive."""
        return ()

    def reported(self, w: Tree, server: Tree) -> Tree:
        """Returns the parameters that are reported, see `Algorithm.evaluate_params`."""
        return w

    def round_metrics(self, server: Tree) -> dict[str, float]:
        """Returns metrics of the server state that it adds to those of the algorithm."""
        return {}

    def hyper(self, hyper: Any) -> Any:
        """Returns the hyperparameters that a step receives. hyper: those of the algorithm."""
        return hyper

    def incompatibility(self) -> str | None:
        """Returns one sentence on why it does not fit the algorithm or the task; None if it does."""
        return None

    def around(self, generator: Exchanges) -> ExchangeSteps:
        """Runs a generator with these hooks; returns its return value."""
        reply: Any = None
        number = 0
        with closing(generator):
            while True:
                try:
                    request = generator.send(reply)
                except StopIteration as stop:
                    return stop.value
                exchanges = request if isinstance(request, list) else [request]
                results = yield from self.parallel(exchanges, number)
                reply = results if isinstance(request, list) else results[0]
                number += len(exchanges)


class ComposedAlgorithm:
    """An algorithm with its middleware: what the platform runs.

    inner: the algorithm. middleware: from the algorithm outwards.
    """

    def __init__(self, inner: Algorithm):
        self.inner = inner
        self.middleware: list[Middleware] = []
        self._steps: dict[str, ClientStep] = {}

    @property
    def task(self) -> Task:
        return self.inner.task

    @property
    def hyper(self) -> Any:
        hyper = self.inner.hyper
        for one in self.middleware:
            hyper = one.hyper(hyper)
        return hyper

    def incompatibility(self) -> str | None:
        """Returns one sentence on why algorithm, middleware and task do not fit; None if they do."""
        reasons = (one.incompatibility() for one in reversed(self.middleware))
        return next((reason for reason in reasons if reason), None) or self.inner.incompatibility()

    def init_server(self) -> Tree:
        state = self.inner.init_server()
        return state | {key: entry for one in self.middleware for key, entry in one.init_server().items()}

    def init_client(self) -> Tree:
        state = self.inner.init_client()
        return state | {key: entry for one in self.middleware for key, entry in one.init_client().items()}

    def round(self, server: Tree, cohort: Cohort) -> ExchangeSteps:
        return self.run(self.inner.round, server, cohort, trains=True)

    def evaluate(self, server: Tree, cohort: Cohort) -> ExchangeSteps:
        return self.run(self.inner.evaluate, server, cohort)

    def run(
        self, method: Callable[[Tree, Cohort], Exchanges], server: Tree, cohort: Cohort, trains: bool = False
    ) -> ExchangeSteps:
        """Runs a generator method of the algorithm. trains: it is a round, which returns a new server state."""
        middleware = [copy(one) for one in self.middleware]
        for one in reversed(middleware):
            one.cohort, one.trains = cohort, trains
            one.begin(server)
            cohort = one.cohort
        exchanges = _StepsByName(self).around(method(self._own(server), cohort))
        for one in middleware:
            exchanges = one.around(exchanges)
        result = yield from exchanges
        for one in middleware if trains else ():
            result = one.end(server, result)
        return result

    def without_contributions(self, server: Tree, cohort: Cohort, exchanged: list[tuple[Exchange, Aggregate]]) -> Tree:
        """Returns the server state after a round to which no client contributed. exchanged: see Middleware."""
        after = server
        for one in map(copy, self.middleware):
            one.cohort, one.trains = cohort, True
            after = {**after, **one.without_contributions(server, exchanged)}
        return after

    def evaluate_params(self, server: Tree) -> Tree:
        w = self.inner.evaluate_params(self._own(server))
        for one in self.middleware:
            w = one.reported(w, server)
        return w

    def round_metrics(self, server: Tree) -> dict[str, float]:
        metrics = dict(self.inner.round_metrics(self._own(server)))
        for one in self.middleware:
            metrics |= one.round_metrics(server)
        return metrics

    def client_step(self, name: str) -> ClientStep:
        """Returns the algorithm's step with this name, in its middleware, under the same name."""
        if name not in self._steps:

            def step(self: ComposedAlgorithm, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
                run: ClientStep = getattr(self.inner, name.removesuffix(AS_IS))
                for one in self.middleware:
                    run = partial(one.client, name, run)
                return StepResult.of(run(hp, down, state, data))

            step.__name__ = name
            self._steps[name] = MethodType(step, self)
        return self._steps[name]

    def reads_state(self, name: str) -> bool:
        """Returns whether a step may read the client's state: all but those of `Algorithm`, without middleware that has
        one.
        """
        # The step that returns predictions calls the one of evaluation.
        called = (getattr(self.inner, one, None) for one in {name, name.replace("predict_client", "evaluate_client")})
        is_own = any(getattr(step, "__func__", None) not in _STATELESS for step in called)
        return is_own or any(one.init_client() for one in self.middleware)

    def _own(self, server: Tree) -> Tree:
        """Returns the algorithm's entries of the server state."""
        others = {key for one in self.middleware for key in one.keys}
        return {key: entry for key, entry in server.items() if key not in others}


class _StepsByName(Middleware):
    """Gives each exchange of an algorithm its position, and the step of the composed algorithm."""

    def __init__(self, algorithm: ComposedAlgorithm):
        self.algorithm = algorithm

    def parallel(self, exchanges: list[Exchange], number: int) -> ExchangeSteps:
        steps = [self.algorithm.client_step(exchange.step.__name__) for exchange in exchanges]
        numbered = enumerate(zip(exchanges, steps, strict=True), number)
        return (yield [replace(exchange, step=step, position=at) for at, (exchange, step) in numbered])
