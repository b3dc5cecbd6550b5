"""Values arrive unchanged at the other end of a socket, whatever their arrays' number and size."""

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from hedgerow.platform.actors.small_messages import LARGE, PARTS, pickled, receive, send

VALUES = {
    "no arrays": ("method", {"a": 1}, [None, "text"]),
    "arrays without entries": {"none": np.zeros((0, 3)), "some": np.arange(3)},
    "more arrays than one call moves": [np.full(i % 3, i) for i in range(2 * PARTS + 1)],
    "more than the socket's buffer holds": (np.arange(900_000), np.arange(5, dtype=np.int8), np.ones((700, 900))),
    "more than a socket is used for": {
        "large": np.arange(LARGE),
        "none": np.zeros(0),
        "small": np.arange(5, dtype="i1"),
    },
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_arrives_unchanged(value):
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=send, args=(here, value))
        sender.start()
        arrived = receive(there)
        sender.join()
    np.testing.assert_equal(arrived, value)


@pytest.mark.parametrize("size", [5, LARGE])
def test_arrays_that_arrive_are_aligned_and_may_be_changed(size):
    here, there = socket.socketpair()
    message = pickled([np.ones(3, np.int8), np.ones(size, np.int8)])
    with here, there:
        # The other end has the message twice, and each has arrays of its own.
        for _ in range(2):
            send(here, message)
            for array in receive(there):
                assert array.ctypes.data % 64 == 0
                assert (array == 1).all()
                array += 1


def test_a_large_message_needs_no_file(monkeypatch):
    def no_memory(name):
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", no_memory)
    test_a_value_arrives_unchanged(VALUES["more than a socket is used for"])


def test_the_file_of_a_message_ends_with_its_arrays():
    def files():
        found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
        return [file for file in found if file.is_symlink() and "memfd:hedgerow" in str(file.readlink())]

    here, there = socket.socketpair()
    with here, there:
        message = pickled(np.ones(LARGE))
        send(here, message)
        del message
        array = receive(there)
        assert len(files()) == 1
        assert array.sum() == LARGE
        del array
        assert not files()


@pytest.mark.parametrize("message", [b"", b"\x02\x00\x00"], ids=["nothing", "a part of a message"])
def test_the_end_of_the_connection_is_no_value(message):
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(message)
        assert receive(there) is None


def test_sending_to_a_closed_end_is_an_error():
    here, there = socket.socketpair()
    there.close()
    with here, pytest.raises(BrokenPipeError):
        send(here, 1)
