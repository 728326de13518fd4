"""Sinks: where payload goes. The wire names a frame and an offset, whoever holds the bytes.

zmq frames are one sink, a shared-memory arena another; both hand out (frame number, byte offset),
so a new transport changes neither the body nor the table of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char, memmove
from itertools import pairwise
from typing import Final, Protocol

import torch

from mmlab.wire.envelope import ALIGN, Buffer
from mmlab.wire.payload import MAX_PACKED, PACK_LIMIT
from mmlab.wire.piece import FEW, Piece

PAD: Final = [bytes(-n % ALIGN) for n in range(ALIGN)]  # zeros from n to the next aligned place

Place = tuple[int, int]  # frame (1 is the first after frame 0), byte offset in it


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
        places: list[Place] = []
        small: list[int] = []
        spans: list[tuple[int, int]] = []
        frames = self.frames
        for i, piece in enumerate(pieces):
            tensor = piece.tensor
            if tensor is not None:
                spans.append((tensor.data_ptr(), piece.nbytes))
            elif piece.nbytes < PACK_LIMIT and len(pieces) > 1:
                places.append((0, 0))
                small.append(i)
                continue
            frames.append(piece.view())
            places.append((len(frames), 0))
        if len(spans) > 1 and _touch(spans):
            self._merge_all(pieces, places, [i for i, place in enumerate(places) if place[0]])
        if small:
            self._pack(pieces, places, small)
        return places

    def _merge_all(self, pieces: Sequence[Piece], places: list[Place], large: list[int]) -> None:
        self.frames.clear()
        for region in _regions(pieces, large):
            if len(region) == 1:
                self.frames.append(pieces[region[0]].view())
                places[region[0]] = (len(self.frames), 0)
            else:
                self._merge(pieces, places, region)

    def _merge(self, pieces: Sequence[Piece], places: list[Place], region: list[int]) -> None:
        """One frame over pieces that overlap or follow each other in one storage."""
        spans = [(_tensor(pieces[i]).data_ptr(), pieces[i].nbytes) for i in region]
        start = spans[0][0]
        nbytes = max(at + size for at, size in spans) - start
        first = _tensor(pieces[region[0]])
        with torch.no_grad():
            raw = torch.empty(0, dtype=torch.uint8).set_(
                first.untyped_storage(),
                first.storage_offset() * first.dtype.itemsize,
                (nbytes,),
                (1,),
            )
        self.frames.append(raw.numpy().data)
        for i, (at, _) in zip(region, spans, strict=True):
            places[i] = (len(self.frames), at - start)

    def _pack(self, pieces: Sequence[Piece], places: list[Place], small: list[int]) -> None:
        """Frames of small pieces, each at a multiple of 64 bytes."""
        frame, begun, size = len(self.frames) + 1, 0, 0
        for n, i in enumerate(small):
            if size >= MAX_PACKED:
                self.frames.append(packed([pieces[k] for k in small[begun:n]], size))
                frame, begun, size = frame + 1, n, 0
            places[i] = (frame, size)
            size += (pieces[i].nbytes + 63) & -ALIGN
        self.frames.append(packed([pieces[k] for k in small[begun:]], size))


def packed(pieces: Sequence[Piece], size: int) -> Buffer:
    """The bytes of all pieces, each at a multiple of 64; `size` bytes, zero between them."""
    if len(pieces) < FEW:
        parts: list[Buffer] = []
        for piece in pieces:
            parts += (piece.view(), PAD[piece.nbytes % ALIGN])
        return b"".join(parts)
    frame = bytearray(size)
    start = at = addressof(c_char.from_buffer(frame))
    for piece in pieces:
        nbytes = piece.nbytes
        if piece.address:
            memmove(at, piece.address, nbytes)
        else:
            piece.write(memoryview(frame)[at - start :])
        at += (nbytes + 63) & -ALIGN
    return frame


def _touch(spans: list[tuple[int, int]]) -> bool:
    """Whether some of (address, size) overlap or follow each other, as parts of one storage do."""
    spans.sort()
    return any(at + size >= after for (at, size), (after, _) in pairwise(spans))


def _tensor(piece: Piece) -> torch.Tensor:
    assert piece.tensor is not None
    return piece.tensor


def _regions(pieces: Sequence[Piece], large: list[int]) -> list[list[int]]:
    """Large pieces -> groups that overlap or follow each other in one storage."""
    by_storage: dict[tuple[int, int], list[int]] = {}
    for i in large:
        tensor = pieces[i].tensor
        if tensor is None:
            base = (-1, i)
        else:
            storage = tensor.untyped_storage()
            base = (storage.data_ptr(), storage.nbytes())  # two may begin at one address
        by_storage.setdefault(base, []).append(i)
    regions: list[list[int]] = []
    for members in by_storage.values():
        if len(members) == 1:
            regions.append(members)
        else:
            regions += _neighbours(pieces, members)
    return regions


def _neighbours(pieces: Sequence[Piece], members: list[int]) -> list[list[int]]:
    """Pieces of one storage, cut where there is a gap or a dtype would not be aligned."""
    regions: list[list[int]] = []
    start = end = 0
    for i in sorted(members, key=lambda i: _tensor(pieces[i]).data_ptr()):
        tensor = _tensor(pieces[i])
        at = tensor.data_ptr()
        if regions and at <= end and (at - start) % tensor.dtype.itemsize == 0:
            regions[-1].append(i)
            end = max(end, at + tensor.nbytes)
        else:
            regions.append([i])
            start, end = at, at + tensor.nbytes
    return regions
