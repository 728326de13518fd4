"""What was received never changes, and what nobody reads stays bounded."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from mmlab.transports import open_transport
from mmlab.transports.links import COPY_BELOW

SIZES = (1, COPY_BELOW - 1, COPY_BELOW, COPY_BELOW + 1, 1 << 20, 20 << 20)


@pytest.mark.parametrize("name", ["ipc", "tcp"])
def test_memory_that_was_released_may_be_written_without_changing_what_arrived(
    name: str, tmp_path: Path
) -> None:
    with open_transport(name) as transport:
        receiver = transport.bind_requests(tmp_path)
        sender = transport.connect_requests(receiver.endpoint)
        buffers = [np.empty(size, np.uint8) for size in SIZES]
        arrived = []
        for turn in range(4):
            for buffer in buffers:
                buffer[:] = turn
            sender.send([buffer.data for buffer in buffers])
            message = None
            end = time.monotonic() + 10
            while sender.unreleased():  # the receiver reads nothing: its queue takes it all
                assert time.monotonic() < end
                message = message or receiver.receive(0.01)
            for buffer in buffers:
                buffer[:] = 255
            message = message or receiver.receive(5)
            assert message is not None
            arrived.append(message.frames)
        for turn, frames in enumerate(arrived):
            assert [frame.nbytes for frame in frames] == list(SIZES)
            assert all(np.all(np.frombuffer(frame, np.uint8) == turn) for frame in frames)


def test_inproc_hands_over_the_memory_itself_and_says_so(tmp_path: Path) -> None:
    """There a frame is released when its reader has let go of it: it is the sender's memory."""
    with open_transport("inproc") as transport:
        receiver = transport.bind_requests(tmp_path)
        sender = transport.connect_requests(receiver.endpoint)
        buffer = np.full(COPY_BELOW, 1, np.uint8)
        sender.send([buffer.data])
        message = receiver.receive(5)
        assert message is not None and sender.unreleased() == 1
        time.sleep(0.1)
        assert sender.unreleased() == 1
        message.frames.clear()
        end = time.monotonic() + 5
        while sender.unreleased():
            assert time.monotonic() < end
