"""Messages in pieces: put together exactly, and nothing of what arrives is trusted."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mmlab.pipeline.messages import COUNTER_BITS, number_of
from mmlab.transports import Message, open_transport, pieces
from mmlab.transports.base import Buffer, RequestSender
from mmlab.transports.pieces import _HEAD, ALIGN, LARGE, MAGIC, PIECE, PieceReceiver, PieceSender
from mmlab.wire import Encoder

MIB = 1 << 20
ME = b"somebody"


class Ends:
    """A receiver, and senders to it."""

    def __init__(self, receiver: PieceReceiver, connect: object) -> None:
        self.receiver = receiver
        self.connect: object = connect
        self.plain = self.another()

    def another(self) -> RequestSender:
        return self.connect(self.receiver.endpoint)  # type: ignore[operator, no-any-return]

    def receive(self) -> Message:
        for _ in range(1000):
            if (message := self.receiver.receive(5)) is not None:
                return message
        raise AssertionError("no message")

    def nothing(self, count: int) -> None:
        """The next `count` pieces complete no message."""
        assert [self.receiver.receive(0.5) for _ in range(count)] == [None] * count

    def begin(self, lengths: Sequence[int], number: int = 1, start: bytes = b"start") -> None:
        table = struct.pack(f"<{len(lengths)}Q", *lengths)
        self.plain.send([_HEAD.pack(MAGIC, ME, number, 0), table, start])

    def piece(self, before: int, data: Buffer, number: int = 1, sender: bytes = ME) -> None:
        self.plain.send([_HEAD.pack(MAGIC, sender, number, before), data])


@contextmanager
def ends_of(name: str, directory: Path, max_nbytes: int = 64 * MIB) -> Iterator[Ends]:
    with open_transport(name) as transport:
        pull = transport.bind_requests(directory)
        receiver = PieceReceiver(pull, max_nbytes, keep_nbytes=64 * MIB)
        yield Ends(receiver, transport.connect_requests)
        receiver.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with ends_of("ipc", tmp_path) as found:
        yield found


@pytest.mark.parametrize("name", ["inproc", "ipc", "tcp"])
@pytest.mark.parametrize(
    "sizes",
    [
        [100, LARGE],
        [LARGE + 1],
        [64, PIECE, PIECE - 1, PIECE + 1, 0, 1, LARGE, 0],
        [0, 0, LARGE + 5],
        [32, 3 * PIECE, *([70_000] * 300)],
    ],
)
def test_large_messages_arrive_as_they_were_sent(
    name: str, sizes: list[int], tmp_path: Path
) -> None:
    frames = [np.random.default_rng(i).bytes(size) for i, size in enumerate(sizes)]
    with ends_of(name, tmp_path) as ends:
        sender = PieceSender(ends.another())
        sent = sender.send(frames)
        message = ends.receive()
        assert message.error is None and [bytes(f) for f in message.frames] == frames
        assert sent.nbytes == message.nbytes == sum(sizes) and sent.num_frames == len(sizes)
        assert sent.started_ns <= message.received_ns
        starts = [np.frombuffer(f, np.uint8).ctypes.data for f in message.frames if f.nbytes]
        assert all(start % ALIGN == 0 for start in starts)
        message.frames.clear()
        assert ends.receiver.buffers.free_nbytes() >= sum(sizes)


@pytest.mark.parametrize("nbytes", [0, 1, LARGE - 64, LARGE])
def test_small_messages_go_as_they_are(ends: Ends, nbytes: int) -> None:
    sender = PieceSender(ends.another())
    sender.send([b"head" * 16, bytes(nbytes - 64)] if nbytes > 64 else [bytes(nbytes)])
    message = ends.receiver.receive(5)  # one, and whole
    assert message is not None and message.nbytes == nbytes
    assert ends.receiver.buffers.free_nbytes() == 0
    sender.close()


def test_no_frame_on_the_way_is_large(tmp_path: Path) -> None:
    with open_transport("ipc") as transport:
        pull = transport.bind_requests(tmp_path)
        sender = PieceSender(transport.connect_requests(pull.endpoint))
        sender.send([bytes(100), bytes(LARGE + 3)])
        sizes = []
        while (message := pull.receive(0.5)) is not None:
            sizes += [frame.nbytes for frame in message.frames]
    assert max(sizes) == PIECE <= 16 * MIB


def test_what_is_received_does_not_change_when_its_memory_is_used_again(ends: Ends) -> None:
    sender = PieceSender(ends.another())
    source = np.full(LARGE + 1, 1, np.uint8)
    sender.send([b"one", source.data])
    kept = ends.receive().frames[1]
    at = np.frombuffer(kept, np.uint8).ctypes.data
    while sender.unreleased():
        pass
    source[:] = 2  # the sender's memory is its own again
    sender.send([b"two", source.data])
    other = ends.receive().frames[1]
    assert np.all(np.frombuffer(kept, np.uint8) == 1)
    assert np.all(np.frombuffer(other, np.uint8) == 2)
    del kept
    sender.send([b"three", source.data])
    again = ends.receive().frames[1]
    assert np.frombuffer(again, np.uint8).ctypes.data == at


def test_messages_of_several_frontends_and_threads_do_not_mix(ends: Ends) -> None:
    senders = [PieceSender(ends.another()) for _ in range(3)]

    def send(number: int) -> None:
        frame = np.full(LARGE + number, number, np.uint8)
        senders[number % 3].send([bytes([number]), frame.data, b"small"])
        senders[number % 3].send([b"plain", bytes([number])])

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(send, number) for number in range(6)]
        seen, plain = set(), set()
        while len(seen) + len(plain) < 12:
            head, body, *_ = ends.receive().frames
            if bytes(head) == b"plain":
                plain.add(body[0])
                continue
            seen.add(head[0])
            assert body.nbytes == LARGE + head[0]
            assert np.all(np.frombuffer(body, np.uint8) == head[0])
        for future in done:
            future.result()
    assert seen == plain == set(range(6))


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([], "table of 0 B"),
        ([0], "0 B, at most"),
        ([64 * MIB + 1], "67108928 B, at most 67108864"),
        ([32 * MIB, 32 * MIB + 1], "at most 67108864"),
        ([(1 << 64) - 1], "at most"),
        ([1 << 63, 1 << 63], "at most"),
        ([1] * (pieces.MAX_FRAMES + 1), "table of 524296 B"),
    ],
)
def test_lengths_that_cannot_be_are_the_error_of_their_message(
    ends: Ends, lengths: list[int], words: str
) -> None:
    ends.begin(lengths)
    message = ends.receive()
    assert [bytes(frame) for frame in message.frames] == [b"start"]
    assert message.error is not None and words in str(message.error)
    assert ends.receiver._unfinished == {}


def test_a_table_that_is_cut_is_refused(ends: Ends) -> None:
    ends.plain.send([_HEAD.pack(MAGIC, ME, 1, 0), bytes(12), b"start"])
    assert "table of 12 B" in str(ends.receive().error)


@pytest.mark.parametrize(
    ("before", "nbytes"), [(10, 201), (10, 90), (9, 10), (11, 10), (1 << 63, 1), (10, 0)]
)
def test_a_piece_that_does_not_fit_ends_its_message_only(
    ends: Ends, before: int, nbytes: int
) -> None:
    ends.begin([100 - 20, 200])
    ends.piece(0, bytes(10))
    ends.nothing(2)
    ends.piece(before, bytes(nbytes))
    message = ends.receive()
    assert [bytes(frame) for frame in message.frames] == [b"start"]
    assert f"{nbytes} B at byte {before}, 10 B had arrived" in str(message.error)
    ends.piece(20, bytes(10))  # of a message that is over: as it is, for whoever reads envelopes
    stray = ends.receive()
    assert stray.error is None and bytes(stray.frames[0])[:4] == MAGIC
    ends.begin([3], 2)
    ends.piece(0, b"yes", 2)
    assert [bytes(frame) for frame in ends.receive().frames] == [b"yes"]


@pytest.mark.parametrize("frames", [[MAGIC], [MAGIC + bytes(60), b""], [MAGIC] * 4, [b""]])
def test_what_only_begins_like_a_piece_is_handed_on(ends: Ends, frames: list[bytes]) -> None:
    ends.plain.send(frames)
    assert [bytes(frame) for frame in ends.receive().frames] == frames


def test_a_new_message_of_a_frontend_drops_its_unfinished_one(ends: Ends) -> None:
    ends.begin([MIB])
    ends.piece(0, bytes(1000))
    ends.begin([4], 2)
    ends.piece(1000, bytes(1000))  # late
    ends.piece(0, b"next", 2)
    ends.nothing(3)
    assert bytes(ends.receive().frames[0])[:4] == MAGIC
    assert [bytes(frame) for frame in ends.receive().frames] == [b"next"]


def test_unfinished_messages_are_bounded(ends: Ends) -> None:
    most = pieces.MAX_UNFINISHED
    table = struct.pack("<Q", MIB)
    for number in range(most + 1):
        head = _HEAD.pack(MAGIC, number.to_bytes(8), 1, 0)
        ends.plain.send([head, table, b"start %d" % number])
        if number == most - 1:
            ends.piece(0, bytes(10), 1, bytes(8))  # the first one is not idle: the second goes
    message = ends.receive()
    assert bytes(message.frames[0]) == b"start 1" and "64 others" in str(message.error)
    assert len(ends.receiver._unfinished) == most


def test_a_declared_size_is_not_memory(ends: Ends) -> None:
    """What is announced and does not come costs addresses, not pages."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    for number in range(20):
        head = _HEAD.pack(MAGIC, number.to_bytes(8), 1, 0)
        ends.plain.send([head, struct.pack("<Q", 60 * MIB), b"start"])
    ends.nothing(20)
    assert len(ends.receiver._unfinished) == 20 and resident() - before < 16 * MIB


def test_both_ends_decide_alike() -> None:
    for transport in ("inproc", "ipc", "tcp"):
        assert pieces.wanted(transport, False) and not pieces.wanted(transport, True)
    for transport in ("arena", "torch-shm"):
        assert not pieces.wanted(transport, False) and not pieces.wanted(transport, True)


def envelope(frontend: int) -> bytes:
    return bytes(Encoder().encode(None, kind=2, request_id=frontend << COUNTER_BITS)[0])


def test_a_frontend_has_one_unfinished_message_which_goes_with_it(tmp_path: Path) -> None:
    with open_transport("ipc") as transport:
        pull = transport.bind_requests(tmp_path)
        receiver = PieceReceiver(pull, 64 * MIB, 64 * MIB, number_of)
        ends = Ends(receiver, transport.connect_requests)
        receiver.admit(1)
        receiver.admit(2)
        ends.begin([PIECE], start=envelope(2))
        ends.nothing(1)
        for number in range(70):  # more than there may be unfinished ones of all frontends
            table = struct.pack("<Q", 2 * PIECE)
            me = number.to_bytes(8, "big")
            ends.plain.send([_HEAD.pack(MAGIC, me, 1, 0), table, envelope(1)])
            ends.nothing(1)
            assert len(receiver._unfinished) == 2
        ends.piece(0, os.urandom(PIECE))
        assert ends.receive().nbytes == PIECE  # nobody else's was dropped for it
        receiver.leave(1)
        assert not receiver._unfinished
        ends.begin([PIECE], start=envelope(1))
        refused = ends.receive()
        assert "frontend 1 is not attached" in str(refused.error)
        assert not receiver._unfinished
        receiver.close()
