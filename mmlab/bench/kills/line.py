"""What the processes of a trial tell the controller, over a socket of whole messages with a path.

A process connects when it begins, and once more wherever it stops at a stage: that connection says
`Here`, and its end lets it go on. Nobody waits for ever: every wait has a limit, and the end of the
controller ends all of them.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from mmlab.bench.kills.plan import Trial
from mmlab.errors import MMLabError

PATIENCE_S = 120.0  # for a step of a trial, a start of two interpreters among them
_MOST = 1 << 17
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Task(msgspec.Struct, frozen=True, tag=True):
    """To a frontend: the trial; None: start a pipeline, have one request answered, and end."""

    trial: Trial | None
    model: str
    strategy: str


class Go(msgspec.Struct, frozen=True, tag=True):
    """To a frontend: on to the next step, or to the end."""

    on: bool = True


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A frontend has loaded all that it needs."""


class Here(msgspec.Struct, frozen=True, tag=True):
    """A process has reached the stage."""

    stage: str


class Pending(msgspec.Struct, frozen=True, tag=True):
    """The pipeline works, and requests are under way."""

    engine: int
    arena: int | None
    futures: int
    blocked: int


class End(msgspec.Struct, frozen=True):
    """How one submit or one future ended: the error's class, or "reply"."""

    what: str
    kind: str
    exit_code: int | None
    at_ns: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """All of them have, and the pipeline is closed."""

    ends: list[End]
    close_s: float
    threads: list[str]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """A new pipeline has answered a request, `seconds` after its start, and is closed."""

    seconds: float


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The process cannot go on."""

    error: str


Packet = Task | Go | Hello | Here | Pending | Ended | Answered | Broken
P = TypeVar("P", bound=Packet)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


class TrialBroken(MMLabError):
    """The trial did not come to its end; says where it was."""


class Line:
    """One end of a connection. TrialBroken where the other end is gone or silent."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def to(cls, path: str) -> Line:
        """Connect to the controller that listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(path)
        return cls(sock)

    def tell(self, packet: Packet) -> None:
        try:
            self._socket.send(_encode(packet), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise TrialBroken(f"nobody hears {type(packet).__name__}: {error}") from error

    def hear(self, kind: type[P], timeout: float = PATIENCE_S) -> P:
        """The next packet, which must be of that kind."""
        packet = self.next(timeout)
        if packet is None:
            raise TrialBroken(f"waiting for {kind.__name__}: the other process has ended")
        if isinstance(packet, Broken):
            raise TrialBroken(packet.error)
        if not isinstance(packet, kind):
            raise TrialBroken(f"got {type(packet).__name__}, wanted {kind.__name__}")
        return packet

    def next(self, timeout: float) -> Packet | None:
        """The next packet, None at the end of the other side."""
        self._socket.settimeout(timeout)
        try:
            raw = self._socket.recv(_MOST)
        except TimeoutError as error:
            raise TrialBroken(f"no word within {timeout:.0f} s") from error
        except OSError:
            return None
        return _decode(raw) if raw else None

    @property
    def peer(self) -> int:
        """The process at the other end, as the kernel says."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(raw)[0])

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class HasDescriptor(Protocol):
    """What a poller takes."""

    def fileno(self) -> int: ...


class Listener:
    """Where the processes of a trial connect."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.path)
        self._socket.listen(8)

    def accept(self, other: HasDescriptor, timeout: float = PATIENCE_S) -> Line:
        """The next connection. TrialBroken where `other`, a line or a process, has news first."""
        end = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(other, select.POLLIN)
        while (left := end - time.monotonic()) > 0:
            ready = {fd for fd, _ in poller.poll(left * 1000)}
            if self._socket.fileno() in ready:
                return Line(self._socket.accept()[0])
            if ready:
                said = other.next(1.0) if isinstance(other, Line) else None
                why = said.error if isinstance(said, Broken) else f"got {said}"
                raise TrialBroken(f"waiting for a stage: {why}")
        raise TrialBroken(f"the stage was not reached within {timeout:.0f} s")

    def close(self) -> None:
        self._socket.close()
