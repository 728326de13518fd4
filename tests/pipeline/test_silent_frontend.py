"""A frontend that does not read its replies: bounded, and nobody else waits (R22)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from pipeline_parts import wait_for

from mmlab.transports import links, open_transport


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context[zmq.Socket[bytes]]() as context:
        yield context


def deaf(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, name: bytes) -> zmq.Socket[bytes]:
    """A socket that takes in one message of its own accord, and then none."""
    socket = context.socket(zmq.DEALER)
    for option, value in ((zmq.RCVHWM, 1), (zmq.LINGER, 0), (zmq.RCVBUF, 4096)):
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.IDENTITY, name)
    socket.connect(endpoint)
    return socket


def test_replies_to_it_are_bounded_and_refused_and_others_get_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    monkeypatch.setattr(links, "MAX_QUEUED_REPLIES", 50)
    with open_transport("ipc") as transport:
        replies = transport.bind_replies(tmp_path)
        reader = transport.connect_replies(replies.endpoint, b"f2")
        reply = [bytes(32 << 10)]
        with deaf(context, replies.endpoint, b"f1"):
            assert wait_for(lambda: replies.send(b"f1", reply))
            assert wait_for(lambda: replies.send(b"f2", [b"first"]))
            # What the kernel's buffers hold comes on top of the 50.
            taken = sum(itertools.takewhile(bool, (replies.send(b"f1", reply) for _ in range(500))))
            assert 40 <= taken < 150
            for number in range(20):
                assert replies.send(b"f2", [b"%d" % number])
                assert not replies.send(b"f1", reply)
            got = [reader.receive(2) for _ in range(21)]
            assert [bytes(m.frames[0]) for m in got if m] == [
                b"first",
                *(b"%d" % number for number in range(20)),
            ]
