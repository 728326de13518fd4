"""Room: the arena's accounts, thread-safe, and the queue in front of them. It touches no memory.

A request takes all its bytes at once, in order of arrival: a large one that waits is not overtaken
by small ones, and nobody holds some bytes while waiting for more. Leases end in finalizers, which
must not take the lock: what they append is settled by whoever looks next, and the first in the
queue sleeps where a finalizer can wake it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from queue import Empty
from typing import Final

import msgspec

from mmlab.arena.extents import Extent, Extents, rounded
from mmlab.arena.leases import Returns
from mmlab.arena.ledger import Ledger
from mmlab.errors import BackpressureTimeout, TransportError, UsageError

NAP_S: Final = 1.0  # whoever waits is woken; should that ever fail, it looks again this often


class ArenaStats(msgspec.Struct, frozen=True):
    """A snapshot. Bytes are what was taken: rounded up to 64 B, from 64 KiB on to 4 KiB."""

    size: int
    live_nbytes: int
    free_nbytes: int
    largest_free_nbytes: int
    peak_nbytes: int  # the most that was live at a time
    leases: int  # not ended
    waits: int  # requests that found no room at once
    waited_s: float
    stale_returns: int  # came twice, late, or of nobody who was expected


class Room:
    """Extents of `size` bytes and their leases. `freed` is told, under the lock, what is free."""

    def __init__(self, size: int, freed: Callable[[Extent], None] | None = None) -> None:
        self.size = size
        self.returns = Returns()
        self._freed = freed
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[object] = deque()  # tickets of requests, in order of arrival
        self._extents = Extents(size)
        self._ledger = Ledger()
        self._peak = self._waits = 0
        self._waited = 0.0
        self._closed = False

    def open(self) -> tuple[int, int]:
        """(number, generation) of a new lease without bytes, in use here."""
        with self._changed:
            self._check_open()
            self._drain()
            return self._ledger.open()

    def take(
        self, number: int, generation: int, sizes: Sequence[int], timeout: float | None
    ) -> list[Extent]:
        """Extents for the lease: one for all `sizes`, or one for each. Errors: `Arena.reserve`."""
        if not sizes or any(nbytes < 1 for nbytes in sizes):
            raise UsageError(f"arena: sizes are {list(sizes)[:8]}, wanted 1 B or more of each")
        if rounded(sum(sizes)) > self.size:
            raise UsageError(
                f"arena: {rounded(sum(sizes))} B needed, the whole arena has {self.size} B: make "
                "it larger, or send fewer or smaller items"
            )
        with self._changed:
            extents = self._wait(sizes, timeout)
            self._peak = max(self._peak, self._extents.live_nbytes)
            offsets = [extent.offset for extent in extents]
            try:
                self._ledger.hold(number, generation, offsets)
            except BaseException:  # released by another thread while it waited
                self._free(offsets)
                raise
            return extents

    def find(self, offset: int, nbytes: int) -> int | None:
        """Where the live extent begins that has all these bytes; None if there is none."""
        with self._changed:
            self._drain()
            return self._extents.find(offset, nbytes)

    def refer(self, number: int, generation: int, offset: int, nbytes: int) -> int | None:
        """The same, and the lease now holds that extent too."""
        with self._changed:
            self._drain()
            start = self._extents.find(offset, nbytes)
            if start is not None:
                self._ledger.hold(number, generation, [start])
            return start

    def expect(self, number: int, generation: int, readers: Collection[int]) -> None:
        """These readers will return the lease."""
        with self._changed:
            self._ledger.expect(number, generation, readers)

    def give_back(self, number: int, generation: int, reader: int) -> bool:
        """A reader returns it; False, and counted, if it was not expected to."""
        with self._changed:
            freed = self._ledger.end_reader(number, generation, reader)
            self._free(freed or ())
        self.returns.alarm()
        return freed is not None

    def reject(self) -> None:
        """Count a return of another arena's."""
        with self._changed:
            self._ledger.stale += 1

    def forget(self, reader: int) -> int:
        """No lease waits for this reader any more; how many did."""
        with self._changed:
            leases, freed = self._ledger.forget(reader)
            self._free(freed)
        self.returns.alarm()
        return leases

    def stats(self) -> ArenaStats:
        with self._changed:
            self._drain()
            return ArenaStats(
                size=self.size,
                live_nbytes=self._extents.live_nbytes,
                free_nbytes=self._extents.free_nbytes,
                largest_free_nbytes=self._extents.largest_free,
                peak_nbytes=self._peak,
                leases=len(self._ledger),
                waits=self._waits,
                waited_s=self._waited,
                stale_returns=self._ledger.stale,
            )

    def close(self) -> None:
        """No more leases; whoever waits fails, one after the other."""
        with self._changed:
            self._closed = True
            self._freed = None  # it may hold the memory
        self.returns.alarm()

    def _wait(self, sizes: Sequence[int], timeout: float | None) -> list[Extent]:
        deadline = None if timeout is None else time.monotonic() + timeout
        ticket, began = object(), 0.0
        self._queue.append(ticket)
        self.returns.waiting = True  # before the first look, so that no return falls in between
        try:
            while True:
                self._check_open()
                first = self._queue[0] is ticket
                if first:
                    self._drain()
                    extents = self._extents.allocate_many(sizes)
                    if extents is not None:
                        return extents
                now = time.monotonic()
                if not began:
                    began = now
                    self._waits += 1
                left = NAP_S if deadline is None else min(deadline - now, NAP_S)
                if left <= 0:
                    raise self._timeout(sizes, timeout)
                if first:
                    self._sleep(left)
                else:
                    self._changed.wait(left)
        finally:
            self._queue.remove(ticket)
            self.returns.waiting = bool(self._queue)
            if began:
                self._waited += time.monotonic() - began
            self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        """Until something is returned, without the lock."""
        self._changed.release()
        try:
            self.returns.wake.get(timeout=seconds)
        except Empty:
            pass
        finally:
            self._changed.acquire()

    def _drain(self) -> None:
        """Settle what finalizers have returned."""
        queue = self.returns.queue
        while queue:
            self._free(self._ledger.end_local(*queue.popleft()))

    def _free(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            extent = self._extents.free(offset)
            if self._freed is not None:
                self._freed(extent)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("arena: it is closed, nothing more is allocated")

    def _timeout(self, sizes: Sequence[int], timeout: float | None) -> BackpressureTimeout:
        return BackpressureTimeout(
            f"arena: no room for {rounded(sum(sizes))} B after {timeout} s: of {self.size} B, "
            f"{self._extents.free_nbytes} B are free, {self._extents.largest_free} B of them in "
            f"one piece, {len(self._queue)} requests wait in order; drop tensors and replies "
            "earlier, or make the arena larger"
        )
