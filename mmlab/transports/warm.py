"""Memory that was touched before: what a large message is put together in.

The first write to fresh pages costs several times the copy itself. So what held a message is kept
when its last view has gone, and holds the next one of about its size.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

GRAIN: Final = 2 << 20  # bytes; sizes are multiples of it, so that like messages share
WASTE: Final = 2  # a buffer is used for a message of at least this part of it

Bytes = npt.NDArray[np.uint8]


class WarmBuffers:
    """Hands out buffers and takes them back by itself; at most `keep_nbytes` are kept unused."""

    def __init__(self, keep_nbytes: int) -> None:
        self._keep = keep_nbytes
        self._lock = threading.Lock()
        self._ended: deque[mmap.mmap] = deque()
        self._free: list[mmap.mmap] = []  # the longest unused first

    def take(self, nbytes: int) -> Bytes:
        """An array of `nbytes`. Its memory comes back when it and every view of it are gone."""
        with self._lock:
            self._collect()
            fits = [m for m in self._free if nbytes <= len(m) <= max(GRAIN, WASTE * nbytes)]
            if fits:
                memory = min(fits, key=len)
                self._free.remove(memory)
            else:
                memory = mmap.mmap(-1, max(1, -(-nbytes // GRAIN)) * GRAIN)
        # One array a message, on which all its views are based: its end is that of the last one.
        token = np.frombuffer(memory, np.uint8)
        weakref.finalize(token, self._ended.append, memory).atexit = False
        return token[:nbytes]

    def free_nbytes(self) -> int:
        """What is kept and unused."""
        with self._lock:
            self._collect()
            return sum(map(len, self._free))

    def _collect(self) -> None:
        """Take in what finalizers have left, which take no lock; let go of what is too much."""
        while self._ended:
            self._free.append(self._ended.popleft())
        while sum(map(len, self._free)) > self._keep:
            del self._free[0]
