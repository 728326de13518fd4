"""The arena's allocator: extents of any size, coalesced when freed. Bookkeeping only, no memory.

It lives in the arena's creator alone. The best fit is found by bisection in a sorted list of free
extents; neighbours are found by where they begin and end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Final, NamedTuple

LARGE: Final = 64 << 10  # bytes from which on an extent takes whole pages
PAGE: Final = 4096
LINE: Final = 64


class Extent(NamedTuple):
    """A piece of the arena, in bytes. What is taken is `nbytes` rounded up (`rounded`)."""

    offset: int
    nbytes: int


def unit(nbytes: int) -> int:
    """What an extent for `nbytes` is a multiple of, in place and in size."""
    return PAGE if nbytes >= LARGE else LINE


def rounded(nbytes: int) -> int:
    """Bytes taken for a request of `nbytes`."""
    step = unit(nbytes)
    return max(-(-nbytes // step), 1) * step


class Extents:
    """Free and live extents of `size` bytes (a multiple of 4096). Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.live_nbytes = 0
        self.live: dict[int, int] = {}  # offset -> bytes taken
        self._starts: list[int] = []  # of live extents, sorted
        self._free: list[tuple[int, int]] = []  # (bytes, offset), sorted
        self._free_at: dict[int, int] = {}  # offset -> bytes
        self._free_to: dict[int, int] = {}  # end -> offset
        self._add(0, size)

    @property
    def free_nbytes(self) -> int:
        return self.size - self.live_nbytes

    @property
    def largest_free(self) -> int:
        return self._free[-1][0] if self._free else 0

    def allocate(self, nbytes: int) -> Extent | None:
        """The smallest free extent that holds `nbytes`; None if there is none."""
        step, taken = unit(nbytes), rounded(nbytes)
        for i in range(bisect_left(self._free, (taken, -1)), len(self._free)):
            size, start = self._free[i]
            offset = -(-start // step) * step
            if offset + taken <= start + size:
                self._remove(start, size)
                self._add(start, offset - start)
                self._add(offset + taken, start + size - offset - taken)
                self.live[offset] = taken
                insort(self._starts, offset)
                self.live_nbytes += taken
                return Extent(offset, nbytes)
        return None

    def allocate_many(self, sizes: Sequence[int]) -> list[Extent] | None:
        """All or nothing: one extent for the sum of `sizes` if there is one, else one for each."""
        whole = self.allocate(sum(sizes))
        if whole is not None:
            return [whole]
        if len(sizes) < 2 or sum(map(rounded, sizes)) > self.free_nbytes:
            return None
        made: list[Extent] = []
        for nbytes in sizes:
            extent = self.allocate(nbytes)
            if extent is None:
                for done in made:
                    self.free(done.offset)
                return None
            made.append(extent)
        return made

    def free(self, offset: int) -> Extent:
        """Give back the live extent that begins at `offset`; KeyError if there is none."""
        taken = self.live.pop(offset)
        del self._starts[bisect_left(self._starts, offset)]
        self.live_nbytes -= taken
        start, end = offset, offset + taken
        before, after = self._free_to.get(start), self._free_at.get(end)
        if before is not None:
            self._remove(before, start - before)
            start = before
        if after is not None:
            self._remove(end, after)
            end += after
        self._add(start, end - start)
        return Extent(offset, taken)

    def find(self, offset: int, nbytes: int) -> int | None:
        """Where the live extent begins in which these bytes lie, all of them; else None."""
        i = bisect_right(self._starts, offset) - 1
        if i < 0:
            return None
        start = self._starts[i]
        return start if offset + nbytes <= start + self.live[start] else None

    def free_extents(self) -> list[Extent]:
        """In order of place."""
        return [Extent(offset, self._free_at[offset]) for offset in sorted(self._free_at)]

    def _add(self, offset: int, nbytes: int) -> None:
        if nbytes:
            insort(self._free, (nbytes, offset))
            self._free_at[offset] = nbytes
            self._free_to[offset + nbytes] = offset

    def _remove(self, offset: int, nbytes: int) -> None:
        del self._free[bisect_left(self._free, (nbytes, offset))]
        del self._free_at[offset]
        del self._free_to[offset + nbytes]
