"""Who still uses which extent. Plain bookkeeping under the arena's lock.

A lease is a slot number and a generation. The number is used again when the lease has ended, the
generation never is, so that a return that comes twice or late meets another generation and is
counted instead of freeing what somebody else has by then. An extent may belong to several leases (a
tensor made in place that two messages refer to); it is free when the last of them has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mmlab.errors import TransportError

MAX_LEASES: Final = 1 << 20  # at a time


@dataclass(slots=True, eq=False)
class Record:
    """A lease that has not ended: in use here (`local`), or by readers who have not returned it."""

    generation: int
    local: bool = True
    readers: set[int] = field(default_factory=set)
    offsets: list[int] = field(default_factory=list)  # of its extents, its own or referred to


class Ledger:
    """All leases of an arena. What a method returns are the offsets of extents now free."""

    def __init__(self) -> None:
        self.stale = 0  # returns that met no such lease
        self._generation = 0
        self._records: dict[int, Record] = {}
        self._numbers: list[int] = []  # free ones below `_next`, a heap
        self._next = 0
        self._uses: dict[int, int] = {}  # offset -> leases that hold the extent

    def __len__(self) -> int:
        return len(self._records)

    def open(self) -> tuple[int, int]:
        """A new lease, in use here: (number, generation)."""
        if self._numbers:
            number = heapq.heappop(self._numbers)
        elif self._next < MAX_LEASES:
            number, self._next = self._next, self._next + 1
        else:
            raise TransportError(f"arena: {MAX_LEASES} leases are held, there are no more")
        self._generation += 1
        self._records[number] = Record(self._generation)
        return number, self._generation

    def hold(self, number: int, generation: int, offsets: Iterable[int]) -> None:
        """Extents that are live until this lease has ended."""
        record = self.active(number, generation)
        for offset in offsets:
            self._uses[offset] = self._uses.get(offset, 0) + 1
            record.offsets.append(offset)

    def expect(self, number: int, generation: int, readers: Iterable[int]) -> None:
        """The lease goes on until all these readers have returned it."""
        self.active(number, generation).readers.update(readers)

    def end_local(self, number: int, generation: int) -> list[int]:
        """Its storage here was freed."""
        record = self._records.get(number)
        if record is None or record.generation != generation or not record.local:
            self.stale += 1
            return []
        record.local = False
        return self._settle(number, record)

    def end_reader(self, number: int, generation: int, reader: int) -> list[int] | None:
        """A reader returned it; None for a return that is stale, doubled or was not expected."""
        record = self._records.get(number)
        if record is None or record.generation != generation or reader not in record.readers:
            self.stale += 1
            return None
        record.readers.discard(reader)
        return self._settle(number, record)

    def forget(self, reader: int) -> tuple[int, list[int]]:
        """A reader is gone for good: (leases it had not returned, free offsets)."""
        freed: list[int] = []
        held = [(n, record) for n, record in self._records.items() if reader in record.readers]
        for number, record in held:
            record.readers.discard(reader)
            freed += self._settle(number, record)
        return len(held), freed

    def active(self, number: int, generation: int) -> Record:
        """The record of a lease that is still in use here; TransportError if it is not."""
        record = self._records.get(number)
        if record is None or record.generation != generation or not record.local:
            raise TransportError(f"arena: lease {number} was released: it cannot be used any more")
        return record

    def _settle(self, number: int, record: Record) -> list[int]:
        if record.local or record.readers:
            return []
        del self._records[number]
        heapq.heappush(self._numbers, number)
        freed = []
        for offset in record.offsets:
            self._uses[offset] -= 1
            if not self._uses[offset]:
                del self._uses[offset]
                freed.append(offset)
        return freed
