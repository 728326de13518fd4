"""PinnedPool: staging memory bounded in bytes, reused by size, never while a copy still reads it.

PyTorch's own cache of pinned memory grows without bound when shapes vary (vllm#48165) and rounds up
to powers of two. Here the bound is the contract: memory handed out, memory whose copy is not
finished and memory kept for reuse together never exceed `max_nbytes`. Sizes fall into eight classes
per power of two, so that batches of ever-changing shape share buffers at a cost of 12.5 % at most
(63 bytes below 512). Idle buffers of other sizes are given up when room is needed, the longest
unused first; when there is still none, `acquire` waits in order of arrival.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left, insort
from collections import deque
from typing import Self

import msgspec

from mmlab.errors import BackpressureTimeout, BatchError, MMLabError
from mmlab.staging.device import Completion, Device, HostDevice, resolve_device
from mmlab.staging.leases import POLL_S, Block, Returns, abandon, lease, outlive_copies
from mmlab.staging.memory import Buffer, HostMemory

ALIGN = 64  # bytes: a cache line, and the step of the smallest classes
FEW = 8  # a request of which the pool holds no more than this many is not rounded up to hold fewer


def size_class(nbytes: int, max_nbytes: int | None = None) -> int:
    """Bytes taken for a request: the next k * 2**e with 8 < k <= 16, at least a cache line.

    In a pool of `max_nbytes`, less where rounding would let fewer of them fit: twice the bytes of a
    batch are room for two.
    """
    nbytes = max(nbytes, 1)
    step = max(ALIGN, 1 << max(0, (nbytes - 1).bit_length() - 4))  # nbytes / step is in (8, 16]
    size = -(-nbytes // step) * step
    if max_nbytes is not None and nbytes <= max_nbytes and max_nbytes // nbytes <= FEW:
        size = min(size, max_nbytes // (max_nbytes // nbytes))
    return size


class PoolStats(msgspec.Struct, frozen=True):
    """A snapshot. Bytes are what was allocated; live + pending + cached never exceed max_nbytes."""

    max_nbytes: int
    live_nbytes: int  # handed out
    pending_nbytes: int  # given back, a copy still reads it
    cached_nbytes: int  # idle, kept for reuse
    high_water_nbytes: int  # the largest total so far
    live: int  # the same three in buffers
    pending: int
    cached: int
    waits: int  # acquires that found no room at once
    allocations: int
    reuses: int
    evictions: int  # idle buffers given up for another size, or trimmed
    pinned: bool  # True only while all memory handed out has been pinned


class PinnedPool:
    """A bounded pool of staging buffers. Thread-safe; a context manager.

    `pin=None` and `pin=True` pin where CUDA can be used and warn once (`PinningWarning`) where
    not; `pin=False` never asks for CUDA. Closing ends acquisition and waits for unfinished copies;
    tensors that are still held stay valid.
    """

    def __init__(
        self, max_nbytes: int, *, pin: bool | None = None, device: Device | None = None
    ) -> None:
        if max_nbytes < 1:
            raise BatchError(f"PinnedPool: max_nbytes is {max_nbytes}, wanted 1 or more")
        if device is None:
            device = HostDevice() if pin is False else resolve_device("auto")
        self.max_nbytes = max_nbytes
        self._memory = HostMemory(device, pin)
        self._all_pinned = self._memory.pins
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[object] = deque()  # tickets of acquires, in order of arrival
        self._cached: list[Block] = []  # sorted by size
        self._pending: list[tuple[Block, Completion]] = []
        self._returns = Returns()
        self._live_nbytes = self._live = self._cached_nbytes = self._high_water = 0
        self._waits = self._allocations = self._reuses = self._evictions = self._clock = 0
        self._closed = False
        weakref.finalize(self, abandon, self._pending, self._returns).atexit = False

    def acquire(self, nbytes: int, timeout: float | None = None) -> Buffer:
        """A buffer of at least `nbytes`; waits up to `timeout` seconds (None: for ever, 0: never).

        BatchError if it can never fit, BackpressureTimeout if it did not in time.
        """
        if not 0 <= nbytes <= self.max_nbytes:
            raise BatchError(
                f"PinnedPool: {nbytes} B wanted, the whole pool has {self.max_nbytes} B; "
                f"make it larger (max_nbytes=) or the batch smaller"
            )
        found = self._reserve(nbytes, timeout)
        block = self._allocate(found) if isinstance(found, int) else found
        return lease(block, nbytes, self._returns)

    def stats(self) -> PoolStats:
        with self._changed:
            self._reap()
            return PoolStats(
                max_nbytes=self.max_nbytes,
                live_nbytes=self._live_nbytes,
                pending_nbytes=self._pending_nbytes(),
                cached_nbytes=self._cached_nbytes,
                high_water_nbytes=self._high_water,
                live=self._live,
                pending=len(self._pending),
                cached=len(self._cached),
                waits=self._waits,
                allocations=self._allocations,
                reuses=self._reuses,
                evictions=self._evictions,
                pinned=self._all_pinned,
            )

    def trim(self, keep_nbytes: int = 0) -> int:
        """Free idle buffers until `keep_nbytes` or less are kept; returns the bytes freed."""
        with self._changed:
            self._reap()
            return self._evict(self._cached_nbytes - keep_nbytes)

    def close(self) -> None:
        """No more buffers; waiting acquires fail, unfinished copies are waited for. Idempotent."""
        with self._changed:
            self._closed = self._returns.closed = True
            self._reap()
            self._evict(self._cached_nbytes)
            pending = list(self._pending)
            self._pending.clear()
            self._changed.notify_all()
        outlive_copies(pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _reserve(self, nbytes: int, timeout: float | None) -> Block | int:
        """An idle block, or the size of a new one for which room is now set aside."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ticket, waited = object(), False
        with self._changed:
            self._queue.append(ticket)
            try:
                while True:
                    if self._closed:
                        raise MMLabError("PinnedPool: acquire() after close()")
                    if self._queue[0] is ticket:
                        self._reap()
                        found = self._take(nbytes)
                        if found is not None:
                            return found
                    if not waited:
                        waited = True
                        self._waits += 1
                    left = POLL_S if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise self._timeout(nbytes, timeout)
                    self._changed.wait(min(left, POLL_S))
            finally:
                self._queue.remove(ticket)
                if self._queue:
                    self._changed.notify_all()

    def _take(self, nbytes: int) -> Block | int | None:
        size = size_class(nbytes, self.max_nbytes)
        self._clock += 1
        at = bisect_left(self._cached, nbytes, key=_size)
        if at < len(self._cached) and self._cached[at].nbytes <= size:
            block = self._cached.pop(at)
            self._cached_nbytes -= block.nbytes
            self._reuses += 1
            self._count_live(block.nbytes)
            return block
        room = self.max_nbytes - self._live_nbytes - self._pending_nbytes()
        if nbytes > room or room == 0:
            return None
        size = min(size, room)  # the last buffer takes what is left
        self._evict(self._cached_nbytes + size - room)
        self._count_live(size)
        return size

    def _allocate(self, size: int) -> Block:
        """Outside the lock: pinning a large block takes many milliseconds."""
        try:
            memory, pinned = self._memory.allocate(size)
        except BaseException:
            with self._changed:
                self._live_nbytes -= size
                self._live -= 1
                self._changed.notify_all()
            raise
        with self._changed:
            self._allocations += 1
            self._all_pinned = self._all_pinned and pinned
            return Block(size, memory, pinned, self._clock)

    def _reap(self) -> None:
        """Take back what was returned, and what no copy reads any more."""
        while self._returns.queue:
            block, after = self._returns.queue.popleft()
            self._live_nbytes -= block.nbytes
            self._live -= 1
            if after is None:
                self._keep(block)
            else:
                self._pending.append((block, after))
        finished = [entry for entry in self._pending if entry[1].query()]
        for entry in finished:
            self._pending.remove(entry)
            self._keep(entry[0])

    def _keep(self, block: Block) -> None:
        if self._closed:
            return
        block.last_use = self._clock
        insort(self._cached, block, key=_size)
        self._cached_nbytes += block.nbytes

    def _evict(self, nbytes: int) -> int:
        freed = 0
        while self._cached and freed < nbytes:
            block = min(self._cached, key=lambda block: block.last_use)
            self._cached.remove(block)
            self._cached_nbytes -= block.nbytes
            self._evictions += 1
            freed += block.nbytes
        return freed

    def _count_live(self, nbytes: int) -> None:
        self._live_nbytes += nbytes
        self._live += 1
        total = self._live_nbytes + self._pending_nbytes() + self._cached_nbytes
        self._high_water = max(self._high_water, total)

    def _pending_nbytes(self) -> int:
        return sum(block.nbytes for block, _ in self._pending)

    def _timeout(self, nbytes: int, timeout: float | None) -> BackpressureTimeout:
        return BackpressureTimeout(
            f"PinnedPool: no room for {nbytes} B after {timeout} s: of {self.max_nbytes} B, "
            f"{self._live_nbytes} B are handed out ({self._live} buffers) and "
            f"{self._pending_nbytes()} B wait for their copy ({len(self._pending)}); release "
            f"staged batches earlier, or make the pool larger (max_nbytes=)"
        )


def _size(block: Block) -> int:
    return block.nbytes
