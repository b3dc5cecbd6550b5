"""`FixedParameters` sets parameters in a module once, with the outputs of `functional_call` in every call."""

from copy import deepcopy

import pytest
import torch
from helpers import blobs, small_task
from torch import nn
from torch.func import functional_call

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import FixedParameters
from hedgerow.algorithms.core.torch_private import call, gradients
from hedgerow.platform.models.probe import vmap_objection


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


class Shared(nn.Module):
    """The layers a and b share a weight, and c is a."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight, self.c = self.a.weight, self.a

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def test_shared_parameters_and_layers_are_set_everywhere_and_restored_after_an_error_too():
    module, x = Shared(), torch.randn(3, 4)
    own = dict(module.named_parameters())
    assert list(own) == ["a.weight", "a.bias", "b.bias"]
    w = {name: torch.randn_like(p) for name, p in own.items()}
    layer = lambda name, x: x @ w["a.weight"].T + w[f"{name}.bias"]  # noqa: E731
    torch.testing.assert_close(call(module, w, x), layer("a", layer("b", layer("a", x))))
    assert all(p is own[name] for name, p in module.named_parameters())
    with pytest.raises(RuntimeError, match="shapes"):
        call(module, {"a.weight": torch.zeros(3, 3)}, x)
    assert all(p is own[name] for name, p in module.named_parameters())


def test_a_trial_under_vmap_leaves_shared_layers_as_they_were():
    module = Shared()
    own = dict(module.named_parameters())
    assert vmap_objection(module, None, torch.randn(8, 4)) is None
    assert all(p is own[name] for name, p in module.named_parameters())


def test_a_module_that_has_changed_since_the_last_call_is_searched_again():
    module, x = Shared(), torch.randn(3, 4)
    call(module, {}, x)
    module.b = nn.Linear(4, 4)
    module.c.register_buffer("shift", torch.zeros(4))
    w = {name: torch.randn_like(tensor) for name, tensor in module.state_dict().items()}
    expected = functional_call(deepcopy(module), {name: w[name] for name in w if not name.startswith("c.")}, (x,))
    torch.testing.assert_close(call(module, w, x), expected)


def test_tied_parameters_are_known_by_each_of_their_names():
    module, x = Shared(), torch.randn(3, 4)
    weight = torch.randn(4, 4)
    outputs = [call(module, {name: weight}, x) for name in ("a.weight", "b.weight", "c.weight")]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_gradients_are_those_of_autograd():
    a, b, unused = (torch.randn(3, requires_grad=True) for _ in range(3))
    value = (a * b).sum()
    expected = torch.autograd.grad(value, [a, b], retain_graph=True)
    found = gradients((a * b).sum(), [a, b, unused])
    assert all(torch.equal(one, other) for one, other in zip(found, [*expected, torch.zeros(3)], strict=True))
    with pytest.raises(RuntimeError, match="scalar"):
        gradients(a * b, [a])
