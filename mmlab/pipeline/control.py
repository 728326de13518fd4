"""The control socket: a pair of AF_UNIX sockets between a frontend and its engine.

Seqpacket keeps messages whole, and its end-of-file is the news that the other process is gone. It
also carries the arena's file descriptor, which no other channel can.
"""

from __future__ import annotations

import select
import socket

import msgspec

from mmlab.arena import receive_descriptor, send_descriptor
from mmlab.errors import TransportError
from mmlab.pipeline.messages import Control

MAX_MESSAGE = 128 * 1024  # below the kernel's default send buffer, so that a send is never partial

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Control)


class ControlSocket:
    """One end. `send` and `receive` may be used by two threads, one each."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def pair(cls) -> tuple[ControlSocket, ControlSocket]:
        """Two connected ends; neither is inherited by a child unless handed over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def from_fd(cls, fd: int) -> ControlSocket:
        """The end that was inherited as descriptor `fd`."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Control) -> None:
        """TransportError where the other end is gone or does not read."""
        data = _encoder.encode(message)
        if len(data) > MAX_MESSAGE:
            raise TransportError(f"control message of {len(data)} B, at most {MAX_MESSAGE}")
        try:
            self._socket.send(data, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise TransportError(f"control socket: {error}") from error

    def receive(self) -> Control | None:
        """The next message, waiting for it; None when the other end is closed."""
        try:
            data = self._socket.recv(MAX_MESSAGE + 1)
        except ConnectionError:
            return None
        if not data:
            return None
        try:
            return _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise TransportError(f"control socket: unreadable message ({error})") from error

    def send_descriptor(self, fd: int) -> None:
        """Hand a file descriptor over, between two messages. TransportError as `send`."""
        send_descriptor(self._socket, fd)

    def receive_descriptor(self) -> int:
        """The descriptor that comes next, the caller's to close. TransportError if none does."""
        return receive_descriptor(self._socket)

    def pending(self) -> bool:
        """Whether `receive` would return at once."""
        poller = select.poll()  # not select(): descriptors may be above 1023
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        self._socket.close()
