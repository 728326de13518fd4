"""What the processes of a measurement say to each other, over AF_UNIX socket pairs.

The controller talks to the sender of each pair, and the sender to its receiver. Payload never goes
this way, only commands, results and acknowledgements (10 us there and back), so that the time of an
acknowledgement is the same for every way that is measured.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec

from mmlab.errors import MMLabError, TransportError

START_S: Final = 600.0  # several processes load vLLM at once, perhaps from a cold disk
PATIENCE_S: Final = 120.0  # no message takes as long; a process that is silent longer is stuck
_MOST: Final = 1 << 17  # bytes of a packet; below the limit of an AF_UNIX socket


class WayFailed(MMLabError):
    """What went wrong in another process; `way` is the name of the way that did, or empty."""

    def __init__(self, error: str, way: str = "") -> None:
        super().__init__(error)
        self.way = way


@contextmanager
def naming(way: str) -> Iterator[None]:
    """What goes wrong within is known as this way's, unless it is known as another's."""
    try:
        yield
    except Exception as error:
        if isinstance(error, WayFailed) and error.way:
            raise
        ours = isinstance(error, MMLabError)
        raise WayFailed(str(error) if ours else f"{type(error).__name__}: {error}", way) from error


class Case(msgspec.Struct, frozen=True, tag=True):
    """Get ready for messages of this kind; `sources` different ones are sent in rotation."""

    images: int
    dtype: str
    image_size: int
    sources: int
    tokens: int = 0  # above 0: a whole request with so many token ids, and perhaps no image
    only: str = ""  # the one way that gets ready; all others give up what they keep

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.images, 3, self.image_size, self.image_size


class Turn(msgspec.Struct, frozen=True, tag=True):
    """Send one message untimed, which is checked, then `messages` more."""

    way: str
    messages: int
    hold_s: float = 0.0  # how long the receiver keeps a batch, for readings of memory


class Stream(msgspec.Struct, frozen=True, tag=True):
    """One message as in a `Turn`, then `messages` with two of them in flight at any time."""

    way: str
    messages: int


class Usage(msgspec.Struct, frozen=True):
    """Of one process, over the timed messages of a turn."""

    cpu_s: float
    faults: int  # minor ones


class Timed(msgspec.Struct, frozen=True, tag=True):
    """The result of a turn: seconds of each message, and what both processes used for all."""

    seconds: list[float]
    sender: Usage
    receiver: Usage


class Used(msgspec.Struct, frozen=True, tag=True):
    """The receiver's part of a turn's result."""

    usage: Usage


class Proof(msgspec.Struct, frozen=True, tag=True):
    """What the receiver got, to be compared with what was sent."""

    shape: list[int]
    dtype: str
    checksum: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A process has started. The sender's speaks for both."""

    pids: list[int]
    threads: list[int]  # of torch, as in `pids`
    tuned: bool
    endpoint: str = ""
    peer: str = ""


class Trim(msgspec.Struct, frozen=True, tag=True):
    """Give freed memory back to the system."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """`Case` or `Trim` was carried out."""


class Ack(msgspec.Struct, frozen=True, tag=True):
    """The batch exists."""


class Idle(msgspec.Struct, frozen=True, tag=True):
    """The receiver has dropped the batch and waits for the next message."""


class Return(msgspec.Struct, frozen=True, tag=True):
    """No view of a descriptor is left at the receiver (`mmlab.arena.Returned`)."""

    arena: int
    generation: int
    lease: int


class Place(msgspec.Struct, frozen=True, tag=True):
    """Where the shared memory of vLLM's `ShmTensorArena` is."""

    readers: int
    slot_nbytes: int
    slots: int
    name: str


class Key(msgspec.Struct, frozen=True, tag=True):
    """By which the receiver may fetch descriptors from the sender's process."""

    key: bytes


class Folder(msgspec.Struct, frozen=True, tag=True):
    """Where segments of shared memory are."""

    path: str


class Ring(msgspec.Struct, frozen=True, tag=True):
    """The ring buffer of vLLM's object store."""

    name: str
    nbytes: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process ends because of this, which happened to `way` if it has a name."""

    error: str
    way: str = ""


_ToReceiver = Case | Turn | Stream | Trim | Return | Place | Key | Folder | Ring
_Back = Timed | Used | Proof | Ready | Done | Ack | Idle | Failed
Packet = _ToReceiver | _Back
P = TypeVar("P", bound=Packet)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


class Line:
    """One end of a socket pair. TransportError where the other process has ended."""

    def __init__(self, sock: socket.socket, other: str) -> None:
        self.sock = sock
        self._other = other
        sock.settimeout(PATIENCE_S)

    @classmethod
    def pair(cls, other: str) -> tuple[Line, socket.socket]:
        """Our end, and the end for the process called `other`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, other), theirs

    @classmethod
    def inherited(cls, fd: int, other: str) -> Line:
        """The end that this process was started with."""
        return cls(socket.socket(fileno=fd), other)

    def tell(self, packet: Packet) -> None:
        try:
            self.sock.send(_encode(packet), socket.MSG_NOSIGNAL)
        except OSError as error:
            raise TransportError(f"the {self._other} cannot be told anything: {error}") from error

    def patient(self, seconds: float | None) -> None:
        """How long to wait for a packet from now on; None: for ever."""
        self.sock.settimeout(seconds)

    def next(self) -> Packet | None:
        """The next packet; None where the other process has closed its end."""
        try:
            raw = self.sock.recv(_MOST)
        except TimeoutError as error:
            patience = self.sock.gettimeout() or 0.0
            raise TransportError(
                f"the {self._other} has been silent for {patience:.0f} s"
            ) from error
        except OSError as error:
            raise TransportError(f"the {self._other} cannot be heard: {error}") from error
        return _decode(raw) if raw else None

    def command(self) -> Packet | None:
        """The next packet, however long that takes: other pairs have their turns meanwhile."""
        self.patient(None)
        try:
            return self.next()
        finally:
            self.patient(PATIENCE_S)

    def any(self) -> Packet:
        """The next packet. A failure of the other is raised here."""
        packet = self.next()
        if packet is None:
            raise TransportError(f"the {self._other} has ended")
        if isinstance(packet, Failed):
            raise WayFailed(packet.error, packet.way)
        return packet

    def hear(self, kind: type[P]) -> P:
        """The next packet, which must be one of `kind`."""
        packet = self.any()
        if not isinstance(packet, kind):
            raise TransportError(
                f"the {self._other} said {type(packet).__name__}, wanted {kind.__name__}"
            )
        return packet

    def close(self) -> None:
        self.sock.close()
