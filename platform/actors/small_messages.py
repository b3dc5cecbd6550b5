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
