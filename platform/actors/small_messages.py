"""Small messages between the processes of a run, pickled once for all actors.

Ray pickles what its processes send each other in any case, but several times slower, since it also takes functions.
Processes without Ray send each other values through a socket, the memory of arrays apart, and large ones as files in
memory, which the receiver maps. No other module of Hedgerow may pickle or unpickle anything.
"""

import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
import torch

from hedgerow.platform.common.errors import UserError

PARTS = 512
"""Number of parts of a message that one system call moves, at most 1024 on Linux."""

LARGE = 2**24
"""Size in bytes from which an array has a file in memory, which saves copies. For smaller ones a socket is as fast."""

FILES = 250
"""Number of files that a message may have, at most 253 on Linux."""

HEAD = struct.Struct("<qq")
"""Start of a message: number of its parts, and of its files."""


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

    parts: the pickled bytes, then the memory of each array. files: position of a large array in the parts -> descriptor
    of a file in memory with a copy of it, which is sent in its place. Receivers map it; it ends with the last of them.
    """

    parts: list[memoryview]
    files: dict[int, int] = field(default_factory=dict)

    def __del__(self) -> None:
        for file in self.files.values():
            os.close(file)


def message_of(value: Any) -> Message:
    """Returns the message of a value. Only large arrays are copied."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    message = Message([memoryview(data), *(buffer.raw() for buffer in buffers)])
    large = [i for i, part in enumerate(message.parts) if i and part.nbytes >= LARGE]
    # Some builds of Python have no such files; without memory for one, the socket serves.
    with suppress(OSError):
        for i in large[:FILES] if hasattr(os, "memfd_create") else ():
            file = os.memfd_create("hedgerow")
            try:
                _move_all(partial(os.writev, file), [message.parts[i]])
            except OSError:
                os.close(file)
                raise
            message.files[i] = file
    return message


def send(connection: socket.socket, value: Any) -> None:
    """Sends a value, or its message, through a socket. Raises OSError if the other end is closed."""
    message = value if isinstance(value, Message) else message_of(value)
    # The size of an array in a file is negative.
    sizes = [-part.nbytes if i in message.files else part.nbytes for i, part in enumerate(message.parts)]
    head = HEAD.pack(len(sizes), len(message.files)) + struct.pack(f"<{len(sizes)}q", *sizes)
    files = list(message.files.values())
    parts = [part for i, part in enumerate(message.parts) if i not in message.files]
    sent = socket.send_fds(connection, [head], files) if files else 0
    # Together: each call may wake up the process at the other end.
    _move_all(connection.sendmsg, [memoryview(head)[sent:], *parts])


def receive(connection: socket.socket) -> Any:
    """Returns the next value that was sent; None if the other end is closed."""
    files: list[int] = []
    try:
        head, files, _, _ = socket.recv_fds(connection, HEAD.size, FILES)
        if len(head) < HEAD.size:
            head += _received(connection, [HEAD.size - len(head)])[0]
        count, number = HEAD.unpack(head)
        if len(files) < number:
            raise UserError(
                "resources.actors: this process may not open the files of an answer; raise the limit of open files "
                "(`ulimit -n`), or use fewer actors"
            )
        sizes = struct.unpack(f"<{count}q", _received(connection, [8 * count])[0])
        arrived, maps = iter(_received(connection, [size for size in sizes if size >= 0])), iter(files)
        data, *buffers = (next(arrived) if size >= 0 else _map(next(maps), -size) for size in sizes)
    except ConnectionError:
        return None
    finally:
        for file in files:
            os.close(file)
    return pickle.loads(data, buffers=buffers)


def _map(file: int, size: int) -> memoryview:
    """Memory of an array in a file. It is private: the array may be changed."""
    # Memory of Python's own `mmap` holds a descriptor.
    array: Any = torch.from_file(f"/proc/self/fd/{file}", shared=False, size=size, dtype=torch.uint8).numpy()
    return memoryview(array)


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
