"""Arena: shared memory that a producer fills in place and others read where it lies.

The allocator lives only in the process that created the arena. When the arena is full, requests
wait in order of arrival; it never grows and never falls back to other memory silently.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Self

import numpy as np
import torch

from mmlab.arena import stream
from mmlab.arena.descriptor import Returned
from mmlab.arena.extents import Extent
from mmlab.arena.leases import Lease, tensor_nbytes
from mmlab.arena.memfd import Fd, create, identity
from mmlab.arena.passing import ArenaHandle
from mmlab.arena.room import ArenaStats, Room
from mmlab.errors import TransportError

POISON: Final = 0xDB  # what freed bytes are set to with `debug`


class Arena:
    """`nbytes` of shared memory (rounded up to whole pages). Thread-safe; a context manager.

    TransportError, with needed and free bytes, where it does not fit; UsageError for a size that is
    none. `debug` overwrites freed bytes with 0xDB. `available` says how much memory there is, where
    the machine and its cgroup are not to be asked. Closing ends allocation and fails who waits; the
    memory itself goes with the last view, in whatever process.
    """

    def __init__(
        self, nbytes: int, *, debug: bool = False, available: Callable[[], int] | None = None
    ) -> None:
        self._fd, mapping = create(nbytes, available=available)
        whole = np.frombuffer(mapping, np.uint8)
        self._mapping: mmap.mmap | None = mapping
        self._base: int = whole.ctypes.data
        self._pid = os.getpid()
        self.size = len(mapping)
        self.id = identity(self._fd.fileno())
        self._room = Room(self.size, partial(_poison, whole) if debug else None)
        if self.size >= stream.LARGE:
            stream.compiled()  # some 30 ms, not on the first request

    @classmethod
    def create(cls, nbytes: int, *, debug: bool = False) -> Self:
        return cls(nbytes, debug=debug)

    def reserve(self, sizes: int | Sequence[int], timeout: float | None = None) -> Lease:
        """A lease of that many bytes, or of several sizes: one extent if possible, else one each.

        Waits up to `timeout` seconds (None: for ever, 0: never). UsageError if it can never fit,
        BackpressureTimeout if it did not in time, TransportError after `close`.
        """
        lease = self.lease()
        lease.reserve([sizes] if isinstance(sizes, int) else sizes, timeout)
        return lease

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, timeout: float | None = None
    ) -> torch.Tensor:
        """A tensor in the arena, to be filled in place and sent without a copy. Errors: `reserve`.

        Its bytes are live until it and every view of it are gone, here and at all readers.
        """
        nbytes = tensor_nbytes(shape, dtype)
        lease = self.lease()
        if nbytes:
            lease.reserve([nbytes], timeout)
        return lease.tensor(shape, dtype)

    def lease(self) -> Lease:
        """A lease without bytes: `Lease.reserve` gives it its own, `refer` those of others."""
        self._check_owner()
        mapping = self._mapping
        opened = self._room.open()
        assert mapping is not None
        return Lease(self, mapping, opened, self._room.returns)

    def where(self, tensor: torch.Tensor) -> int | None:
        """The offset of a dense tensor whose bytes lie in one live extent of this arena, or None.

        A tensor made of a lease keeps it alive, so that the answer stays true while it is held.
        """
        offset = self._offset(tensor)
        if offset is None or self._room.find(offset, tensor.nbytes) is None:
            return None
        return offset

    def give_back(self, returned: Returned, reader: int = 0) -> bool:
        """A reader has no view left. False, and counted, if that return was not expected."""
        self._check_owner()
        if returned.arena != self.id:
            self._room.reject()
            return False
        return self._room.give_back(returned.lease, returned.generation, reader)

    def forget(self, reader: int) -> int:
        """A reader is dead: end its part of all leases it had not returned; how many there were."""
        self._check_owner()
        return self._room.forget(reader)

    def stats(self) -> ArenaStats:
        """Bytes live and free, leases, waits; after `close` too."""
        self._check_owner()
        return self._room.stats()

    def fileno(self) -> int:
        """The descriptor to send to a reader (`send_descriptor`); the arena closes it."""
        return self._fd.fileno()

    def handle(self) -> ArenaHandle:
        """The same for a process that is about to be spawned."""
        return ArenaHandle(Fd(os.dup(self.fileno())))

    def close(self) -> None:
        """No more allocation. Idempotent; does nothing in a forked child."""
        if os.getpid() == self._pid:
            self._room.close()
            self._fd.close()
            self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # what a lease asks for

    def fill(self, lease: Lease, sizes: Sequence[int], timeout: float | None) -> list[Extent]:
        self._check_owner()
        return self._room.take(lease.number, lease.generation, sizes, timeout)

    def refer(self, lease: Lease, tensor: torch.Tensor) -> tuple[int, int] | None:
        offset = self._offset(tensor)
        if offset is None:
            return None
        start = self._room.refer(lease.number, lease.generation, offset, tensor.nbytes)
        return None if start is None else (offset, start)

    def expect(self, lease: Lease, readers: Collection[int]) -> None:
        self._check_owner()
        self._room.expect(lease.number, lease.generation, readers)

    def _offset(self, tensor: torch.Tensor) -> int | None:
        """Where a dense tensor lies in the mapping, without asking whether it may; None: outside.

        A forked child has the mapping but not the leases.
        """
        try:
            offset = tensor.data_ptr() - self._base
            nbytes = tensor.nbytes
            if not 0 <= offset < self.size or not 0 < nbytes <= self.size - offset:
                return None
            dense = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        except RuntimeError:  # a tensor without memory of its own
            return None
        if not dense or not tensor.is_cpu or self._mapping is None or os.getpid() != self._pid:
            return None
        return offset

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise TransportError(
                f"arena: its allocator lives in process {self._pid}, this is {os.getpid()}: "
                "attach an ArenaReader here"
            )


def _poison(whole: np.ndarray, extent: Extent) -> None:
    whole[extent.offset : extent.offset + extent.nbytes] = POISON
