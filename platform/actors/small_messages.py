"""Small messages between the processes of a run, pickled once for all actors.

Ray pickles what its processes send each other in any case, but several times slower, since it also takes functions.
Processes without Ray send each other values through a socket, the memory of arrays apart, and that of large ones in a
file that both map. No other module of Hedgerow may pickle or unpickle anything.
"""

import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import cloudpickle
import torch

PARTS = 512
"""Number of parts of a message that one system call moves, at most 1024 on Linux."""

LARGE = 2**24
"""Size in bytes from which the arrays of a message are passed in a file in memory, which saves a copy. For smaller ones
a socket is as fast.
"""

ALIGNED = 64
"""Arrays begin at multiples of this many bytes in such a file, as torch's own tensors do."""

HEAD = struct.Struct("<qq")
"""Start of a message: number of its parts, and of its arrays in a file. Their sizes follow."""


def pack(value: Any) -> bytes:
    """Pickles a value without Ray's references, which would be lost."""
    return pickle.dumps(value)


def pack_code(value: Any) -> bytes:
    """Pickles classes and functions; those of a script, a notebook or a function by value, as Ray does."""
    return cloudpickle.dumps(value)


def unpack(message: Any) -> Any:
    """Returns what was packed; any other value as it is."""
    return pickle.loads(message) if isinstance(message, bytes) else message


@dataclass
class Message:
    """A pickled value, which may be sent through several connections.

    parts: memory of its arrays. file: descriptor of a file in memory that has them instead, if they are large; it ends
    with the last process that has it open or mapped. places: offset and size of each array in the file.
    """

    data: bytes
    parts: list[memoryview]
    file: int | None = None
    places: list[tuple[int, int]] = field(default_factory=list)

    def __del__(self) -> None:
        if self.file is not None:
            os.close(self.file)


def pickled(value: Any) -> Message:
    """Returns the message of a value. Only large arrays are copied."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    message = Message(data, [buffer.raw() for buffer in buffers])
    if sum(part.nbytes for part in message.parts) < LARGE:
        return message
    # Without memory for a file, they go through the socket.
    with suppress(OSError):
        return _with_file(message)
    return message


def _with_file(message: Message) -> Message:
    """The message with its arrays in a file. Raises OSError."""
    result, start, written = Message(message.data, [], os.memfd_create("hedgerow")), 0, list[memoryview]()
    for part in message.parts:
        result.places.append((start, part.nbytes))
        padding = memoryview(bytes(-part.nbytes % ALIGNED))
        written += [part, padding]
        start += part.nbytes + padding.nbytes
    _move_all(lambda left: os.writev(result.file, left), written)  # type: ignore[arg-type]
    return result


def send(connection: socket.socket, value: Any) -> None:
    """Sends a value, or its message, through a socket. Raises OSError if the other end is closed."""
    message = value if isinstance(value, Message) else pickled(value)
    parts = [memoryview(message.data), *message.parts]
    numbers = [*(part.nbytes for part in parts), *chain.from_iterable(message.places)]
    head = HEAD.pack(len(parts), len(message.places))
    sizes = struct.pack(f"<{len(numbers)}q", *numbers)
    if message.file is not None:
        socket.send_fds(connection, [head], [message.file])
        head = b""
    # Together: each call may wake up the process at the other end.
    _move_all(connection.sendmsg, [memoryview(head), memoryview(sizes), *parts])


def receive(connection: socket.socket) -> Any:
    """Returns the next value that was sent; None if the other end is closed."""
    try:
        head, files, _, _ = socket.recv_fds(connection, HEAD.size, 1)
        if len(head) < HEAD.size:
            head += _received(connection, [HEAD.size - len(head)])[0]
        parts, arrays = HEAD.unpack(head)
        count = parts + 2 * arrays
        numbers = struct.unpack(f"<{count}q", _received(connection, [8 * count])[0])
        message, *buffers = _received(connection, numbers[:parts])
    except ConnectionError:
        return None
    for file in files:
        # A private mapping: the arrays may be changed.
        memory = memoryview(mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
        os.close(file)
        places = zip(numbers[parts::2], numbers[parts + 1 :: 2], strict=True)
        buffers = [memory[start : start + size] for start, size in places]
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
