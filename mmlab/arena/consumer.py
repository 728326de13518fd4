"""ArenaReader: a process that reads another's arena. It maps the memory read-only.

What it gives out are memoryviews based on one numpy array per descriptor. When the last view of a
descriptor is gone, in whatever thread and at whatever moment, the array's finalizer says so to
`returned`; the arena's owner may use the bytes again from then on.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Self

import numpy as np

from mmlab.arena.descriptor import Descriptor, Returned, check
from mmlab.arena.memfd import attach, identity
from mmlab.errors import TransportError, WireError

_log = logging.getLogger(__name__)


class ArenaReader:
    """The arena behind descriptor `fd`, which stays the caller's to close. A context manager.

    `returned` is called by a finalizer: it must be short and take no lock (`deque.append`,
    `SimpleQueue.put`, a non-blocking `send`). `writable` is for CUDA, which may want to register
    the memory read-write; otherwise a write into a view is an error, and into a tensor of it a
    SIGSEGV. `pin` gets all of the memory, as an array that dies after the last view and before the
    mapping (`Device.register`); what it raises is raised here. TransportError if `fd` is not a
    sealed memfd.
    """

    def __init__(
        self,
        fd: int,
        returned: Callable[[Returned], object],
        *,
        writable: bool = False,
        pin: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        whole = np.frombuffer(attach(fd, writable=writable), np.uint8)
        if pin is not None:
            pin(whole)
        self._whole: memoryview | None = whole.data
        self.id = identity(fd)
        self.size = whole.nbytes
        self.address: int = whole.ctypes.data
        self._returned = returned
        self._lock = threading.Lock()
        self._seen: dict[int, int] = {}  # lease -> its last generation; at most MAX_LEASES

    def view(self, descriptor: Descriptor) -> list[memoryview]:
        """The bytes of every extent, in order. Their end, that of all of them, is the lease's.

        WireError for what is not, or no longer, a part of this arena; nothing is returned then.
        """
        check(descriptor, self.id, self.size)
        arena, lease, generation = descriptor.arena, descriptor.lease, descriptor.generation
        with self._lock:
            whole = self._whole
            if whole is None:
                raise TransportError("arena: this reader is closed")
            seen = self._seen.get(lease, 0)
            if generation <= seen:
                raise WireError(
                    f"arena descriptor: lease {lease}, generation {generation} is stale: "
                    f"generation {seen} was read already"
                )
            self._seen[lease] = generation
        token = np.frombuffer(whole, np.uint8)
        end = Returned(arena, generation, lease)
        weakref.finalize(token, _report, os.getpid(), self._returned, end).atexit = False
        return [token[at : at + nbytes].data for at, nbytes in descriptor.extents]

    def close(self) -> None:
        """No more views; those that are kept stay valid and are returned when they end."""
        self._whole = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _report(pid: int, returned: Callable[[Returned], object], end: Returned) -> None:
    if os.getpid() != pid:  # a forked child's copies of the views
        return
    try:
        returned(end)
    except Exception as error:  # no traceback: its frames would keep views alive
        _log.error("arena: lease %d not returned: %s: %s", end.lease, type(error).__name__, error)
