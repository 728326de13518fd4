"""The control socket: an AF_UNIX connection between a frontend and its engine.

Seqpacket keeps messages whole, and its end-of-file is the news that the other process is gone. It
also carries the arena's file descriptor, which no other channel can.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections.abc import Sequence

import msgspec

from mmlab.arena import receive_descriptor, send_descriptor
from mmlab.errors import TransportError
from mmlab.pipeline.messages import Control

MAX_MESSAGE = 128 * 1024  # below the kernel's default send buffer, so that a send is never partial

MOST_DESCRIPTORS = 8  # that are taken, to be closed, of a peer that sends too many

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

    def send(self, message: Control, descriptors: Sequence[int] = ()) -> None:
        """TransportError where the other end is gone or does not read."""
        data = _encoder.encode(message)
        if len(data) > MAX_MESSAGE:
            raise TransportError(f"control message of {len(data)} B, at most {MAX_MESSAGE}")
        try:
            socket.send_fds(self._socket, [data], descriptors, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise TransportError(f"control socket: {error}") from error

    def receive(self) -> Control | None:
        """The next message, waiting for it; None when the other end is closed."""
        try:
            data = self._socket.recv(MAX_MESSAGE + 1)
        except ConnectionError:
            return None
        return _decoded(data) if data else None

    def receive_with_descriptors(self) -> tuple[Control | None, list[int]]:
        """`receive`, and what was sent along: the caller's to close, not inherited by children."""
        fds = array.array("i")
        space = socket.CMSG_SPACE(MOST_DESCRIPTORS * fds.itemsize)
        try:
            data, extras, _, _ = self._socket.recvmsg(
                MAX_MESSAGE + 1, space, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return None, []
        for level, kind, payload in extras:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
        try:
            return (_decoded(data) if data else None), list(fds)
        except TransportError:
            for fd in fds:
                os.close(fd)
            raise

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

    def hang_up(self) -> None:
        """End the connection for all who hold it, a forked child's copy included; then `close`."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _decoded(data: bytes) -> Control:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise TransportError(f"control socket: unreadable message ({error})") from error
