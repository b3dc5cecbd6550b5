"""`FixedParameters` sets parameters in a module once, with the outputs of `functional_call` in every call."""

import torch
from helpers import blobs, small_task
from torch.func import functional_call

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import FixedParameters


def test_outputs_are_those_of_functional_call_with_any_parameters_and_the_module_is_restored():
    data = blobs()
    task, x = small_task(data), torch.from_numpy(data.x_train[:5])
    own = dict(task.module.named_parameters())
    w, other = task.init(), tree_map(lambda leaf: leaf + 1, task.init())
    expected, at_other = (functional_call(task.module, tree, (x,)) for tree in (w, other))
    with FixedParameters(w):
        assert torch.equal(task.logits(w, x), expected)
        # Other parameters, and a second context within the first.
        assert torch.equal(task.logits(other, x), at_other)
        with FixedParameters(other):
            assert torch.equal(task.logits(other, x), at_other)
            assert torch.equal(task.logits(w, x), expected)
        # A change in place is seen.
        for leaf in w.values():
            leaf += 1
        assert torch.equal(task.logits(w, x), at_other)
    assert all(p is own[name] for name, p in task.module.named_parameters())
    assert not torch.equal(task.logits(task.init(), x), at_other)
