"""A piece: the bytes of one entry of the tensor table, wherever they lie.

`view()` gives them as one buffer (the memory itself where it is dense), `write` puts them into a
given place; a sink uses whichever moves them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove, string_at
from typing import Final

import numpy as np
import torch

from mmlab.dtypes import CODE_OF_TORCH, as_bytes, copyable
from mmlab.wire.envelope import Buffer
from mmlab.wire.unsupported import Unsupported

_NUMPY_KNOWS: Final = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32),
        *(torch.int32, torch.uint64, torch.int64, torch.float32, torch.float64),
    )
)
# as what numpy and memoryview.cast can see a tensor's memory: itself, or integers of its size
SEEN_AS: Final[dict[torch.dtype, torch.dtype | None]] = {
    dtype: None
    if dtype in _NUMPY_KNOWS
    else {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(dtype.itemsize)
    for dtype in CODE_OF_TORCH
}

FEW: Final = 16  # up to here copying one by one is faster than one torch.stack


class Piece:
    """One dense tensor or array (`dense`), or small tensors behind each other (`rows`)."""

    __slots__ = ("dense", "nbytes", "rows", "tensor")

    def __init__(
        self, nbytes: int, dense: Buffer | None, tensor: torch.Tensor | None = None
    ) -> None:
        self.nbytes = nbytes  # of one row, where there are rows
        self.dense = dense
        self.tensor = tensor  # whose memory `dense` is
        self.rows: list[torch.Tensor] | None = None if dense is not None else []

    @property
    def total(self) -> int:
        """All bytes, those of every row."""
        return self.nbytes if self.rows is None else self.nbytes * len(self.rows)

    def view(self) -> Buffer:
        """The bytes as one buffer that keeps their memory alive."""
        if self.dense is None:
            assert self.rows is not None
            self.dense = _gather(self.rows, self.nbytes)
        return self.dense

    def write(self, out: memoryview) -> None:
        """Copy the bytes to the beginning of `out`."""
        self.write_at(out, torch.frombuffer(out, dtype=torch.uint8).data_ptr(), 0)

    def write_at(self, out: memoryview, address: int, offset: int) -> None:
        """Copy the bytes to `out[offset:]`; `address` is where `out` begins."""
        rows = self.rows
        if self.dense is None and rows is not None:
            if len(rows) == 1 and _is_dense(rows[0]):
                memmove(address + offset, rows[0].data_ptr(), self.nbytes)
                return
            if len(rows) >= FEW:
                first = copyable(rows[0])
                count = len(rows) * first.numel()
                flat = torch.frombuffer(out, dtype=first.dtype, count=count, offset=offset)
                _write_parts(rows, flat)
                return
        out[offset : offset + self.total] = self.view()


def tensor_view(t: torch.Tensor) -> Buffer:
    """A tensor's bytes in row-major order: its own memory where it is dense, else a copy."""
    return own_view(t) or dense_view(t)[0]


def own_view(t: torch.Tensor) -> Buffer | None:
    """The bytes where they lie; None for what numpy cannot show as a row of bytes.

    That is a gradient, strides, negative or conjugate bits, complex128, a tensor without memory.
    """
    try:
        seen = SEEN_AS[t.dtype]
        view: memoryview = (t if seen is None else t.view(seen)).numpy().data
        return view.cast("B") if t.data_ptr() else None
    except (RuntimeError, TypeError, ValueError):
        return None


def dense_view(t: torch.Tensor) -> tuple[Buffer, torch.Tensor]:
    """The bytes in row-major order and the tensor whose memory they are, copied where they must."""
    t = dense(t)
    return as_bytes(t).numpy().data, t


def parts_view(tensors: Sequence[torch.Tensor], nbytes: int) -> Buffer:
    """The bytes of tensors of one dtype behind each other."""
    if len(tensors) < FEW:
        return b"".join([small_bytes(t, t.nbytes) for t in tensors if t.nbytes])
    first = copyable(tensors[0])
    flat = torch.empty(nbytes // first.dtype.itemsize, dtype=first.dtype)
    _write_parts(tensors, flat)
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view


def array_view(array: np.ndarray) -> Buffer:
    """An array's bytes in row-major order and its own byte order."""
    if array.flags.c_contiguous and array.ndim:
        return array.reshape(-1).view(np.uint8).data
    return array.tobytes()


def _gather(rows: list[torch.Tensor], nbytes: int) -> Buffer:
    if len(rows) < FEW:
        return b"".join([small_bytes(row, nbytes) for row in rows])
    return parts_view(rows, nbytes * len(rows))


def small_bytes(t: torch.Tensor, nbytes: int) -> bytes:
    """A copy of a small tensor's bytes."""
    if _is_dense(t):
        return string_at(t.data_ptr(), nbytes)
    t = dense(t)  # named, so that it lives while its bytes are read
    return string_at(t.data_ptr(), nbytes)


def _is_dense(t: torch.Tensor) -> bool:
    conjugated = t.dtype.is_complex and t.is_conj()
    return t.is_contiguous() and not conjugated and not t.is_neg() and bool(t.data_ptr())


def _write_parts(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    if not all(map(torch.Tensor.data_ptr, tensors)):  # empty, or all zeros, or freed
        tensors = [dense(t) for t in tensors]
    first = copyable(tensors[0])
    if first is not tensors[0]:
        tensors = [copyable(t) for t in tensors]
    with torch.no_grad():
        if all(t.shape == first.shape for t in tensors):
            torch.stack(tuple(tensors), out=flat.view(len(tensors), *first.shape))
        else:
            torch.cat([t.reshape(-1) for t in tensors], out=flat)


def dense(t: torch.Tensor) -> torch.Tensor:
    """`t` itself if its bytes lie behind each other as they are meant, else a copy that does."""
    original = t
    if t.requires_grad:
        t = t.detach()
    if t.data_ptr():
        if t.is_contiguous() and not t.is_neg() and not t.is_conj():
            return t
    elif not t._is_zerotensor() and t.numel():
        raise Unsupported(original, "the memory of this tensor was freed (its storage holds 0 B)")
    t = copyable(t.resolve_conj().resolve_neg())
    return t.clone(memory_format=torch.contiguous_format)
