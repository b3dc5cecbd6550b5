"""CUDA graphs: the kernels of a function are captured once, and then launched together with other inputs."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import torch

from hedgerow.algorithms.core.pytree import Tree, flatten, leaves, tree_map
from hedgerow.platform.common.errors import first_line
from hedgerow.platform.common.memory import is_out_of_memory

MOST = 64
"""Number of graphs that are kept, each with its inputs, its results and the largest memory of its kernels."""

Function = Callable[[Tree, Tree], Any]
"""(shared inputs, own inputs) -> tuple of trees."""


class CaptureFailed(Exception):  # noqa: N818
    """The kernels of a function cannot be captured, for example since it reads a value back from the GPU."""


class CapturedCalls:
    """Calls of functions on a GPU, each with many kernels.

    The first call with new settings or shapes runs the function, in which libraries prepare themselves; it raises
    CaptureFailed if the function waits for the GPU. The second one captures its kernels. From then on, inputs are
    copied to where the kernels read them, and one launch runs them all. The results of a call are overwritten by a
    later one, of this function or of another.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, tuple[Hashable, _Graph | None]] = OrderedDict()
        self._stream: Any = None
        self.plain: set[Hashable] = set()
        """Steps that cannot run with tensors in place of floats."""

    def __len__(self) -> int:
        """Number of graphs."""
        return sum(graph is not None for _, graph in self._graphs.values())

    def of(
        self, name: Hashable, settings: Hashable, shared: Tree, further: Tree
    ) -> Callable[[Function, Tree, Hashable], Any]:
        """Caller of a function, as (function, its own inputs, what else determines its kernels) -> results.

        settings: a graph with others is replaced. shared, further: inputs that all calls have in common; which further
        ones there are belongs to the settings.
        """
        shape, copied = _shapes(shared), set[int]()
        settings, shared = (settings, _shapes(further)), {**shared, **further}

        def call(function: Function, own: Tree, kind: Hashable) -> Any:
            key = name, kind, shape, _shapes(own)
            known, graph = self._graphs.get(key, (None, None))
            if known != settings:
                self._graphs[key] = settings, None
                if len(self._graphs) > MOST:
                    self._graphs.popitem(last=False)
                return _without_waiting(function, shared, own)
            if graph is None:
                # Memory that no graph uses any more cannot be used again.
                pools = (one.pool for _, one in self._graphs.values() if one is not None)
                # A stream has buffers of libraries of its own.
                self._stream = self._stream or torch.cuda.Stream()
                pool = next(pools, None) or torch.cuda.graph_pool_handle()
                graph = _Graph(function, shared, own, pool, self._stream)
                self._graphs[key] = settings, graph
            elif id(graph) not in copied:
                _copy(shared, graph.shared)
            copied.add(id(graph))
            self._graphs.move_to_end(key)
            return graph.replay(own)

        return call

    def clear(self) -> None:
        """Forget all graphs."""
        self._graphs.clear()


def _without_waiting(function: Function, shared: Tree, own: Tree) -> Any:
    """Result of a function, which must neither wait for the GPU nor draw from torch's generators.

    A graph would repeat the draws of the CPU; those of the GPU have not been tried.
    """
    before, generators = torch.cuda.get_sync_debug_mode(), _generators()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = function(shared, own)
    except Exception as error:
        if not _waited(error):
            raise
        raise CaptureFailed("it reads a value back from the GPU, or writes one there") from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
    if not all(map(torch.equal, generators, _generators())):
        raise CaptureFailed("it draws from torch's generator")
    return results


def _generators() -> tuple[torch.Tensor, torch.Tensor]:
    """States of torch's generators, on the CPU and on the GPU."""
    return torch.get_rng_state(), torch.cuda.get_rng_state()


def _waited(error: BaseException | None) -> bool:
    """Whether a function waited for the GPU. PyTorch has no class of this error, so that its message decides."""
    while error is not None:
        if "called a synchronizing CUDA operation" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


class _Graph:
    """Graph of one function. Raises CaptureFailed, after which no other graph in the same memory can be used.

    pool: memory of the kernels' results, which graphs share since they run one after the other. stream: of the capture.
    """

    def __init__(self, function: Function, shared: Tree, own: Tree, pool: Any, stream: Any):
        self.shared, self.own = tree_map(torch.clone, shared), tree_map(torch.clone, own)
        self.pool, self._graph = pool, torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=pool)
            try:
                self.results = function(self.shared, self.own)
            except Exception as error:
                with suppress(RuntimeError):
                    self._graph.capture_end()
                if is_out_of_memory(error):
                    raise
                raise CaptureFailed(first_line(error)) from error
            self._graph.capture_end()
        current.wait_stream(stream)

    def replay(self, own: Tree) -> Any:
        _copy(own, self.own)
        self._graph.replay()
        return self.results


def _shapes(tree: Tree) -> Hashable:
    return tuple((path, leaf.shape, leaf.dtype, leaf.device) for path, leaf in flatten(tree).items())


def _copy(tree: Tree, to: Tree) -> None:
    for source, target in zip(leaves(tree), leaves(to), strict=True):
        target.copy_(source, non_blocking=True)
