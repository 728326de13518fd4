"""The four kinds of ZeroMQ socket that a pipeline uses, each as one link of a transport.

What is easy to get wrong, and held here: a tracker speaks for one frame only, so every frame that
is not copied has its own; frames below 64 KiB are copied by pyzmq whatever one asks for, so they
are sent as copies; a socket belongs to one thread at a time, so senders lock; nothing lingers, so
closing never waits for a peer that is gone; a socket path has 107 bytes; and only this machine can
connect.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import zmq

from mmlab.errors import TransportError
from mmlab.transports.base import Buffer, Message, Sent
from mmlab.transports.interrupts import uninterrupted
from mmlab.transports.limits import descriptor_error, is_descriptor_limit

COPY_BELOW = 64 * 1024  # bytes; pyzmq's own threshold: it copies smaller frames in any case
MAX_PATH = 107  # bytes of sun_path without its final NUL
# More than a frontend may have in flight, with a return of its lease for each: a reply never meets
# a limit, and what somebody causes who reads none is bounded.
MAX_QUEUED_REPLIES = 200_000
ZmqContext: TypeAlias = zmq.Context[zmq.Socket[bytes]]
Options: TypeAlias = Sequence[tuple[int, int | bytes]]
LOOPBACK = re.compile(r"tcp://127\.0\.0\.1:(\d+|\*)")


def check_endpoint(endpoint: str) -> str:
    """The endpoint itself; TransportError for one that is too long or not of this machine only."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "tcp" and not LOOPBACK.fullmatch(endpoint):
        raise TransportError(
            f"endpoint {endpoint}: refused, tcp is limited to 127.0.0.1 until connections are "
            "authenticated; use ipc or tcp://127.0.0.1"
        )
    if scheme == "ipc" and len(os.fsencode(rest)) > MAX_PATH:
        raise TransportError(
            f"endpoint {endpoint}: its path has {len(os.fsencode(rest))} bytes, a socket path is "
            f"limited to {MAX_PATH}; choose a shorter directory (TMPDIR)"
        )
    if scheme not in ("inproc", "ipc", "tcp"):
        raise TransportError(f"endpoint {endpoint}: unknown scheme; known: inproc, ipc, tcp")
    return endpoint


def _failed(doing: str, error: zmq.ZMQError) -> TransportError:
    if is_descriptor_limit(error):
        return descriptor_error(doing, error)
    return TransportError(f"{doing}: {error}")


class Link:
    """One socket with no linger, closed once; by its constructor already where that fails."""

    def __init__(self, context: ZmqContext, kind: int, options: Options = ()) -> None:
        self._lock = threading.Lock()
        self.endpoint = ""
        self._path: Path | None = None  # of a socket that is ours to remove: libzmq leaves it
        self._socket = context.socket(kind)
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.copy_threshold = COPY_BELOW
            for option, value in options:
                self._socket.setsockopt(option, value)
            self._prepare()
        except BaseException:
            self.close()  # nobody else knows it, and a context waits for all of its sockets
            raise

    def _prepare(self) -> None:
        """What else a link opens."""

    def bind(self, endpoint: str) -> None:
        try:
            self._socket.bind(check_endpoint(endpoint))
        except zmq.ZMQError as error:
            raise _failed(f"cannot listen on {endpoint}", error) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if self.endpoint.startswith("ipc://"):
            self._path = Path(self.endpoint.removeprefix("ipc://"))

    def connect(self, endpoint: str) -> None:
        try:
            self._socket.connect(check_endpoint(endpoint))
        except zmq.ZMQError as error:
            raise _failed(f"cannot connect to {endpoint}", error) from error
        self.endpoint = endpoint

    def close(self) -> None:
        with self._lock:
            self._socket.close(linger=0)
            if self._path is not None:
                self._path.unlink(missing_ok=True)
                self._path = None


class _Receiving(Link):
    """A link that waits for messages, and whose wait another thread can end."""

    _wake = _waker = -1

    def _prepare(self) -> None:
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self._watched[fd] = act
        self._poller.register(fd, zmq.POLLIN)

    def receive(self, timeout: float | None = None) -> Message | None:
        ready = dict(self._poller.poll(None if timeout is None else int(timeout * 1000)))
        for fd, act in self._watched.items():
            if fd in ready:
                act()
        if self._wake in ready or self._socket not in ready:
            return None
        parts = self._socket.recv_multipart(copy=False)
        received_ns = time.monotonic_ns()
        frames = [part.buffer for part in parts]  # each view keeps its zmq frame alive
        return Message(frames, received_ns, sum(frame.nbytes for frame in frames))

    def interrupt(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._wake >= 0:
                os.write(self._waker, b"x")

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._wake >= 0:
                wake, self._wake = self._wake, -1
                os.close(wake)
                os.close(self._waker)


class Push(Link):
    """The frontend's end for requests."""

    def __init__(self, context: ZmqContext) -> None:
        # Bounded in bytes by the pipeline, not in messages.
        super().__init__(context, zmq.PUSH, [(zmq.SNDHWM, 0)])
        self._trackers: deque[zmq.MessageTracker] = deque()
        self._torn = False  # the last message has no end

    def send(self, frames: Sequence[Buffer]) -> Sent:
        views = [memoryview(frame).cast("B") for frame in frames]
        with self._lock, uninterrupted():
            self._reap()
            started_ns = time.monotonic_ns()
            try:
                if self._torn:  # or this one would become a part of it
                    self._send_frame(memoryview(b""), zmq.NOBLOCK)
                    self._torn = False
                for index, view in enumerate(views):
                    more = zmq.SNDMORE if index + 1 < len(views) else 0
                    self._send_frame(view, zmq.NOBLOCK | more)
                    self._torn = bool(more)
            except zmq.ZMQError as error:
                raise TransportError(f"cannot send to {self.endpoint}: {error}") from error
        return Sent(sum(view.nbytes for view in views), len(views), started_ns)

    def _send_frame(self, view: memoryview, flags: int) -> None:
        if view.nbytes < COPY_BELOW:
            self._socket.send(view, flags)
        else:
            tracker = self._socket.send(view, flags, copy=False, track=True)
            assert tracker is not None
            self._trackers.append(tracker)

    def _reap(self) -> None:
        while self._trackers and self._trackers[0].done:
            self._trackers.popleft()

    def unreleased(self) -> int:
        with self._lock:
            self._reap()
            return sum(not tracker.done for tracker in self._trackers)


class Pull(_Receiving):
    """The engine's end for requests."""

    def __init__(self, context: ZmqContext, max_nbytes: int, max_queued: int) -> None:
        options = [(zmq.MAXMSGSIZE, max_nbytes), (zmq.RCVHWM, max_queued)]
        super().__init__(context, zmq.PULL, options)


class Router(Link):
    """The engine's end for replies. An unreachable frontend is an answer, never a silent loss."""

    def __init__(self, context: ZmqContext) -> None:
        options = [
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.SNDHWM, MAX_QUEUED_REPLIES),
            (zmq.RCVHWM, 1),  # nothing is read here: what is sent, waits there
            (zmq.MAXMSGSIZE, 1024),
        ]
        super().__init__(context, zmq.ROUTER, options)

    def send(self, frontend: bytes, frames: Sequence[Buffer]) -> bool:
        try:
            with self._lock:
                self._socket.send_multipart([frontend, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise TransportError(f"cannot reply on {self.endpoint}: {error}") from error
        return True


class Dealer(_Receiving):
    """The frontend's end for replies."""

    def __init__(self, context: ZmqContext, frontend: bytes) -> None:
        options: Options = [(zmq.IDENTITY, frontend), (zmq.RCVHWM, MAX_QUEUED_REPLIES)]
        super().__init__(context, zmq.DEALER, options)
