"""Small messages between the processes of a run, pickled once for all actors.

Ray pickles what its processes send each other in any case, but several times slower, since it also takes functions.
Processes without Ray send each other values through a socket, the memory of arrays apart. No other module of Hedgerow
may pickle or unpickle anything.
"""

import pickle
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle
import torch

PARTS = 512
"""Number of parts of a message that one system call moves, at most 1024 on Linux."""


def pack(value: Any) -> bytes:
    """Pickles a value without Ray's references, which would be lost."""
    return pickle.dumps(value)


def pack_code(value: Any) -> bytes:
    """Pickles classes and functions; those of a script, a notebook or a function by value, as Ray does."""
    return cloudpickle.dumps(value)


def unpack(message: Any) -> Any:
    """Returns what was packed; any other value as it is."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def send(connection: socket.socket, value: Any) -> None:
    """Sends a value through a socket, without copies of its arrays. Raises OSError if the other end is closed."""
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(message), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    head = struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes)
    # Together: each call may wake up the process at the other end.
    _move_all(connection.sendmsg, [memoryview(head), *parts])


def receive(connection: socket.socket) -> Any:
    """Returns the next value that was sent; None if the other end is closed."""
    try:
        (count,) = struct.unpack("<q", _received(connection, [8])[0])
        sizes = struct.unpack(f"<{count}q", _received(connection, [8 * count])[0])
        message, *buffers = _received(connection, sizes)
    except ConnectionError:
        return None
    return pickle.loads(message, buffers=buffers)


def _received(connection: socket.socket, sizes: Sequence[int]) -> list[memoryview]:
    """The next bytes, in parts of these sizes. Raises ConnectionError if the other end is closed."""
    # Memory of torch is aligned: the bits of kernels may depend on it.
    memories: list[Any] = [torch.empty(size, dtype=torch.uint8).numpy() for size in sizes]
    views = [memoryview(memory) for memory in memories]
    _move_all(lambda left: connection.recvmsg_into(left)[0], views)
    return views


def _move_all(move: Callable[[list[memoryview]], int], parts: Iterable[memoryview]) -> None:
    """Send all bytes of the parts, or fill all of them. move: does so for some of the bytes, and returns how many."""
    left = [part for part in parts if part.nbytes]
    while left:
        moved = move(left[:PARTS])
        if not moved:
            raise ConnectionError("the other end of the connection is closed")
        while left and moved >= left[0].nbytes:
            moved -= left.pop(0).nbytes
        if moved:
            left[0] = left[0][moved:]
