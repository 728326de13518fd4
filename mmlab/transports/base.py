"""What every transport offers: a link for requests (payload, one way) and a link for replies.

The engine binds, frontends connect. Both sides speak of frames only; what is in them is the wire's
business. A transport owns whatever its links share (a zmq context) and closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mmlab.errors import WireError

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Sent:
    """What went out. `started_ns` (CLOCK_MONOTONIC) is just before the first frame."""

    nbytes: int
    num_frames: int
    started_ns: int


@dataclass(slots=True)
class Message:
    """What came in. Frames borrow the transport's memory, which lives as long as they do."""

    frames: list[memoryview]
    received_ns: int  # CLOCK_MONOTONIC, just after the last frame
    nbytes: int  # of its frames
    error: WireError | None = None  # why its payload cannot be had; only frame 0 is there then


class RequestSender(Protocol):
    """The frontend's end for requests. `send` is thread-safe and never blocks."""

    def send(self, frames: Sequence[Buffer]) -> Sent:
        """Queue one message. Memory of large frames is read later: see `unreleased`."""

    def unreleased(self) -> int:
        """Number of sent frames whose memory the transport may still read."""

    def close(self) -> None:
        """Drop what is unsent and let go of everything. Idempotent."""


class RequestReceiver(Protocol):
    """The engine's end for requests, for one thread."""

    @property
    def endpoint(self) -> str:
        """What a frontend connects to."""

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds, an `interrupt`, or a watched event."""

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        """From now on `receive` also waits for `fd`, and calls `act` when that can be read."""

    def interrupt(self) -> None:
        """Make this and every later wait in `receive` return at once; from any thread."""

    def close(self) -> None:
        """Stop listening. Idempotent; no thread may be in `receive`."""


class ReplySender(Protocol):
    """The engine's end for replies. `send` is thread-safe and never blocks."""

    @property
    def endpoint(self) -> str:
        """What a frontend connects to."""

    def send(self, frontend: bytes, frames: Sequence[Buffer]) -> bool:
        """Send to one frontend; False if it is unknown, gone, or reads nothing."""

    def close(self) -> None:
        """Stop listening. Idempotent."""


class ReplyReceiver(Protocol):
    """The frontend's end for replies, for one thread."""

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None after `timeout` seconds or an `interrupt`."""

    def interrupt(self) -> None:
        """Make this and every later wait in `receive` return at once; from any thread."""

    def close(self) -> None:
        """Let go of everything. Idempotent; no thread may be in `receive`."""


class Transport(Protocol):
    """One kind of way between two processes. A context manager: leaving it closes every link."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    @property
    def private(self) -> bool:
        """Whether only processes of the same user can connect."""

    def bind_requests(
        self, directory: Path | None, max_nbytes: int = -1, max_queued: int = 1000
    ) -> RequestReceiver:
        """Listen for requests; sockets with a path lie in `directory`. A frame longer than
        `max_nbytes` ends the connection that brings it (-1: no limit). Up to `max_queued` messages
        of a frontend wait here, the others with their sender."""

    def bind_replies(self, directory: Path | None) -> ReplySender:
        """Listen for frontends that want replies."""

    def connect_requests(self, endpoint: str) -> RequestSender:
        """Connect to where `bind_requests` listens."""

    def connect_replies(self, endpoint: str, frontend: bytes) -> ReplyReceiver:
        """Connect to where `bind_replies` listens, as `frontend`."""

    def close(self) -> None:
        """Close every link and everything they share. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
