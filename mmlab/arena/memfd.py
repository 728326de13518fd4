"""Shared memory without a name: created whole or not at all, sealed, attached by its descriptor.

A memfd is no file in /dev/shm, so nothing is left when its processes are killed, and a container's
small /dev/shm does not limit it. What the kernel does to a process that takes too much of it is
SIGKILL, SIGXFSZ or SIGBUS: limits are therefore compared before memory is taken, and every page is
taken and touched before the arena is used (a first touch costs five times the copy itself).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import stat
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import numpy as np

from mmlab.errors import TransportError, UsageError

RESERVE: Final = 64 << 20  # bytes that must stay free beside a new arena
CHUNK: Final = 256 << 20  # taken at once; what is free is looked at again before the next
MADV_POPULATE_WRITE: Final = 23  # since Linux 5.14


class Fd:
    """A file descriptor and its owner: closed when the last reference goes, or by `close`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._close = weakref.finalize(self, os.close, number)
        self._close.atexit = False

    def fileno(self) -> int:
        if not self._close.alive:
            raise TransportError("arena: its descriptor is closed")
        return self._number

    def close(self) -> None:
        self._close()


def create(
    nbytes: int, *, available: Callable[[], int] | None = None
) -> tuple[Fd, mmap.mmap]:  # read-write, every page present
    """A sealed memfd of `nbytes`, rounded up to whole pages, and its mapping.

    TransportError with needed and free bytes where it does not fit, or where there is no memfd.
    `available` says how many bytes may be taken; by default the machine's, within the cgroup's.
    """
    check_platform()
    if type(nbytes) is not int or nbytes < 1:
        raise UsageError(f"arena: nbytes is {nbytes!r}, wanted 1 or more")
    nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if available is None:
        available = _available
    _check_file_size(nbytes)
    _check_free(nbytes, nbytes, available)
    with ExitStack() as undo:
        try:
            fd = Fd(os.memfd_create("mmlab-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            undo.callback(fd.close)
            for at in range(0, nbytes, CHUNK):
                _check_free(nbytes, nbytes - at, available)
                os.posix_fallocate(fd.fileno(), at, min(CHUNK, nbytes - at))
            fcntl.fcntl(fd.fileno(), fcntl.F_ADD_SEALS, _seals())
            mapping = mmap.mmap(fd.fileno(), nbytes, mmap.MAP_SHARED)
            _touch(mapping)
        except (OSError, MemoryError) as error:
            raise TransportError(
                f"arena: the kernel refused {nbytes} B ({error}); {available()} B are free: ask "
                "for a smaller arena, or raise the memory limit"
            ) from error
        undo.pop_all()
    return fd, mapping


def attach(fd: int, *, writable: bool = False) -> mmap.mmap:
    """Map the arena behind a descriptor, which stays the caller's to close.

    TransportError if it is not a memfd that is sealed against shrinking and growing.
    """
    check_platform()
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise TransportError(f"arena: descriptor {fd} is no memory file")
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise TransportError(f"arena: descriptor {fd} is no memfd ({error})") from error
    if seals & _seals() != _seals() or not state.st_size:
        raise TransportError(
            f"arena: the memfd has {state.st_size} B and seals {seals:#x}, wanted 1 B or more and "
            f"{_seals():#x} (shrink, grow, seal): its owner could take the memory away"
        )
    if state.st_blocks * 512 < state.st_size:
        raise TransportError(
            f"arena: the memfd has {state.st_size} B, of which {state.st_blocks * 512} B are there:"
            " reading the rest would take memory that its owner has not taken"
        )
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writable else 0)
    try:
        mapping = mmap.mmap(fd, state.st_size, flags, access)
    except (OSError, ValueError) as error:
        raise TransportError(f"arena: cannot map {state.st_size} B ({error})") from error
    if not writable:
        # Maps every page as MAP_POPULATE does, but without the interpreter's lock: an engine that
        # lets a frontend in goes on serving the others.
        np.frombuffer(mapping, np.uint8)[:: mmap.PAGESIZE].max()
    return mapping


def identity(fd: int) -> int:
    """The number by which every process knows the arena: its inode, equal for all descriptors."""
    return os.fstat(fd).st_ino


def check_platform() -> None:
    """TransportError where there is no memfd."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        raise TransportError(
            f"arena: needs Linux's memfd_create, this is {sys.platform}; use the transport 'ipc'"
        )


def _available() -> int:
    # not at the head of the file: mmlab.measure imports from mmlab, which may import this
    from mmlab.measure.capacity import available_nbytes

    return available_nbytes()


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _check_file_size(nbytes: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and nbytes > limit:
        raise TransportError(
            f"arena: {nbytes} B needed, files of this process may have {limit} B (RLIMIT_FSIZE): "
            "ask for a smaller arena, or raise it (ulimit -f)"
        )


def _check_free(nbytes: int, left: int, available: Callable[[], int]) -> None:
    """`left` bytes of an arena of `nbytes` are still to be taken."""
    free = available()
    if left + RESERVE > free:
        raise TransportError(
            f"arena: {nbytes} B needed ({left} B of them still to be taken, and {RESERVE} B to "
            f"stay free), {free} B are free on the machine or in its cgroup: ask for a smaller "
            "arena, or raise the memory limit"
        )


def _touch(mapping: mmap.mmap) -> None:
    """Map every page now: it is there already, so this cannot run out of memory.

    Not by `mmap.madvise`, which keeps the interpreter's lock: other threads go on submitting.
    """
    whole = np.frombuffer(mapping, np.uint8)
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if madvise(whole.ctypes.data, whole.nbytes, MADV_POPULATE_WRITE):
        if (number := ctypes.get_errno()) != errno.EINVAL:
            raise OSError(number, os.strerror(number))
        whole[:: mmap.PAGESIZE] = 0  # an older kernel
