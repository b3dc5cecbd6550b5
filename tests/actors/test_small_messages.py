"""Values arrive unchanged at the other end of a socket, whatever their arrays' number and size."""

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow.platform.actors.small_messages import HEAD, LARGE, PARTS, message_of, receive, send
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runtime.transport import arrays_of

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
    message = message_of([np.ones(3, np.int8), np.ones(size, np.int8)])
    with here, there:
        # The other end has the message twice, and each has arrays of its own.
        for _ in range(2):
            send(here, message)
            for array in receive(there):
                assert array.ctypes.data % 64 == 0
                assert (array == 1).all()
                array += 1


def test_a_tensor_of_several_trees_is_sent_once():
    weight, bias = torch.rand(64, 30), torch.rand(30)
    message = message_of(arrays_of([{"w": weight, "b": bias}, {"model": {"w": weight}, "b": bias + 1}]))
    assert sum(part.nbytes for part in message.parts[1:]) == weight.nbytes + 2 * bias.nbytes
    here, there = socket.socketpair()
    with here, there:
        send(here, message)
        first, second = receive(there)
    np.testing.assert_equal(first, {"w": weight.numpy(), "b": bias.numpy()})
    np.testing.assert_equal(second, {"model": {"w": weight.numpy()}, "b": (bias + 1).numpy()})


def files():
    found = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return [file for file in found if file.is_symlink() and "memfd:hedgerow" in str(file.readlink())]


def test_a_large_message_needs_no_file(monkeypatch):
    def no_memory(*_):
        raise OSError("no memory")

    value = VALUES["more than a socket is used for"]
    monkeypatch.setattr(os, "writev", no_memory)
    test_a_value_arrives_unchanged(value)
    assert not files()
    # Some builds of Python do not have it.
    monkeypatch.delattr(os, "memfd_create")
    test_a_value_arrives_unchanged(value)


def test_a_message_that_ends_early_leaves_no_file():
    here, there = socket.socketpair()
    with there:
        with here:
            message = message_of(np.ones(LARGE))
            socket.send_fds(here, [HEAD.pack(2, 1)], list(message.files.values()))
        del message
        assert receive(there) is None
    assert not files()


def test_a_message_whose_files_cannot_be_opened_is_refused():
    here, there = socket.socketpair()
    with here, there:
        here.sendall(HEAD.pack(2, 1))
        with pytest.raises(UserError, match="ulimit -n"):
            receive(there)


def test_descriptors_end_with_the_message():
    here, there = socket.socketpair()
    with here, there:
        message = message_of({"large": np.ones(LARGE), "small": np.ones(3)})
        assert len(files()) == 1
        send(here, message)
        del message
        value = receive(there)
        assert not files()
        assert value["large"].sum() == LARGE


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
