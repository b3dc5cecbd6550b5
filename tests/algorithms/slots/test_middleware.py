"""How middleware runs a generator of exchanges."""

import numpy as np
import pytest

from hedgerow.algorithms.core.messages import Exchange
from hedgerow.algorithms.slots.middleware import Middleware


def exchange(name):
    return Exchange(name, {}, np.zeros(0, int))


class Parallel(Middleware):
    """Runs exchanges by a function."""

    def __init__(self, function):
        self.parallel = function


def test_a_single_exchange_gets_one_aggregate_and_a_list_gets_a_list():
    def generator():
        first = yield exchange("a")
        several = yield [exchange("b"), exchange("c")]
        return first, several, (yield exchange("d"))

    def run(exchanges, number):
        answers = yield exchanges
        return [f"{number + i} {answer}" for i, answer in enumerate(answers)]

    steps = Parallel(run).around(generator())
    names = [[one.step for one in next(steps)]]
    for _ in range(2):
        names.append([one.step for one in steps.send(names[-1])])
    assert names == [["a"], ["b", "c"], ["d"]]
    with pytest.raises(StopIteration) as stop:
        steps.send(names[-1])
    assert stop.value.value == ("0 a", ["1 b", "2 c"], "3 d")


def test_a_failed_exchange_closes_the_generator():
    ended = []

    def generator():
        try:
            yield exchange("a")
        finally:
            ended.append(True)

    def run(exchanges, number):
        yield exchanges
        raise RuntimeError("no contributions")

    steps = Parallel(run).around(generator())
    next(steps)
    with pytest.raises(RuntimeError, match="no contributions"):
        steps.send([])
    assert ended == [True]
