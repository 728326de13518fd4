"""How an arena's descriptor reaches another process: at its spawn, or over an AF_UNIX socket.

Nothing but the descriptor is handed over: size and seals are asked of the kernel by whoever
attaches, so neither way trusts a number that the other side has written.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Final, Protocol

from mmlab.arena.memfd import Fd
from mmlab.errors import TransportError

TAG: Final = b"\xa7"  # one byte cannot arrive in parts
MOST: Final = 8  # descriptors that are received, and closed, of a peer that sends too many
_INT: Final = array.array("i").itemsize


class _Duplicate(Protocol):
    def detach(self) -> int: ...


class ArenaHandle:
    """The right to attach an arena, as an argument of a `multiprocessing` process (spawn).

    It owns a descriptor of its own, on both sides, closed with the handle or by `close`.
    """

    def __init__(self, fd: Fd) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd.fileno()

    def close(self) -> None:
        """What has been attached stays attached."""
        self._fd.close()

    def __reduce__(self) -> tuple[Callable[[_Duplicate], ArenaHandle], tuple[_Duplicate]]:
        if get_spawning_popen() is None:
            raise TransportError(
                "arena: a handle is pickled only into a process that is being spawned; send the "
                "descriptor over an AF_UNIX socket instead (send_descriptor)"
            )
        return _from_duplicate, (DupFd(self.fileno()),)


def _from_duplicate(duplicate: _Duplicate) -> ArenaHandle:
    fd = duplicate.detach()
    os.set_inheritable(fd, False)  # spawning made it inheritable; it is not to go any further
    return ArenaHandle(Fd(fd))


def send_descriptor(sock: socket.socket, fd: int) -> None:
    """Send one descriptor over a connected AF_UNIX socket; it stays the caller's own."""
    try:
        socket.send_fds(sock, [TAG], [fd], socket.MSG_NOSIGNAL)
    except OSError as error:
        raise TransportError(f"arena: descriptor {fd} could not be sent ({error})") from error


def receive_descriptor(sock: socket.socket) -> int:
    """The descriptor that the other end sends: the caller's to close, not inherited by children.

    Waits as long as the socket's timeout. TransportError for anything but exactly one.
    """
    space = socket.CMSG_SPACE(MOST * _INT)
    try:
        data, messages, flags, _ = sock.recvmsg(len(TAG), space, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise TransportError(f"arena: no descriptor arrived ({error})") from error
    fds = array.array("i")
    for level, kind, payload in messages:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) // _INT * _INT])
    if data == TAG and len(fds) == 1 and not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        return fds[0]
    for fd in fds:
        os.close(fd)
    if not data and not fds:
        raise TransportError("arena: the other end closed the socket, no descriptor arrived")
    raise TransportError(f"arena: got {data!r} and {len(fds)} descriptors, wanted {TAG!r} and one")
