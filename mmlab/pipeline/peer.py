"""Who is at the other end of an AF_UNIX connection: its user, its process, and its death.

A pid alone may be somebody else's by the time one looks. The kernel gives out the pidfd of the
process that connected (or listens) since Linux 6.5; before, one is opened by pid and counts only if
the connection still stands afterwards, which it would not if its process were gone.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Final

SO_PEERPIDFD: Final = 77  # asm-generic/socket.h; not in Python's socket module
_UCRED: Final = struct.Struct("3i")  # pid, uid, gid


def credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected, or that began to listen."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(data)
    return pid, uid


def open_pidfd(sock: socket.socket) -> int | None:
    """Its pidfd, the caller's to close; None where it has ended or cannot be seen from here."""
    try:
        fd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return _by_pid(sock)
    os.set_inheritable(fd, False)
    return fd


def _by_pid(sock: socket.socket) -> int | None:
    pid, _ = credentials(sock)
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # no such process; 0 for one of another pid namespace
        return None
    if _has_ended(sock):
        os.close(fd)
        return None
    return fd


def _has_ended(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    return bool(poller.poll(0))
