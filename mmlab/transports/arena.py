"""Transport by arena: payload lies in memory that both sides map, only its description is sent.

The links are those of ipc. A message is frame 0 alone, or frame 0 and a packed descriptor; the
receiver puts the payload's views in the descriptor's place, so that whoever decodes sees a message
like any other. Each frontend has an arena of its own; frame 0 says whose a message is. When the
last view of a message is gone, its lease is given back: the finalizer only notes it and wakes the
receiving thread, which sends it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from mmlab.arena import ArenaReader, Descriptor, Returned, unpack
from mmlab.arena.ledger import MAX_LEASES
from mmlab.arena.memfd import Fd, check_platform
from mmlab.errors import WireError
from mmlab.transports.base import Message, RequestReceiver
from mmlab.transports.zmq import ZmqTransport

MOST: Final = 4096  # leases that are given back in one message
RETRY_S: Final = 0.1  # until what could not be sent is tried again

GiveBack = Callable[[Sequence[Returned]], bool]  # False: not now
Pin = Callable[[np.ndarray], None]
NumberOf = Callable[[memoryview], int | None]  # frame 0 -> its frontend's; None: unreadable


def arena() -> ZmqTransport:
    """Between processes; the payload through the frontend's arena. TransportError: no memfd."""
    check_platform()
    return ZmqTransport("ipc", name="arena")


class Alarm:
    """Readable when a lease has ended. It lives as long as any view, whose finalizers hold it."""

    def __init__(self) -> None:
        self._fd = Fd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def fileno(self) -> int:
        return self._fd.fileno()

    def set(self) -> None:
        os.eventfd_write(self._fd.fileno(), 1)

    def clear(self) -> None:
        """Before the queues are looked at: what comes later sets it again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd.fileno())


class Ended:
    """Leases of one arena without a view."""

    def __init__(self, alarm: Alarm) -> None:
        # An arena has no more leases; whoever invents more and takes none back loses the oldest.
        self.queue: deque[Returned] = deque(maxlen=MAX_LEASES)
        self.over = False  # nobody is left to whom they could be given
        self._alarm = alarm

    def put(self, returned: Returned) -> None:
        """From a finalizer, in any thread: no lock is taken, and nothing waits."""
        if not self.over:
            self.queue.append(returned)
            self._alarm.set()

    def take(self) -> list[Returned]:
        taken: list[Returned] = []
        with contextlib.suppress(IndexError):
            while len(taken) < MOST:
                taken.append(self.queue.popleft())
        return taken


class Borrowed:
    """One frontend's arena, and the way back of its leases."""

    def __init__(self, fd: int, alarm: Alarm, give_back: GiveBack, pin: Pin | None) -> None:
        self.ended = Ended(alarm)
        self.reader = ArenaReader(fd, self.ended.put, writable=pin is not None, pin=pin)
        self._give_back = give_back
        self._giving = threading.Lock()
        self._not_before = 0.0  # who takes nothing is not asked again for every other's reply

    def settle(self) -> None:
        """Give back what has ended. Returns when it is sent, by whichever thread."""
        if not self.ended.queue and not self._giving.locked():
            return
        with self._giving:
            if time.monotonic() < self._not_before:
                return
            while ended := self.ended.take():
                if not self._give_back(ended):
                    self.ended.queue.extendleft(reversed(ended))
                    self._not_before = time.monotonic() + RETRY_S
                    return

    def close(self) -> None:
        """No more views, no more returns. The memory goes with the last view."""
        self.ended.over = True
        self.ended.queue.clear()
        self.reader.close()


class ArenaReceiver:
    """A `RequestReceiver` whose messages have their payload in the arenas of their senders.

    A descriptor that is none of its sender's arena, or not any more, is the message's `error`.
    `pin` gets the memory of every arena, as that of `ArenaReader` does: it is mapped read-write
    then, as CUDA registers memory.
    """

    def __init__(
        self, receiver: RequestReceiver, number_of: NumberOf, pin: Pin | None = None
    ) -> None:
        self._receiver = receiver
        self._pin = pin
        self._number_of = number_of
        self._alarm = Alarm()
        self._borrowed: dict[int, Borrowed] = {}  # replaced, never changed: threads iterate over it
        self._changing = threading.Lock()
        receiver.watch(self._alarm.fileno(), self.settle)

    @property
    def endpoint(self) -> str:
        return self._receiver.endpoint

    def join(self, frontend: int, fd: int, give_back: GiveBack) -> int:
        """From any thread: that frontend's arena is behind `fd`, which stays the caller's to close.

        Its size. `give_back` is called by the receiving thread and by `settle`. TransportError for
        what is no arena.
        """
        borrowed = Borrowed(fd, self._alarm, give_back, self._pin)
        with self._changing:
            self._borrowed = {**self._borrowed, frontend: borrowed}
        return borrowed.reader.size

    def leave(self, frontend: int) -> None:
        """From any thread: nothing is read of that frontend's arena any more, nor given back."""
        with self._changing:
            borrowed = self._borrowed.get(frontend)
            self._borrowed = {n: b for n, b in self._borrowed.items() if n != frontend}
        if borrowed is not None:
            borrowed.close()

    def receive(self, timeout: float | None = None) -> Message | None:
        if self._unsettled():
            self.settle()
            if self._unsettled():
                timeout = RETRY_S if timeout is None else min(timeout, RETRY_S)
        message = self._receiver.receive(timeout)
        if message is not None and len(message.frames) > 1:
            self._open(message)
        return message

    def settle(self) -> None:
        """Give back what has ended, of all arenas."""
        self._alarm.clear()
        for borrowed in self._borrowed.values():
            borrowed.settle()

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self._receiver.watch(fd, act)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    def close(self) -> None:
        for frontend in self._borrowed:
            self.leave(frontend)
        self._receiver.close()

    def _unsettled(self) -> bool:
        return any(borrowed.ended.queue for borrowed in self._borrowed.values())

    def _open(self, message: Message) -> None:
        """Views for the descriptor, or an error in the message; without its traceback, which would
        refer to the message."""
        head, *rest = message.frames
        message.frames = [head]
        try:
            if len(rest) > 1:
                raise WireError(
                    f"arena: a message of {len(rest) + 1} frames, wanted frame 0 and a descriptor"
                )
            descriptor = unpack(rest[0])
            message.frames += self._reader(self._number_of(head), descriptor).view(descriptor)
        except WireError as error:
            message.error = WireError(str(error))
        message.nbytes = sum(frame.nbytes for frame in message.frames)

    def _reader(self, frontend: int | None, descriptor: Descriptor) -> ArenaReader:
        """The sender's; where frame 0 cannot be read the one it names, so that its lease ends."""
        for number, borrowed in self._borrowed.items():
            if number == frontend or (frontend is None and borrowed.reader.id == descriptor.arena):
                return borrowed.reader
        raise WireError(f"arena: frontend {frontend} has lent none")
