"""A lease: the right to use some extents of the arena until their storage is freed.

Everything that is made of a lease here (memoryviews, tensors and all their views) is based on one
numpy array, its token; numpy keeps the base of a view alive, and the base keeps the mapping. When
the token dies, the lease has ended in this process. That may happen at any allocation, in any
thread, even one that holds the arena's lock: so the finalizer appends to a deque and takes no lock.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from math import prod
from queue import SimpleQueue
from typing import Protocol, Self

import numpy as np
import torch

from mmlab.arena.extents import Extent
from mmlab.dtypes import CODE_OF_TORCH, empty
from mmlab.errors import TransportError, UsageError


class Returns:
    """The way back of a lease's own use. It outlives the arena: finalizers hold it, not the arena.

    `SimpleQueue.put` may be called by a finalizer in the middle of `get`; no other queue allows it.
    """

    def __init__(self) -> None:
        self.queue: deque[tuple[int, int]] = deque()  # (number, generation)
        self.waiting = False  # somebody sleeps until something is returned
        self.wake: SimpleQueue[None] = SimpleQueue()
        self._pid = os.getpid()

    def put(self, number: int, generation: int) -> None:
        """From a finalizer. A forked child has copies of the tokens, but not the leases."""
        if os.getpid() != self._pid:
            return
        self.queue.append((number, generation))
        self.alarm()

    def alarm(self) -> None:
        """Wake who waits. One alarm is enough: it is taken before the queue is looked at."""
        if self.waiting and self.wake.empty():
            self.wake.put(None)


class Owner(Protocol):
    """What a lease asks of its arena."""

    def fill(self, lease: Lease, sizes: Sequence[int], timeout: float | None) -> list[Extent]: ...
    def refer(self, lease: Lease, tensor: torch.Tensor) -> tuple[int, int] | None: ...
    def expect(self, lease: Lease, readers: Collection[int]) -> None: ...


class Lease:
    """Some extents of an arena, and any of others' that it refers to. A context manager.

    It ends here when it is released and no view of it is left, and altogether when every expected
    reader has returned it as well. Dropping it is releasing it.
    """

    __slots__ = ("_owner", "_token", "extents", "generation", "number")

    def __init__(self, owner: Owner, mapping: mmap.mmap, opened: tuple[int, int], returns: Returns):
        self._owner = owner
        self._token: np.ndarray | None = np.frombuffer(mapping, np.uint8)
        weakref.finalize(self._token, returns.put, *opened).atexit = False
        self.number, self.generation = opened
        self.extents: list[Extent] = []

    def reserve(self, sizes: Sequence[int], timeout: float | None = None) -> list[Extent]:
        """All the bytes this lease is to have, in one extent if there is one, else one for each.

        Once only: who holds some and waits for more can wait for ever. Errors: `Arena.reserve`.
        """
        self.token()
        if self.extents:
            raise UsageError(f"arena: lease {self.number} has its extents, it takes no more")
        self.extents = self._owner.fill(self, sizes, timeout)
        return self.extents

    def array(self, i: int = 0) -> np.ndarray:
        """Extent `i` as writable (nbytes,) uint8; it keeps the lease."""
        offset, nbytes = self.extents[i]
        return self.token()[offset : offset + nbytes]

    def view(self, i: int = 0) -> memoryview:
        """The same as a memoryview."""
        view: memoryview = self.array(i).data
        return view

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, i: int = 0) -> torch.Tensor:
        """A tensor at the beginning of extent `i`; it keeps the lease, and so do all its views."""
        nbytes = tensor_nbytes(shape, dtype)
        if not nbytes:
            return empty(shape, dtype)
        if nbytes > self.extents[i].nbytes:
            raise UsageError(
                f"arena: a tensor of {nbytes} B in an extent of {self.extents[i].nbytes} B"
            )
        return torch.from_numpy(self.array(i)[:nbytes]).view(dtype).view(tuple(shape))

    def refer(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """(offset of the tensor, offset of the extent it lies in), which this lease now holds too.

        None for memory that is not a live part of the arena, or not dense.
        """
        self.token()
        return self._owner.refer(self, tensor)

    def expect(self, readers: int | Collection[int]) -> None:
        """The readers that will return it, by number; `n` stands for 0 to n-1. Before sending."""
        self.token()
        self._owner.expect(self, range(readers) if isinstance(readers, int) else readers)

    def release(self) -> None:
        """Drop this object's use of the memory; views that are kept stay valid. Twice is once."""
        self._token = None

    def token(self) -> np.ndarray:
        """The base of every view; TransportError after `release`."""
        if self._token is None:
            raise TransportError(f"arena: lease {self.number} was released: make another one")
        return self._token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def tensor_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of a dense tensor; UsageError for what no tensor of the wire can be."""
    if dtype not in CODE_OF_TORCH or any(n < 0 for n in shape):
        raise UsageError(f"arena: no tensor of shape {tuple(shape)}, {dtype} (see mmlab.dtypes)")
    return prod(shape) * dtype.itemsize
