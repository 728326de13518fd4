"""Peers' ways through shared memory, whole requests, and streams: addresses, names, and counts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mmlab.bench.transfer import packets, receiver
from mmlab.bench.transfer.packets import Case, Line, Stream
from mmlab.bench.transfer.payload import nbytes_of, proof
from mmlab.bench.transfer.sender import _Loop
from mmlab.bench.transfer.ways import WAYS, shm
from mmlab.bench.transfer.ways.base import Outlet, make_receiver, make_sender, make_sources
from mmlab.bench.transfer.ways.request import result, tokens_of
from mmlab.errors import TransportError, WireError
from mmlab.pipeline.messages import Request
from mmlab.transports.base import Buffer, Message, Sent
from tests.bench.test_transfer_ways import Both, folder

__all__ = ["folder"]  # a fixture
CASE = Case(3, "float32", 32, 3)


def test_a_segment_loses_its_name_when_it_is_mapped(folder: Path) -> None:
    both = Both("segments", CASE, folder)
    batch = both.sender.batches[0]
    both.sender.send(both.sender.build(batch))
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 3 and all(name.startswith("mmlab-") for name in names)
    got = both.receiver.batch(both.frames.last)
    assert isinstance(got, torch.Tensor) and torch.equal(got, batch)
    assert not list(folder.iterdir())
    both.close()


def test_a_segment_that_is_too_short_is_an_error_and_loses_its_name_too(folder: Path) -> None:
    both = Both("segments", CASE, folder)
    both.sender.send(both.sender.build(both.sender.batches[0]))
    first = min(folder.iterdir(), key=lambda path: int(path.name.split("-")[-1]))
    first.write_bytes(b"x")
    with pytest.raises(ValueError, match="mmap length is greater than file size"):
        both.receiver.batch(both.frames.last)
    assert first not in list(folder.iterdir())
    both.close()


def test_torch_shm_copies_once_into_memory_that_has_no_name(folder: Path) -> None:
    both = Both("torch-shm", CASE, folder)
    batch = both.sender.batches[0]
    place = batch.data_ptr()
    message = both.sender.build(batch)
    assert isinstance(message, list)
    assert message[0].data_ptr() == place  # building copies nothing
    both.sender.send(message)
    assert all(item.is_shared() for item in message) and not batch.is_shared()
    step = batch[0].nbytes
    moved = message[0].data_ptr()
    assert [item.data_ptr() - moved for item in message] == [0, step, 2 * step]
    assert moved != place == batch.data_ptr()
    assert sum(len(frame) for frame in both.frames.last) < batch.nbytes // 10
    got = both.receiver.batch(both.frames.last)
    assert isinstance(got, torch.Tensor) and not got.is_shared()  # `stack`, the other copy
    assert torch.equal(got, batch)
    both.close()


def test_every_pickled_item_drags_its_batch_along(folder: Path) -> None:
    both = Both("pickle", CASE, folder)
    both.sender.send(both.sender.build(both.sender.batches[0]))
    (frame,) = both.frames.last
    assert 3 * nbytes_of(CASE) < len(frame) < 3.1 * nbytes_of(CASE)
    both.close()


def test_shared_memory_that_does_not_fit_is_refused_with_both_numbers() -> None:
    shm.check_shm(1)
    with pytest.raises(TransportError, match=r"/dev/shm has .* free, 1024.00 TiB|GiB are needed"):
        shm.check_shm(1 << 50)


@pytest.mark.parametrize("name", ["msgpack-request", "arena-request"])
@pytest.mark.parametrize("images", [0, 1])
def test_a_request_arrives_with_its_tokens_and_its_image(
    name: str, images: int, folder: Path
) -> None:
    case = Case(images, "bfloat16", 128, 3, tokens=100)
    both = Both(name, case, folder)
    batch = both.sender.batches[0]
    both.sender.send(both.sender.build(batch))
    got = both.receiver.batch(both.frames.last)
    assert proof(got) == proof(both.sender.expected(batch))
    assert got == tokens_of(case) if not images else torch.equal(got, batch)  # type: ignore[arg-type]
    if name == "arena-request":
        assert len(both.frames.last) == (2 if images else 1)
        assert sum(len(frame) for frame in both.frames.last) < 1500
    del got
    both.close()


def test_a_request_with_other_tokens_is_an_error() -> None:
    assert result(Request([1, 2]), [3, 4]) == [1, 2]  # whether they are the same, a proof says
    with pytest.raises(WireError, match="got 2 token ids, wanted 1"):
        result(Request([1, 2]), [1])


class Socket:
    """Frames go through a queue; how many messages are on their way, at most."""

    def __init__(self) -> None:
        self.queue: queue.Queue[list[memoryview]] = queue.Queue()
        self.sent, self.idle, self.most = 0, 0, 0

    def send(self, frames: Sequence[Buffer]) -> Sent:
        self.sent += 1
        self.most = max(self.most, self.sent - self.idle)
        self.queue.put([memoryview(bytearray(frame)) for frame in frames])
        return Sent(0, len(frames), 0)

    def receive(self, timeout: float | None = None) -> Message:
        frames = self.queue.get(timeout=10)
        return Message(frames, sum(len(frame) for frame in frames), 0)

    def unreleased(self) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["msgpack", "arena", "segments"])
def test_two_messages_of_a_stream_are_in_flight(name: str, folder: Path) -> None:
    """And an arena of two payloads is enough for it."""
    line, other = Line.pair("receiver")
    theirs = Line(other, "sender")
    socket = Socket()
    way = make_sender(WAYS[name], Outlet(socket, line, folder, folder))
    arriving = make_receiver(WAYS[name])
    case = Case(3, "uint8", 512, 3)
    way.prepare(case, make_sources(case))
    arriving.prepare(case, theirs)
    stream = Stream(name, 7)
    thread = threading.Thread(target=receiver._carry_out, args=(theirs, socket, arriving, stream))
    thread.start()
    loop = _Loop(line, line, {name: way})
    hear = loop._hear

    def counted(way: object, kind: type[packets.P]) -> packets.P:
        packet = hear(way, kind)  # type: ignore[arg-type]
        socket.idle += kind is packets.Idle
        return packet

    loop._hear = counted  # type: ignore[method-assign, assignment]
    timed = loop._stream(way, stream)
    thread.join(10)
    assert socket.sent == socket.idle == 8  # one of them before, untimed
    assert socket.most == 2
    assert len(timed.seconds) == 1 and timed.seconds[0] > 0
    way.drop()
    arriving.drop()
    line.close()
    theirs.close()
