"""The layout of the most common messages in one walk: tensors that share no memory.

Large ones become frames, small ones are packed. A message with anything else in it (arrays, long
runs of equal small tensors, parts of one storage) is left to the general layout of
`Payload.pieces`, which describes these tensors just as this one does, only slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char, memmove, string_at
from itertools import pairwise
from typing import Final

import torch

from mmlab.dtypes import CODE_OF_TORCH
from mmlab.wire.envelope import ALIGN, Buffer
from mmlab.wire.payload import MAX_PACKED, PACK_LIMIT, RUN_NDIM
from mmlab.wire.piece import FEW, SEEN_AS
from mmlab.wire.record import RECORD
from mmlab.wire.sink import PAD

_KNOWN: Final = {dtype: (code, SEEN_AS[dtype]) for dtype, code in CODE_OF_TORCH.items()}
_pack: Final = [layout.pack for layout in RECORD]
_Tensor: Final = torch.Tensor

Small = list[tuple[int, int, int]]  # address, size, offset where it goes; in bytes


def lay_out(
    values: Sequence[object], limit: int
) -> tuple[bytes, bytes | bytearray, list[Buffer]] | None:
    """Table, inline payload and frames of `values`; None: not such a message. Raises nothing.

    `limit` (bytes): smaller tensors go inline.
    """
    if len(values) >= FEW and _same(values[0], values[FEW - 1]):
        return None  # a long run: one torch.stack is faster
    frames: list[Buffer] = []
    records: list[bytes] = []
    spans: list[tuple[int, int]] = []
    inline: Small = []
    small: Small = []
    runs: list[tuple[int, int, int, int, torch.Size, int]] = []
    inline_size = small_size = count = 0
    last_dtype = last_shape = None
    try:
        for value in values:
            if type(value) is not _Tensor:
                return None
            dtype, shape, nbytes = value.dtype, value.shape, value.nbytes
            code, seen = _KNOWN[dtype]
            address = value.data_ptr()
            if not address:
                return None
            storage = value.untyped_storage()
            if address + nbytes > storage.data_ptr() + storage.nbytes():
                return None
            if nbytes >= PACK_LIMIT and nbytes >= limit:
                view = (value if seen is None else value.view(seen)).numpy().data.cast("B")
                frames.append(view)
                last_dtype = None
                spans.append((address, nbytes))
                n = len(shape)
                records.append(_pack[n](code, n, 0, len(frames), 0, 1, *shape))
                continue
            if not value.is_cpu or not value.is_contiguous() or value.is_neg() or value.is_conj():
                return None
            same = dtype is last_dtype and shape == last_shape and len(shape) <= RUN_NDIM
            if same:
                count += 1
            else:
                count, last_dtype, last_shape = 1, dtype, shape
            if nbytes < limit:
                at = inline_size if same else (inline_size + 63) & -ALIGN
                inline.append((address, nbytes, at))
                inline_size = at + nbytes
                frame = 0
            else:
                at = small_size if same else (small_size + 63) & -ALIGN
                small.append((address, nbytes, at))
                small_size = at + nbytes
                frame = 1
            if same:
                runs[-1] = (*runs[-1][:5], count)
            else:
                _pack[len(shape)]  # IndexError beyond 64 dimensions
                runs.append((len(records), code, frame, at, shape, 1))
                records.append(b"")
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError):
        return None  # the general layout says what is wrong, if anything is
    if len(spans) > 1:
        spans.sort()
        for (at, size), (after, _) in pairwise(spans):
            if at + size >= after:
                return None
    if small:
        if small_size > MAX_PACKED:
            return None
        frames.append(_packed(small, small_size))
    last = len(frames)
    for i, code, frame, at, shape, count in runs:
        n = len(shape)
        records[i] = _pack[n](code, n, 0, last if frame else 0, at, count, *shape)
    return b"".join(records), _packed(inline, inline_size), frames


def _same(a: object, b: object) -> bool:
    """Whether two are small tensors of one dtype and shape."""
    if type(a) is not _Tensor or type(b) is not _Tensor:
        return True
    try:
        return a.dtype is b.dtype and a.shape == b.shape and a.nbytes < PACK_LIMIT
    except RuntimeError:
        return True


def _packed(small: Small, size: int) -> bytes | bytearray:
    """The bytes at all addresses, each at its offset; up to a multiple of 64, zero between them."""
    if len(small) < FEW:
        parts, end = [], 0
        for address, nbytes, at in small:
            if at != end:
                parts.append(PAD[end % ALIGN])
            parts.append(string_at(address, nbytes))
            end = at + nbytes
        parts.append(PAD[end % ALIGN])
        return b"".join(parts)
    frame = bytearray((size + 63) & -ALIGN)
    start = addressof(c_char.from_buffer(frame))
    for address, nbytes, at in small:
        memmove(start + at, address, nbytes)
    return frame
