"""The order of all middleware, and what is composed with it: algorithms, rounds and evaluations."""

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.messages import Exchanges, ExchangeSteps
from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.algorithms.slots.fedex_rounds import FedExRounds
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm, Middleware
from hedgerow.algorithms.slots.slot_rounds import SlotRounds
from hedgerow.algorithms.slots.slots import Slots
from hedgerow.algorithms.slots.train_mode_rounds import TrainModeRounds
from hedgerow.platform.runtime.evaluation import PredictionKeeper, ValidationSamples
from hedgerow.platform.runtime.exchange_costs import Delivery, SampleCounter
from hedgerow.platform.runtime.participation import ParticipationSimulator
from hedgerow.platform.schedules.stale_round import StaleRound

ORDER: list[type[Middleware]] = [
    # Around the algorithm of an experiment, in every process.
    SlotRounds,
    TrainModeRounds,
    FedExRounds,
    # Around a round or an evaluation, in the server.
    StaleRound,
    SampleCounter,
    ParticipationSimulator,
    ValidationSamples,
    PredictionKeeper,
    Delivery,
]
"""All middleware, from the algorithm outwards: each changes the exchanges of those before it."""


def in_order(*middleware: Middleware | None) -> list[Middleware]:
    """Returns middleware in its order, without None."""
    return sorted((one for one in middleware if one is not None), key=lambda one: ORDER.index(type(one)))


def through(exchanges: Exchanges, delivery: Delivery, *others: Middleware | None) -> ExchangeSteps:
    """Runs a generator of exchanges with middleware; returns its return value."""
    *inside, last = in_order(delivery, *others)
    for one in inside:
        exchanges = one.around(exchanges)
    return last.around(exchanges)


def compose(
    inner: Algorithm, slots: Slots | None = None, fedex: FedEx | None = None, classes: int | None = None
) -> ComposedAlgorithm:
    """Returns an algorithm with the middleware of its experiment. classes: number of classes of the task."""
    algorithm = ComposedAlgorithm(inner)
    algorithm.middleware = in_order(
        SlotRounds(algorithm, slots, classes) if slots is not None else None,
        TrainModeRounds(algorithm) if inner.task.train_mode is not None else None,
        FedExRounds(algorithm, fedex) if fedex is not None else None,
    )
    if algorithm.middleware:
        # Inferred here, because a compiled step cannot do it.
        _ = inner.parts, inner.training_steps
    return algorithm
