"""Small messages between the processes of a run, pickled once for all actors.

Ray pickles what its processes send each other in any case, but several times slower, since it also takes functions. No
other module of Hedgerow may pickle or unpickle anything.
"""

import pickle
from typing import Any


def pack(value: Any) -> bytes:
    """Pickles a value without Ray's references, which would be lost."""
    return pickle.dumps(value)


def unpack(message: Any) -> Any:
    """Returns what was packed; any other value as it is."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def pack_apart(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickles a value, and returns the memory of its arrays apart, without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return message, [buffer.raw() for buffer in buffers]


def unpack_apart(message: Any, buffers: list[Any]) -> Any:
    """Returns what was packed; its arrays use the memory of the buffers."""
    return pickle.loads(message, buffers=buffers)
