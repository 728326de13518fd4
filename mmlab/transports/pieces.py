"""Large messages in small pieces, for an engine whose malloc gives memory back.

glibc maps fresh pages for every block above its mmap threshold and trims what is freed, so a
receiver for which it was not told otherwise (`lifecycle.keep_freed_memory`) touches new pages for
every message: 75,000 page faults for 308 MB. Smaller frames in one message do not help, since all
of a message lies in memory before any of it is received. Pieces that are messages of their own do:
each is copied out and freed at once, and what they are put together in was touched before.
Between two bare sockets on 2 cores, 32 images of float32 (308 MB) went at 1.3 GB/s as one frame,
at 1.0 as frames of 16 MiB, at 3.0 in pieces of 1 MiB, and at 3.4 to a receiver that keeps its
memory. It costs one more copy of each byte, into the buffer that the request then borrows.

A message begins with [head, lengths of its frames, start of frame 0]; every piece is [head, bytes],
in order. Whatever is not above LARGE goes as it is. The receiver trusts nothing: lengths, order and
sums are checked, a frontend has one unfinished message at most, which goes with it, and memory is
touched only by what has arrived. What is wrong with a message can be answered by the start
of its frame 0.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mmlab.errors import WireError
from mmlab.transports.base import Buffer, Message, RequestReceiver, RequestSender, Sent
from mmlab.transports.warm import Bytes, WarmBuffers

LARGE: Final = 16 << 20  # bytes of a message; above, it goes in pieces
PIECE: Final = 1 << 20
MAX_QUEUED: Final = 32  # pieces in ZeroMQ's queue: more would be memory that it has to touch
LEARN: Final = (32 << 20) - (64 << 10)  # bytes; just below glibc's largest mmap threshold
MAX_UNFINISHED: Final = 64  # messages, each of another frontend
MAX_FRAMES: Final = 1 << 16
ALIGN: Final = 64  # where a frame begins, so that tensors may lie in it
START: Final = 64  # bytes of frame 0 that go ahead
MAGIC: Final = b"mmPC"
_HEAD: Final = struct.Struct("<4s4x8sQQ")  # magic, sender, number of its message, bytes before
NumberOf = Callable[[memoryview], int | None]  # start of frame 0 -> its frontend's
IN_MEMORY: Final = frozenset({"arena", "torch-shm"})  # transports that send no payload


def wanted(transport: str, malloc_tuned: bool) -> bool:
    """Whether both ends use pieces: said once, because they must agree."""
    return not malloc_tuned and transport not in IN_MEMORY


class PieceSender:
    """A `RequestSender` that sends large messages in pieces."""

    def __init__(self, sender: RequestSender) -> None:
        self._sender = sender
        self._me = os.urandom(8)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # one unfinished message at a time

    def send(self, frames: Sequence[Buffer]) -> Sent:
        views = [memoryview(frame).cast("B") for frame in frames]
        nbytes = sum(view.nbytes for view in views)
        if nbytes <= LARGE or len(views) > MAX_FRAMES:
            return self._sender.send(views)
        lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
        with self._lock:
            number, before = next(self._numbers), 0
            start = views[0][:START]
            sent = self._sender.send([_HEAD.pack(MAGIC, self._me, number, 0), lengths, start])
            for view in views:
                for at in range(0, view.nbytes, PIECE):
                    piece = view[at : at + PIECE]
                    self._sender.send([_HEAD.pack(MAGIC, self._me, number, before), piece])
                    before += piece.nbytes
        return Sent(nbytes, len(views), sent.started_ns)

    def unreleased(self) -> int:
        return self._sender.unreleased()

    def close(self) -> None:
        self._sender.close()


@dataclass(slots=True)
class _Unfinished:
    """A message of which something is missing."""

    number: int
    head: memoryview  # the start of frame 0
    lengths: tuple[int, ...]
    memory: Bytes
    arrived: int = 0  # bytes of all frames
    frame: int = 0  # that the next byte belongs to
    at: int = 0  # bytes that this frame has
    start: int = 0  # of this frame in the memory

    def frames(self) -> list[memoryview]:
        starts = [0, *itertools.accumulate(map(_aligned, self.lengths))]
        parts = zip(starts, self.lengths, strict=False)
        return [self.memory[at : at + size].data for at, size in parts]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class PieceReceiver:
    """A `RequestReceiver` that puts such messages together, of `max_nbytes` at most (-1: no limit).

    `receive` is None also where a piece did not complete its message.
    """

    def __init__(
        self,
        receiver: RequestReceiver,
        max_nbytes: int,
        keep_nbytes: int,
        number_of: NumberOf | None = None,
    ) -> None:
        self._receiver = receiver
        self._number_of = number_of
        self._lock = threading.Lock()
        self._known: dict[int, bytes] = {}  # frontends, and who sent its last beginning
        self._max_nbytes = max_nbytes
        self._unfinished: dict[bytes, _Unfinished] = {}  # by sender; the longest idle first
        self.buffers = WarmBuffers(keep_nbytes)
        # glibc learns from a large block that is freed: twice its size may be free from now on
        # before anything is trimmed. Without it a queue of pieces is mapped anew each time.
        bytearray(LEARN)

    @property
    def endpoint(self) -> str:
        return self._receiver.endpoint

    def receive(self, timeout: float | None = None) -> Message | None:
        message = self._receiver.receive(timeout)
        if message is None or bytes(message.frames[0][: len(MAGIC)]) != MAGIC:
            return message
        frames = message.frames
        if frames[0].nbytes != _HEAD.size or len(frames) not in (2, 3):
            return message  # whoever reads its envelope will say that this is none
        _, sender, number, before = _HEAD.unpack(frames[0])
        with self._lock:
            if len(frames) == 3:
                return self._begin(message, sender, number)
            return self._go_on(message, sender, number, before)

    def admit(self, frontend: int) -> None:
        """From any thread: it may send (where frontends are told apart, by `number_of`)."""
        with self._lock:
            self._known[frontend] = b""

    def leave(self, frontend: int) -> None:
        """From any thread: it is gone, and what it has not finished."""
        with self._lock:
            self._unfinished.pop(self._known.pop(frontend, b""), None)

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self._receiver.watch(fd, act)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    def close(self) -> None:
        self._unfinished.clear()
        self._receiver.close()

    def _begin(self, message: Message, sender: bytes, number: int) -> Message | None:
        _, table, head = message.frames
        count, rest = divmod(table.nbytes, 8)
        if rest or not 1 <= count <= MAX_FRAMES:
            return _refused(message, head, f"table of {table.nbytes} B for its frames")
        lengths = struct.unpack(f"<{count}Q", table)
        nbytes = sum(map(_aligned, lengths))
        limited = 0 <= self._max_nbytes < nbytes
        if limited or not 0 < nbytes < 1 << 62 or head.nbytes > START:
            return _refused(message, head[:START], f"{nbytes} B, at most {self._max_nbytes}")
        if self._number_of is not None:
            frontend = self._number_of(head)
            if frontend is None or frontend not in self._known:
                return _refused(message, head, f"frontend {frontend} is not attached")
            self._unfinished.pop(self._known[frontend], None)
            self._known[frontend] = sender
        self._unfinished.pop(sender, None)  # it could not send all of that one
        try:
            memory = self.buffers.take(nbytes)
        except OSError as error:
            return _refused(message, head, f"no memory for its {nbytes} B ({error})")
        dropped: Message | None = None
        if len(self._unfinished) >= MAX_UNFINISHED:
            idle = next(iter(self._unfinished))
            why = f"dropped, {MAX_UNFINISHED} others are unfinished too"
            dropped = _refused(message, self._unfinished.pop(idle).head, why)
        # A copy: the frame would keep memory of the transport.
        begun = _Unfinished(number, memoryview(bytes(head)), lengths, memory)
        self._unfinished[sender] = begun
        return dropped

    def _go_on(self, message: Message, sender: bytes, number: int, before: int) -> Message | None:
        entry = self._unfinished.pop(sender, None)
        if entry is None or entry.number != number:
            if entry is not None:
                self._unfinished[sender] = entry
            return message  # of none that is known: rejected like any message without envelope
        self._unfinished[sender] = entry  # the last that was heard of
        data = np.frombuffer(message.frames[1], np.uint8)
        if before != entry.arrived or not _fill(entry, data):
            del self._unfinished[sender]
            why = f"{data.nbytes} B at byte {before}, {entry.arrived} B had arrived"
            return _refused(message, entry.head, why)
        if entry.frame < len(entry.lengths):
            return None
        frames = self._unfinished.pop(sender).frames()
        return Message(frames, message.received_ns, sum(frame.nbytes for frame in frames))


def _fill(entry: _Unfinished, data: Bytes) -> bool:
    """Put a piece in its place; False where it does not end within one frame."""
    while entry.frame < len(entry.lengths) and entry.at == entry.lengths[entry.frame]:
        _next_frame(entry)  # an empty one
    if entry.frame == len(entry.lengths) or not data.nbytes:
        return False
    if entry.at + data.nbytes > entry.lengths[entry.frame]:
        return False
    start = entry.start + entry.at
    np.copyto(entry.memory[start : start + data.nbytes], data)
    entry.arrived += data.nbytes
    entry.at += data.nbytes
    while entry.frame < len(entry.lengths) and entry.at == entry.lengths[entry.frame]:
        _next_frame(entry)
    return True


def _next_frame(entry: _Unfinished) -> None:
    entry.start += _aligned(entry.lengths[entry.frame])
    entry.frame += 1
    entry.at = 0


def _refused(message: Message, head: memoryview, why: str) -> Message:
    error = WireError(f"message in pieces: {why}")
    return Message([head], message.received_ns, head.nbytes, error)
