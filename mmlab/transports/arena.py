"""Transport by arena: payload lies in memory that both sides map, only its description is sent.

The links are those of ipc. A message is frame 0 alone, or frame 0 and a packed descriptor; the
receiver puts the payload's views in the descriptor's place, so that whoever decodes sees a message
like any other. When the last view of a message is gone, its lease is given back: the finalizer only
notes it and wakes the receiving thread, which sends it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from mmlab.arena import ArenaReader, Returned, unpack
from mmlab.arena.memfd import Fd, check_platform
from mmlab.errors import WireError
from mmlab.transports.base import Message, RequestReceiver
from mmlab.transports.zmq import ZmqTransport

MOST: Final = 4096  # leases that are given back in one message
RETRY_S: Final = 0.1  # until what could not be sent is tried again

GiveBack = Callable[[Sequence[Returned]], bool]  # False: not now


def arena() -> ZmqTransport:
    """Between processes; the payload through the frontend's arena. TransportError: no memfd."""
    check_platform()
    return ZmqTransport("ipc", name="arena")


class Ended:
    """Leases without a view. It lives as long as any view, which its finalizers hold."""

    def __init__(self) -> None:
        self.queue: deque[Returned] = deque()
        self._alarm = Fd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def fileno(self) -> int:
        """Readable when there is something new."""
        return self._alarm.fileno()

    def put(self, returned: Returned) -> None:
        """From a finalizer, in any thread: no lock is taken, and nothing waits."""
        self.queue.append(returned)
        os.eventfd_write(self._alarm.fileno(), 1)

    def take(self) -> list[Returned]:
        """Some of the queue, after the alarm is off: what comes later sets it again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._alarm.fileno())
        taken: list[Returned] = []
        with contextlib.suppress(IndexError):
            while len(taken) < MOST:
                taken.append(self.queue.popleft())
        return taken


class ArenaReceiver:
    """A `RequestReceiver` whose messages have their payload in the arena behind descriptor `fd`.

    `fd` stays the caller's to close. A descriptor that is none of this arena's, or not any more, is
    the message's `error`. `give_back` is called by the receiving thread and by `settle`.
    """

    def __init__(self, receiver: RequestReceiver, fd: int, give_back: GiveBack) -> None:
        self._receiver = receiver
        self._give_back = give_back
        self._giving = threading.Lock()
        self._ended = Ended()
        self._reader = ArenaReader(fd, self._ended.put)
        self.size = self._reader.size
        receiver.watch(self._ended.fileno(), self.settle)

    @property
    def endpoint(self) -> str:
        return self._receiver.endpoint

    def receive(self, timeout: float | None = None) -> Message | None:
        if self._ended.queue:
            self.settle()
            if self._ended.queue:
                timeout = RETRY_S if timeout is None else min(timeout, RETRY_S)
        message = self._receiver.receive(timeout)
        if message is not None and len(message.frames) > 1:
            self._open(message)
        return message

    def settle(self) -> None:
        """Give back what has ended. Returns when it is sent, by whichever thread."""
        if not self._ended.queue and not self._giving.locked():
            return
        with self._giving:
            while ended := self._ended.take():
                if not self._give_back(ended):
                    self._ended.queue.extendleft(ended)
                    return

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self._receiver.watch(fd, act)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    def close(self) -> None:
        self._reader.close()
        self._receiver.close()

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
            message.frames += self._reader.view(unpack(rest[0]))
        except WireError as error:
            message.error = WireError(str(error))
        message.nbytes = sum(frame.nbytes for frame in message.frames)
