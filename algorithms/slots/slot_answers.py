"""Checks of what the methods of rules, transforms and objectives return: one sentence names the slot and the fix."""

from typing import Any

from torch import Tensor

from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, flatten, leaves, shapes_of


def update_and_state(answer: Any, before: Tree | None, like: Tree | None, method: str, key: str) -> tuple[Tree, Tree]:
    """Returns the answer of a transform. Raises ContractError if it is not (update, state).

    before: see `check_state`. like: tree with the shapes of the update; None: it is an encoding. key: of the
    experiment file, names the transform.
    """
    update, state = pair_of(answer, method, "update, state", key)
    if like is not None:
        update_of(update, like, method, key)
    check_state(state, before, method, key)
    return update, state


def pair_of(answer: Any, method: str, wanted: str, key: str) -> tuple[Any, Any]:
    """Returns the two values of an answer. Raises ContractError if it is something else. wanted: their names."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ContractError(f"`{method}` returns {type(answer).__name__}; return a tuple ({wanted})", key)
    return answer


def check_state(state: Any, before: Tree | None, method: str, key: str) -> None:
    """Raises ContractError if a state is no dictionary, or has entries that the next round would not have.

    before: state of the client before; None: it is the server's, which keeps new entries.
    """
    if not isinstance(state, dict):
        raise ContractError(f"`{method}` returns {type(state).__name__} as its state; return a dictionary", key)
    if before is not None and (lost := next((name for name in state if name not in before), None)):
        raise ContractError(
            f"`{method}` adds {lost!r} to its state, which `init_client` does not return; return its first value there",
            key,
        )


def update_of(update: Any, like: Tree, method: str, key: str) -> Tree:
    """Returns an update. Raises ContractError if it has other names or shapes. like: tree with the right ones."""
    if not (isinstance(update, dict) and all(isinstance(leaf, Tensor) for leaf in leaves(update))):
        raise ContractError(f"`{method}` returns {type(update).__name__}, not a tree; return a tree of tensors", key)
    if shapes_of(update) != (shapes := shapes_of(like)):
        raise ContractError(
            f"`{method}` returns an update with other names or shapes than those of the model, such as "
            f"{next(iter(flatten(shapes).items()), None)}; return one tensor for each of its parameters",
            key,
        )
    return update
