"""What an engine owes to its machine: memory settings at the start, and an end in every case.

The engine lives in a session of its own, so nothing ends it by accident, and nothing may keep it
when its owner is gone: a thread waits for the control socket's end and for the owner's death, and
then ends the process at once, whatever its main thread is computing. The same thread sees other
frontends go, whose end is no more than that.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mmlab.errors import TransportError
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.directory import remove
from mmlab.pipeline.messages import Stop

EXIT_ORPHANED = 71  # nobody is left who reads it; seen in a process table, it says why
EXIT_THREAD = 70  # a thread died of an exception that nobody expected
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # malloc.h

log = logging.getLogger("mmlab.engine")


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed: no mmap for large blocks, no trimming, one arena.

    Fresh pages for every received message cost several times the copy itself. False where there is
    no mallopt (musl, macOS).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    wanted = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_ARENA_MAX, 1))
    done = [mallopt(name, value) == 1 for name, value in wanted]
    return all(done)


class Watchdog:
    """Reads the control socket for the whole life of the engine, from a thread of its own."""

    def __init__(self, control: ControlSocket, owner_pid: int, directory: Path) -> None:
        self._control = control
        self._owner_pid = owner_pid
        self._directory = directory
        self._stop: Callable[[], None] = self._end
        self._lock = threading.Lock()
        self._poller = select.epoll()  # which, unlike poll(), other threads may add to meanwhile
        self._acts: dict[int, Callable[[], None]] = {}
        try:
            self._owner: int | None = os.pidfd_open(owner_pid)
        except ProcessLookupError:
            self._owner = None
        threading.Thread(target=self._watch, name="mmlab-watchdog", daemon=True).start()

    def on_stop(self, stop: Callable[[], None]) -> None:
        """From now on a stop message calls `stop`; before, it ended the process at once."""
        with self._lock:
            self._stop = stop

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        """From any thread: call `act`, in the watching one, when there is something on `fd`; it
        must be short, and unwatch `fd` before that is closed."""
        self._acts[fd] = act
        self._poller.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """From any thread. Its `act` may be running."""
        self._acts.pop(fd, None)
        with contextlib.suppress(OSError, ValueError):
            self._poller.unregister(fd)

    def _end(self) -> None:
        remove(self._directory)
        os._exit(EXIT_ORPHANED)

    def _watch(self) -> None:
        owner = self._owner
        # It may have been gone before; then its pid may be somebody else's.
        if owner is None or os.getppid() != self._owner_pid:
            self._end()
            return
        control = self._control.fileno()
        self._poller.register(owner, select.EPOLLIN)
        self._poller.register(control, select.EPOLLIN)
        while True:
            ready = {fd for fd, _ in self._poller.poll()}
            if owner in ready:
                self._end()
            if control in ready:
                self._hear()
            for fd in ready - {owner, control}:
                if (act := self._acts.get(fd)) is not None:
                    act()

    def _hear(self) -> None:
        with contextlib.suppress(TransportError):  # an unreadable message is no reason to end
            message = self._control.receive()
            if message is None:
                self._end()
            elif isinstance(message, Stop):
                with self._lock:
                    self._stop()


def end_with_any_thread() -> None:
    """An exception that ends a thread ends the process: no engine that looks alive and is deaf."""

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "?"
        print(f"mmlab engine: thread {name} died", file=sys.stderr)
        error: BaseException | None = args.exc_value
        trace: TracebackType | None = args.exc_traceback
        traceback.print_exception(args.exc_type, error, trace)
        sys.stderr.flush()
        os._exit(EXIT_THREAD)

    threading.excepthook = hook
