"""Values arrive unchanged at the other end of a socket, whatever their arrays' number and size."""

import socket
import threading

import numpy as np
import pytest

from hedgerow.platform.actors.small_messages import PARTS, receive, send

VALUES = {
    "no arrays": ("method", {"a": 1}, [None, "text"]),
    "arrays without entries": {"none": np.zeros((0, 3)), "some": np.arange(3)},
    "more arrays than one call moves": [np.full(i % 3, i) for i in range(2 * PARTS + 1)],
    "more than the socket's buffer holds": (np.arange(3_000_000), np.arange(5, dtype=np.int8), np.ones((700, 900))),
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


def test_arrays_that_arrive_are_aligned_and_may_be_changed():
    here, there = socket.socketpair()
    with here, there:
        send(here, [np.ones(3, np.int8), np.ones(5)])
        for array in receive(there):
            assert array.ctypes.data % 64 == 0
            array += 1


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
