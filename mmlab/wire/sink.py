"""Sinks: where payload goes. The wire names a frame and an offset, whoever holds the bytes.

zmq frames are one sink, a shared-memory arena another; both hand out (frame number, byte offset),
so a new transport changes neither the body nor the table of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from mmlab.wire.envelope import ALIGN, Buffer
from mmlab.wire.payload import PACK_LIMIT, Piece

MAX_PACKED = 16 << 20  # bytes of small pieces in one frame, so that one of them pins no more


class Place(NamedTuple):
    """`offset` bytes into frame `frame` (1 is the first after frame 0)."""

    frame: int
    offset: int


class PayloadSink(Protocol):
    """Takes the payload of one message."""

    frames: list[Buffer]  # what follows frame 0 on the wire

    def place(self, pieces: Sequence[Piece]) -> list[Place]:
        """Take all pieces of a message at once and say where each went."""
        ...


class FrameSink:
    """Out-of-band frames: large pieces are sent from where they lie, small ones packed together."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames: list[Buffer] = []

    def place(self, pieces: Sequence[Piece]) -> list[Place]:
        if len(pieces) == 1 and _large(pieces[0]):
            self.frames.append(_buffer(pieces[0], pieces[0].nbytes))
            return [Place(1, 0)]
        places: list[Place | None] = [None] * len(pieces)
        large = [i for i, piece in enumerate(pieces) if _large(piece)]
        for region in _regions(pieces, large):
            first = pieces[region[0]]
            start = first.address
            end = max(pieces[i].address + pieces[i].nbytes for i in region)
            self.frames.append(_buffer(first, end - start))
            for i in region:
                places[i] = Place(len(self.frames), pieces[i].address - start)
        small = [i for i, place in enumerate(places) if place is None]
        while small:
            size, count = 0, 0
            while count < len(small) and (not count or size < MAX_PACKED):
                places[small[count]] = Place(len(self.frames) + 1, size)
                size += aligned(pieces[small[count]].nbytes)
                count += 1
            self._pack(pieces, places, small[:count], size)
            small = small[count:]
        return [place for place in places if place is not None]

    def _pack(
        self, pieces: Sequence[Piece], places: Sequence[Place | None], which: list[int], size: int
    ) -> None:
        out, address = fresh(size)
        for i in which:
            place = places[i]
            assert place is not None
            pieces[i].write(out, address, place.offset)
            clear_gap(out, place.offset + pieces[i].nbytes)
        self.frames.append(out)


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the unit of alignment (64)."""
    return -(-nbytes // ALIGN) * ALIGN


def fresh(nbytes: int) -> tuple[memoryview, int]:
    """Uninitialised memory as a writable view of bytes, and its address."""
    array = torch.empty(nbytes, dtype=torch.uint8).numpy()
    return array.data, int(array.__array_interface__["data"][0])


def clear_gap(out: memoryview, start: int) -> None:
    """Zero the bytes from `start` to the next aligned place: no stale memory leaves the process."""
    gap = -start % ALIGN
    if gap:
        out[start : start + gap] = bytes(gap)


def _large(piece: Piece) -> bool:
    return piece.nbytes >= PACK_LIMIT and (piece.dense is not None or len(piece.tensors) == 1)


def _regions(pieces: Sequence[Piece], large: list[int]) -> list[list[int]]:
    """Large pieces -> groups that overlap or follow each other in one storage, in message order."""
    if len(large) < 2:
        return [[i] for i in large]
    order = sorted(large, key=lambda i: (_storage(pieces[i]), pieces[i].address))
    regions: list[list[int]] = []
    storage, start, end = -1, 0, 0
    for i in order:
        piece = pieces[i]
        at = piece.address
        itemsize = piece.tensors[0].dtype.itemsize if piece.tensors else 1
        if (
            regions
            and piece.tensors
            and _storage(piece) == storage
            and at <= end
            and (at - start) % itemsize == 0
        ):
            regions[-1].append(i)
            end = max(end, at + piece.nbytes)
        else:
            regions.append([i])
            storage, start, end = _storage(piece), at, at + piece.nbytes
    return sorted(regions, key=min)


def _storage(piece: Piece) -> int:
    if piece.dense is not None:
        return piece.address
    return piece.tensors[0].untyped_storage().data_ptr()


def _buffer(piece: Piece, nbytes: int) -> memoryview:
    """A view of `nbytes` from the beginning of a dense piece; it keeps the storage alive."""
    if piece.dense is not None:
        return piece.dense.reshape(-1).view(np.uint8).data
    first = piece.tensors[0]
    with torch.no_grad():
        raw = torch.empty(0, dtype=torch.uint8).set_(
            first.untyped_storage(), first.storage_offset() * first.dtype.itemsize, (nbytes,), (1,)
        )
    view: memoryview = raw.numpy().data
    return view
