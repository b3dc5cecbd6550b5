"""Reductions: what the answers of clients come to, however they are grouped."""

import weakref

import numpy as np
import pytest
import torch

from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import flatten, tree_map
from hedgerow.platform.runtime import aggregation
from hedgerow.platform.runtime.aggregation import (
    WIDENED,
    FlatSum,
    PartialAggregate,
    combine,
    pairwise,
    sum_trees,
    to_cpu,
    to_host,
)

CLIENTS = 7
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 4.0, 2.5], dtype=torch.float64)


def answers() -> dict:
    """Of seven clients: a leaf that is widened in several pieces, a scalar and an empty one."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(CLIENTS, 3, WIDENED, generator=generator)
    return {"w": {"wide": wide, "scalar": torch.randn(CLIENTS, generator=generator)}, "none": torch.zeros(CLIENTS, 0)}


def reduced(up: dict, groups: list[list[int]], kind: str = "mean") -> dict:
    """The clients of each group as a worker of their own, one chunk per client."""
    partials = []
    for group in groups:
        partial = PartialAggregate(kind)
        for client in group:
            chunk = {"w": {name: leaf[[client]] for name, leaf in up["w"].items()}, "none": up["none"][[client]]}
            partial.add(chunk, WEIGHTS[[client]])
        partials.append(partial.to_wire())
    return combine(partials, np.arange(CLIENTS))


def mean(values: torch.Tensor, clients: list[int]) -> np.ndarray:
    return np.average(values[clients].double().numpy(), axis=0, weights=WEIGHTS[clients].numpy())


def test_a_weighted_mean_is_that_of_float64():
    up = answers()
    partial = PartialAggregate("mean")
    partial.add(up, WEIGHTS)
    found = combine([partial.to_wire()], np.arange(CLIENTS))
    everybody = list(range(CLIENTS))
    for name, leaf in up["w"].items():
        assert found["w"][name].dtype == torch.float32
        np.testing.assert_allclose(found["w"][name].numpy(), mean(leaf, everybody).astype(np.float32), rtol=1e-6)
    assert found["none"].shape == (0,)


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3, 4, 5, 6]], [[6, 5, 4], [0, 1, 2, 3]], [[0], [1, 3, 5], [2, 4, 6]]])
def test_grouping_changes_nothing_that_float32_shows(groups):
    up = answers()
    found, everybody = reduced(up, groups), list(range(CLIENTS))
    for name, leaf in up["w"].items():
        # Sums of float64 in another order: their last bits differ, and at most one rounding to float32 with them.
        np.testing.assert_allclose(found["w"][name].numpy(), mean(leaf, everybody), rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("clients", [[5], [2, 5], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]], ids=len)
def test_clients_that_are_added_at_once_have_their_weights(kind, clients):
    """Updates of single clients wait until there are four of them: fewer, five, and seven, the last in order."""
    up, partial = answers(), PartialAggregate(kind)
    for client in clients:
        chunk = {"w": {name: leaf[[client]] for name, leaf in up["w"].items()}}
        partial.add(chunk, WEIGHTS[[client]])
    found = combine([partial.to_wire()], np.arange(len(clients)))
    weights = WEIGHTS[clients].numpy()
    for name, leaf in up["w"].items():
        total = np.tensordot(weights, leaf[clients].double().numpy(), 1)
        expected = total / weights.sum() if kind == "mean" else total
        np.testing.assert_allclose(found["w"][name].numpy(), expected, rtol=2e-7, atol=1e-12)


def test_a_client_that_diverged_counts_for_nothing():
    up = answers()
    up["w"]["wide"][2, 1, 5] = float("nan")
    up["w"]["scalar"][4] = float("inf")
    partial = PartialAggregate("mean")
    finite = partial.add(up, WEIGHTS)
    assert finite.tolist() == [True, True, False, True, False, True, True]
    found = combine([partial.to_wire()], np.arange(CLIENTS))
    expected = mean(up["w"]["wide"], [0, 1, 3, 5, 6]).astype(np.float32)
    np.testing.assert_allclose(found["w"]["wide"].numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3, 4, 5, 6]], [[client] for client in range(CLIENTS)]], ids=len)
def test_a_client_whose_weight_is_not_a_number_counts_for_nothing(groups):
    up, weights, partial = answers(), WEIGHTS.clone(), PartialAggregate("mean")
    weights[1], weights[5] = float("nan"), float("inf")
    finite = [
        partial.add({"w": {name: leaf[group] for name, leaf in up["w"].items()}}, weights[group]) for group in groups
    ]
    assert torch.cat(finite).tolist() == [True, False, True, True, True, False, True]
    found = combine([partial.to_wire()], np.arange(CLIENTS))
    expected = mean(up["w"]["wide"], [0, 2, 3, 4, 6]).astype(np.float32)
    np.testing.assert_allclose(found["w"]["wide"].numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("together", [True, False])
def test_an_update_in_half_precision_may_have_a_large_sum(together):
    up, partial = torch.full((CLIENTS, 100_000), 2.0, dtype=torch.float16), PartialAggregate("mean")
    for rows in [slice(None)] if together else [slice(i, i + 1) for i in range(CLIENTS)]:
        assert partial.add({"w": up[rows]}, WEIGHTS[rows]).all()
    assert torch.equal(combine([partial.to_wire()], np.arange(CLIENTS))["w"], torch.full((100_000,), 2.0))


def test_memory_that_a_step_returns_again_and_changes_is_refused():
    """The updates of the first clients wait, and would be those of the last."""
    memory, partial = torch.zeros(1, 5), PartialAggregate("mean")
    partial.add({"w": memory + 1}, WEIGHTS[:1])
    partial.add({"w": memory[:, 1:], "constant": memory}, WEIGHTS[1:2])
    partial.add({"w": memory + 2, "constant": memory}, WEIGHTS[2:3])
    # Its sum stays, and the version of the tensor.
    memory.numpy()[:] = [[7, -7, 1, -1, 0]]
    with pytest.raises(ContractError, match="return clones"):
        partial.add({"w": memory[:, 1:]}, WEIGHTS[3:4])


def test_a_stack_of_bfloat16_is_one_of_float32():
    numbers, partial = torch.arange(2 * CLIENTS).reshape(CLIENTS, 2), PartialAggregate("stack")
    partial.add({"w": numbers.bfloat16()}, WEIGHTS)
    assert torch.equal(combine([partial.to_wire()], np.arange(CLIENTS))["w"], numbers.float())


def test_sums_of_integers_are_float32_and_stacks_of_them_exact():
    number, one = torch.full((1,), 2**25 + 1), torch.ones(1, dtype=torch.float64)
    parts = {how: PartialAggregate(how) for how in ("sum", "stack")}
    for part in parts.values():
        part.add({"n": number}, one)
    total, rows = (combine([part.to_wire()], np.arange(1))["n"] for part in parts.values())
    assert (total.dtype, int(total), rows.dtype, rows.tolist()) == (torch.float32, 2**25, torch.int64, [2**25 + 1])


@pytest.mark.parametrize("rows", [1, 3])
def test_an_update_without_numbers_comes_back(rows):
    partial = PartialAggregate("mean")
    partial.add({"w": {"none": torch.zeros(rows, 0)}}, WEIGHTS[:rows])
    assert combine([partial.to_wire()], np.arange(rows))["w"]["none"].shape == (0,)


def test_a_stack_has_the_order_of_the_clients():
    found = reduced(answers(), [[4, 2, 0], [6, 5, 3, 1]], "stack")
    # `order` says that the first answer to come in is client 0's, and so on.
    assert torch.equal(found["w"]["scalar"], answers()["w"]["scalar"][[4, 2, 0, 6, 5, 3, 1]])


def test_sums_are_added_as_in_a_tree_of_processes():
    names = "abcdefg"
    assert pairwise(list(names), lambda one, other: f"({one}{other})") == "(((ab)(cd))((ef)g))"
    parts = [{"w": np.array([10.0**k, 1.0])} for k in range(7)]
    found = sum_trees(parts, 0.5)
    assert torch.equal(found["w"], torch.tensor([0.5 * 1111111, 3.5]))
    assert found["w"].dtype == torch.float32


def test_sums_of_parts_are_scaled_in_double_precision():
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(3, WIDENED)) for _ in range(3)]
    found = sum_trees([{"w": part, "number": part[0, 0], "none": np.zeros((0, 2))} for part in parts], 1 / 3)
    expected = (((parts[0] + parts[1]) + parts[2]) * (1 / 3)).astype(np.float32)
    assert found["w"].numpy().tobytes() == expected.tobytes()
    assert found["number"].numpy().tobytes() == expected[0, 0].tobytes()
    assert (found["number"].shape, found["none"].shape) == ((), (0, 2))


def test_large_updates_do_not_wait_for_those_of_the_next_clients(monkeypatch):
    monkeypatch.setattr(aggregation, "WAITING_BYTES", 8 * WIDENED)
    up, partial = answers(), PartialAggregate("mean")
    wide = weakref.ref(up["w"]["wide"])
    partial.add({"w": {name: leaf[:1] for name, leaf in up["w"].items()}}, WEIGHTS[:1])
    expected = up["w"]["wide"][0].clone()
    del up
    # Three of them hold 12 bytes for each value: more than may wait.
    assert wide() is None
    assert torch.equal(combine([partial.to_wire()], np.arange(1))["w"]["wide"], expected)


def test_leaves_that_travel_together_are_those_that_travel_alone():
    tree = {"a": torch.arange(6.0).view(2, 3), "b": {"c": torch.tensor(7.0), "none": torch.zeros(0, 4)}}
    one, other = flatten(to_host(tree, at_once=True)), flatten(to_host(tree))
    assert one.keys() == other.keys() == {"a", "b/c", "b/none"}
    assert all(np.array_equal(one[key], other[key]) and one[key].shape == other[key].shape for key in one)
    mixed = {"a": torch.ones(2), "n": torch.ones(2, dtype=torch.int64)}
    assert to_host(mixed, at_once=True)["n"].dtype == np.int64


def test_rows_that_are_held_back_come_to_the_weighted_sum_of_those_that_are_finite(monkeypatch):
    """As on a GPU: entries of one row, of several, of integers, and more than are held back."""
    monkeypatch.setattr(aggregation, "HELD_BACK", 40)
    generator = torch.Generator().manual_seed(0)
    up = {"w": torch.randn(CLIENTS, 2, 3, generator=generator), "n": torch.arange(CLIENTS) + 2**25, "b": {}}
    up["b"] = {"none": torch.zeros(CLIENTS, 0), "scalar": torch.randn(CLIENTS, generator=generator)}
    up["w"][3, 1, 1] = float("nan")
    total, most = FlatSum.zero(up), 0
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 7)):
        some = tree_map(lambda leaf, rows=rows: leaf[rows], up)
        assert total.add(some, WEIGHTS[rows]).tolist() == [i != 3 for i in range(rows.start, rows.stop)]
        most = max(most, len(total.held))
    assert most == 2
    total.settle()
    assert total.held == []
    found, finite = total.tree(total.vector), [0, 1, 2, 4, 5, 6]
    for path, leaf in flatten(up).items():
        expected = np.tensordot(WEIGHTS[finite].numpy(), leaf[finite].double().numpy(), 1)
        np.testing.assert_allclose(flatten(found)[path].numpy(), expected, rtol=1e-14, atol=1e-12)


def test_vectors_that_travel_together_arrive_as_they_were():
    parts = [torch.tensor([1.0]), torch.zeros(0), torch.tensor([2.0, 3.0])]
    assert [part.tolist() for part in to_cpu(parts)] == [[1.0], [], [2.0, 3.0]]
    assert to_cpu([]) == ()
