"""ArenaSink: the payload of one message goes into the arena, once, or stays where it lies in it.

The message's pieces are laid out in order, so that the items of a request form their batch: pieces
that can be parts of one tensor follow each other directly, all others begin at multiples of 64 B,
large ones at whole pages. What crosses the wire after frame 0 is the descriptor alone; the other
side gives the decoder [frame 0, *reader.view(descriptor)].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmlab.arena.arena import Arena
from mmlab.arena.descriptor import MAX_EXTENTS, Descriptor, pack
from mmlab.arena.extents import LINE, Extent, unit
from mmlab.arena.leases import Lease
from mmlab.arena.stream import copy
from mmlab.dtypes import ITEMSIZE
from mmlab.errors import EncodeError, UsageError
from mmlab.wire.envelope import Buffer
from mmlab.wire.piece import Piece
from mmlab.wire.sink import Place


class ArenaSink:
    """Takes the payload of one message. `frames` is [packed descriptor], or [] without payload.

    `reservation` is a lease that has its extents already; without one the message takes all its
    bytes at once and waits up to `timeout` seconds for them (errors: `Arena.reserve`).
    """

    def __init__(
        self, arena: Arena, reservation: Lease | None = None, *, timeout: float | None = None
    ) -> None:
        self.frames: list[Buffer] = []
        self.lease: Lease | None = reservation  # to be released once the message is sent
        self.descriptor: Descriptor | None = None
        self.copied_nbytes = 0  # what did not lie in the arena already
        self._arena = arena
        self._timeout = timeout

    def place(self, pieces: Sequence[Piece]) -> list[Place]:
        if self.descriptor is not None:
            raise UsageError("ArenaSink: it has taken a message already, make one for each")
        mine = self.lease is None
        lease = self._arena.lease() if self.lease is None else self.lease
        try:
            self.descriptor, places = self._place(lease, pieces)
        except BaseException:
            if mine:
                lease.release()
            raise
        self.lease = lease
        self.frames = [pack(self.descriptor)]
        return places

    def _place(self, lease: Lease, pieces: Sequence[Piece]) -> tuple[Descriptor, list[Place]]:
        places: list[Place] = [(0, 0)] * len(pieces)
        lying: dict[int, list[tuple[int, int, int]]] = {}  # by extent: piece, offset, end
        copied: list[int] = []
        for i, piece in enumerate(pieces):
            found = _lies(lease, piece)
            if found is None:
                copied.append(i)
            else:
                lying.setdefault(found[1], []).append((i, found[0], found[0] + piece.nbytes))
        used: list[tuple[int, int]] = []
        inside = _contained(pieces, copied)
        if inside:
            copied = [i for i in copied if i not in inside]
        if copied:
            used = self._copy(lease, pieces, copied, places, MAX_EXTENTS - len(lying))
        for parts in lying.values():  # one frame over all parts of one extent
            start = min(offset for _, offset, _ in parts) // LINE * LINE
            used.append((start, max(end for _, _, end in parts) - start))
            for i, offset, _ in parts:
                places[i] = (len(used), offset - start)
        for i, (whole, offset) in inside.items():
            places[i] = (places[whole][0], places[whole][1] + offset)
        if len(used) > MAX_EXTENTS:
            raise EncodeError(f"arena: a message in {len(used)} extents, at most {MAX_EXTENTS}")
        return Descriptor(self._arena.id, lease.number, lease.generation, used), places

    def _copy(
        self,
        lease: Lease,
        pieces: Sequence[Piece],
        copied: Sequence[int],
        places: list[Place],
        most: int,
    ) -> list[tuple[int, int]]:
        """Copy pieces into the lease's own extents and note their places: what is used of them."""
        self.copied_nbytes += sum(pieces[i].nbytes for i in copied)
        offsets, total = lay_out([pieces[i] for i in copied])
        sizes = [b - a for a, b in zip(offsets, [*offsets[1:], total], strict=True)]
        if not lease.extents:
            lease.reserve(sizes if len(sizes) <= most else [total], self._timeout)
        extents = lease.extents
        if len(extents) == 1 and extents[0].nbytes >= total:
            used = [(extents[0].offset, total)]
            view = lease.view()
            for i, offset in zip(copied, offsets, strict=True):
                places[i] = (1, offset)
                _write(pieces[i], view[offset : offset + pieces[i].nbytes])
            return used
        if not _fit(extents, [pieces[i].nbytes for i in copied]):
            raise UsageError(
                f"arena: {total} B in {len(copied)} pieces needed, the reservation has "
                f"{sum(extent.nbytes for extent in extents)} B in {len(extents)}"
            )
        for n, i in enumerate(copied):
            places[i] = (n + 1, 0)
            _write(pieces[i], lease.view(n)[: pieces[i].nbytes])
        return [
            (extent.offset, pieces[i].nbytes) for extent, i in zip(extents, copied, strict=True)
        ]


def lay_out(pieces: Sequence[Piece]) -> tuple[list[int], int]:
    """Where each piece begins, counted from a whole page, and where the last one ends; in bytes."""
    offsets: list[int] = []
    at = 0
    last: Piece | None = None
    for piece in pieces:
        if last is None or not _joins(last, piece):
            step = unit(piece.nbytes)
            at = -(-at // step) * step
        offsets.append(at)
        at += piece.nbytes
        last = piece
    return offsets, at


def _contained(pieces: Sequence[Piece], among: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Pieces whose memory lies inside another's, sent once: piece -> (that one, bytes into it)."""
    spans = [
        (t.data_ptr(), -pieces[i].nbytes, i) for i in among if (t := pieces[i].tensor) is not None
    ]
    found: dict[int, tuple[int, int]] = {}
    start = end = whole = 0
    for at, size, i in sorted(spans):
        itemsize = ITEMSIZE[pieces[i].code]
        if at - size > end:
            start, end, whole = at, at - size, i
        elif (at - start) % itemsize == 0 and itemsize <= ITEMSIZE[pieces[whole].code]:
            found[i] = (whole, at - start)
    return found


def _joins(last: Piece, piece: Piece) -> bool:
    """Whether the two look like neighbours in a stack, or in a concatenation of rows."""
    a, b = last.shape, piece.shape
    rows = len(a) == len(b) > 1 and a[1:] == b[1:]
    return last.code == piece.code and (rows or a == b)


def _lies(lease: Lease, piece: Piece) -> tuple[int, int] | None:
    """(offset, offset of its extent) of a piece whose bytes are in the arena; they are held now."""
    tensor: torch.Tensor | None = piece.tensor
    if tensor is None and piece.address and piece.rows is not None and len(piece.rows) == 1:
        tensor = piece.rows[0]
    return None if tensor is None else lease.refer(tensor)


def _write(piece: Piece, out: memoryview) -> None:
    if piece.tensor is None:
        piece.write(out)
    else:  # without the interpreter's lock, which others need meanwhile
        copy(np.frombuffer(out, np.uint8), np.frombuffer(piece.view(), np.uint8))


def _fit(extents: Sequence[Extent], sizes: Sequence[int]) -> bool:
    return len(extents) == len(sizes) and all(
        extent.nbytes >= nbytes for extent, nbytes in zip(extents, sizes, strict=True)
    )
