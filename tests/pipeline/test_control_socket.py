"""The control socket: whole messages, an end that is seen, and nothing that blocks a send."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from mmlab import TransportError
from mmlab.pipeline.control import MAX_MESSAGE, ControlSocket
from mmlab.pipeline.messages import Failed, Stop


def failed(size: int) -> Failed:
    return Failed(error="E", message="m" * size, trace="")


def test_messages_arrive_whole_and_the_end_is_none(leftovers: Callable[..., list[str]]) -> None:
    ours, theirs = ControlSocket.pair()
    assert not theirs.pending()
    ours.send(Stop())
    ours.send(failed(100_000))
    assert theirs.pending()
    assert theirs.receive() == Stop()
    assert theirs.receive() == failed(100_000)
    ours.close()
    assert theirs.pending() and theirs.receive() is None
    with pytest.raises(TransportError, match="control socket"):
        theirs.send(Stop())
    theirs.close()
    assert not leftovers("fds")


def test_a_message_too_long_is_refused() -> None:
    ours, theirs = ControlSocket.pair()
    with pytest.raises(TransportError, match=f"at most {MAX_MESSAGE}"):
        ours.send(failed(MAX_MESSAGE))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("data", [b"\xc1", b"{}", b"\x81\xa4type\xa1x", b"\x80" * 50])
def test_what_cannot_be_read_is_an_error_and_the_socket_lives_on(data: bytes) -> None:
    raw, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs = ControlSocket(other)
    raw.send(data)
    with pytest.raises(TransportError, match="unreadable"):
        theirs.receive()
    ControlSocket(raw).send(Stop())
    assert theirs.receive() == Stop()
    raw.close()
    theirs.close()


def test_an_end_is_not_inherited_unless_handed_over() -> None:
    ours, theirs = ControlSocket.pair()
    assert not os.get_inheritable(ours.fileno()) and not os.get_inheritable(theirs.fileno())
    again = ControlSocket.from_fd(os.dup(theirs.fileno()))
    assert not os.get_inheritable(again.fileno())
    for end in (ours, theirs, again):
        end.close()
