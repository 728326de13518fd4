"""The tensor table: dtype, shape, frame and offset of every tensor, described once.

An entry is 16 bytes and 8 per dimension, outside the msgpack body, so that a thousand tensors of
one dtype and shape are one entry with a thousand rows. On arrival every number in it is checked
against the frames, in exact integers, before any tensor exists.

    code u8 | dimensions u8 | zero u16 | frame u32 | offset u64 | extent u64 ...
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
import torch

from mmlab.dtypes import ITEMSIZE, NUMPY_OF, TORCH_OF, describe
from mmlab.errors import WireError
from mmlab.wire.payload import Entry
from mmlab.wire.sink import Place

MAX_NDIM: Final = 64
_HEAD: Final = Struct("<BBHIQ")
_EXTENTS: Final = [Struct(f"<{n}Q") for n in range(MAX_NDIM + 1)]
_MAX_SPAN: Final = 1 << 62  # bytes an entry may span, zero extents counted as one: torch's strides


def pack_table(entries: Sequence[Entry], places: Sequence[Place]) -> bytes:
    """Entries and where their pieces went -> bytes."""
    out = []
    for entry, (frame, offset) in zip(entries, places, strict=True):
        shape = entry.shape
        if entry.rows:
            assert entry.piece is not None
            shape = (len(entry.piece.tensors), *shape)
        out.append(_HEAD.pack(entry.code, len(shape), 0, frame, offset))
        out.append(_EXTENTS[len(shape)].pack(*shape))
    return b"".join(out)


class Table:
    """The tensors of one received message: checked on arrival, made when they are asked for."""

    __slots__ = ("_bases", "_copy", "_frames", "_made", "_many", "_rows", "entries")

    def __init__(self, raw: memoryview, frames: list[memoryview], copy: bool, refs: int) -> None:
        """`refs`: how many references the body has room for; it bounds what is made at once."""
        self.entries: list[tuple[int, tuple[int, ...], int, int, int]] = []
        self._frames = frames  # frames[0] is the inline payload
        self._copy = copy
        self._many = refs
        self._made: dict[int, torch.Tensor | np.ndarray] = {}
        self._rows: dict[int, tuple[torch.Tensor, ...] | torch.Tensor] = {}
        self._bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        at, end = 0, len(raw)
        while at < end:
            at = self._read(raw, at, end)

    def _read(self, raw: memoryview, at: int, end: int) -> int:
        where = len(self.entries)
        if at + _HEAD.size > end:
            raise WireError(f"table[{where}]: ends after {end - at} bytes, wanted {_HEAD.size}")
        code, ndim, zero, frame, offset = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        itemsize = ITEMSIZE.get(code)
        if itemsize is None or zero:
            raise WireError(f"table[{where}]: {describe(code)}, wanted one of mmlab.dtypes")
        if ndim > MAX_NDIM or at + 8 * ndim > end:
            raise WireError(
                f"table[{where}]: {ndim} dimensions in {end - at} bytes, at most {MAX_NDIM}"
            )
        shape = _EXTENTS[ndim].unpack_from(raw, at)
        numel, span = 1, itemsize
        for extent in shape:
            numel *= extent
            span *= extent or 1
        if frame >= len(self._frames):
            raise WireError(
                f"table[{where}]: payload in frame {frame}, the message has {len(self._frames)}"
            )
        nbytes = numel * itemsize
        size = len(self._frames[frame])
        if offset + nbytes > size or span > _MAX_SPAN:
            raise WireError(
                f"table[{where}]: frame {frame} has {size} B, "
                f"{describe(code)} {shape} at {offset} needs {nbytes} B"
            )
        self.entries.append((code, shape, frame, offset, numel))
        return at + 8 * int(ndim)

    def get(self, ref: Sequence[int]) -> torch.Tensor | np.ndarray:
        """The tensor or array at [entry] or [entry, row]. WireError if none is there."""
        if not 1 <= len(ref) <= 2 or not all(type(n) is int for n in ref):
            raise WireError(f"tensor reference: got {list(ref)!r}, wanted [entry] or [entry, row]")
        entry = ref[0]
        if not 0 <= entry < len(self.entries):
            raise WireError(f"tensor reference to entry {entry}, the table has {len(self.entries)}")
        if len(ref) == 1:
            made = self._made.get(entry)
            if made is None:
                made = self._made[entry] = self._make(entry)
            return made
        rows = self._rows.get(entry)
        if rows is None:
            code, shape, _, _, numel = self.entries[entry]
            if code in NUMPY_OF or not shape or not numel:
                raise WireError(f"tensor reference to a row of entry {entry}, which has none")
            whole = self.get((entry,))
            assert isinstance(whole, torch.Tensor)
            rows = self._rows[entry] = whole.unbind(0) if shape[0] <= self._many else whole
        if not 0 <= ref[1] < len(rows):
            raise WireError(f"tensor reference to row {ref[1]} of {len(rows)} in entry {entry}")
        return rows[ref[1]]

    def is_tensor(self, entry: int) -> bool:
        return 0 <= entry < len(self.entries) and self.entries[entry][0] in TORCH_OF

    def _make(self, entry: int) -> torch.Tensor | np.ndarray:
        code, shape, frame, offset, numel = self.entries[entry]
        array_dtype = NUMPY_OF.get(code)
        if array_dtype is not None:
            if numel == 0:
                return np.empty(shape, array_dtype)
            array = np.frombuffer(self._frames[frame], array_dtype, numel, offset).reshape(shape)
            return array.copy() if self._copy else array
        dtype = TORCH_OF[code]
        if numel == 0:
            return torch.empty(shape, dtype=dtype)
        itemsize = dtype.itemsize
        base = self._bases.get((frame, dtype))
        if base is None:
            view = self._frames[frame]
            count = len(view) // itemsize
            base = self._bases[frame, dtype] = torch.frombuffer(view, dtype=dtype, count=count)
            if offset == 0 and count == numel and not self._copy and not base.data_ptr() % itemsize:
                return base.view(shape)
        if offset % itemsize or base.data_ptr() % itemsize:  # a misaligned view would be undefined
            raw = bytearray(self._frames[frame][offset : offset + numel * itemsize])
            return torch.frombuffer(raw, dtype=dtype).view(shape)
        tensor = base.narrow(0, offset // itemsize, numel).view(shape)
        return tensor.clone() if self._copy else tensor
