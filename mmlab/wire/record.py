"""A record of the tensor table: dtype, shape, frame and offset of a tensor, described once.

A record is 20 bytes and 8 per dimension, outside the msgpack body, and `count` tensors of one dtype
and shape that lie behind each other are one record.

    code u8 | dimensions u8 | zero u16 | frame u32 | offset u64 | count u32 | extent u64 ...
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from mmlab.wire.payload import MAX_NDIM
from mmlab.wire.piece import Piece
from mmlab.wire.sink import Place

RECORD: Final = [struct.Struct(f"<BBHIQI{n}Q") for n in range(MAX_NDIM + 1)]
HEAD: Final = 20  # bytes before the extents


def pack_record(code: int, shape: Sequence[int], count: int, frame: int, offset: int) -> bytes:
    """`count` tensors of `shape` from `offset` of `frame` on."""
    return RECORD[len(shape)].pack(code, len(shape), 0, frame, offset, count, *shape)


def pack_table(pieces: Sequence[Piece], places: Sequence[Place]) -> bytes:
    """Pieces and where they went -> bytes."""
    out = []
    for piece, (frame, offset) in zip(pieces, places, strict=True):
        shape = piece.shape
        n = len(shape)
        out.append(RECORD[n].pack(piece.code, n, 0, frame, offset, piece.count, *shape))
    return b"".join(out)
