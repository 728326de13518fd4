"""A piece: one record of the tensor table and its bytes, wherever they lie.

`view()` gives them as one buffer (the memory itself where it is dense), `write` puts them into a
given place; a sink uses whichever moves them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import string_at
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

_address: Final = torch.Tensor.data_ptr
# A freed storage begins at 0, so that a view of it is where its offset says. Where a heap may lie
# as low as that, every address is looked at again.
LOWEST: Final = 1 << 40
FEW: Final = 16  # up to here copying one by one is faster than one torch.stack


class Piece:
    """A record of the tensor table and its bytes: `count` tensors of one dtype and shape.

    The bytes are those of a large `tensor`, of small ones behind each other (`rows`), or `data`.
    """

    __slots__ = ("address", "code", "count", "data", "nbytes", "rows", "shape", "tensor")

    def __init__(
        self,
        code: int,
        shape: Sequence[int],
        nbytes: int,
        data: Buffer | None = None,
        tensor: torch.Tensor | None = None,
        rows: list[torch.Tensor] | None = None,
        address: int = 0,
    ) -> None:
        self.code = code
        self.shape = shape
        self.count = 1
        self.nbytes = nbytes  # of all `count` together; 0: empty tensors
        self.data = data
        self.tensor = tensor  # whose memory `data` is
        self.rows = rows
        self.address = address  # of the bytes of the only row, where they lie behind each other

    def view(self) -> Buffer:
        """The bytes as one buffer that keeps their memory alive."""
        data = self.data
        if data is None:
            if self.address:
                return string_at(self.address, self.nbytes)
            assert self.rows is not None
            data = self.data = rows_view(self.rows, self.nbytes)
        return data

    def write(self, out: memoryview) -> None:
        """Copy the bytes to the beginning of `out`."""
        rows = self.rows
        if rows is None or len(rows) < FEW:
            out[: self.nbytes] = self.view()
        else:
            first = copyable(rows[0])
            flat = torch.frombuffer(out, dtype=first.dtype, count=len(rows) * first.numel())
            _write_rows(rows, flat)


def own_view(t: torch.Tensor, nbytes: int) -> Buffer | None:
    """The bytes where they lie; None for what numpy cannot show as a row of bytes.

    That is a gradient, strides, negative or conjugate bits, complex128, a tensor without memory.
    """
    try:
        seen = SEEN_AS[t.dtype]
        view: memoryview = (t if seen is None else t.view(seen)).numpy().data
        storage, end = t.untyped_storage(), t.data_ptr() + nbytes
        backed = nbytes < end <= storage.data_ptr() + storage.nbytes()
        return view.cast("B") if backed else None
    except (RuntimeError, TypeError, ValueError, KeyError):
        return None


def dense_view(t: torch.Tensor) -> tuple[Buffer, torch.Tensor]:
    """The bytes in row-major order and the tensor whose memory they are, copied where they must."""
    t = dense(t)
    return as_bytes(t).numpy().data, t


def parts_view(tensors: Sequence[torch.Tensor], nbytes: int) -> Buffer:
    """The bytes of tensors of one dtype behind each other."""
    if len(tensors) < FEW:
        return b"".join([small_bytes(t, n) for t in tensors if (n := t.nbytes)])
    first = tensors[0]
    if all(t.shape == first.shape for t in tensors):
        return rows_view(tensors, nbytes)
    flat = torch.empty(nbytes // first.dtype.itemsize, dtype=copyable(first).dtype)
    with torch.no_grad():
        torch.cat([t.reshape(-1) for t in _copyable(tensors)], out=flat)
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view


def array_view(array: np.ndarray) -> Buffer:
    """An array's bytes in row-major order and its own byte order."""
    if array.flags.c_contiguous and array.ndim:
        return array.reshape(-1).view(np.uint8).data
    return array.tobytes()


def rows_view(rows: Sequence[torch.Tensor], nbytes: int) -> Buffer:
    """The bytes of tensors of one dtype and shape behind each other, `nbytes` in all."""
    if len(rows) < FEW:
        each = nbytes // len(rows)
        return b"".join([small_bytes(row, each) for row in rows])
    first = copyable(rows[0])
    flat = torch.empty(nbytes // first.dtype.itemsize, dtype=first.dtype)
    _write_rows(rows, flat)
    view: memoryview = flat.view(torch.uint8).numpy().data
    return view


def small_bytes(t: torch.Tensor, nbytes: int) -> bytes:
    """A copy of a small tensor's bytes."""
    if address := dense_address(t):
        return string_at(address, nbytes)
    t = dense(t)  # named, so that it lives while its bytes are read
    return string_at(t.data_ptr(), nbytes)


def dense_address(t: torch.Tensor) -> int:
    """Where the bytes lie if they lie behind each other as they are meant, else 0."""
    if t.is_contiguous() and not t.is_neg() and not t.is_conj():
        address = t.data_ptr()
        if address:
            storage = t.untyped_storage()
            if address + t.nbytes <= storage.data_ptr() + storage.nbytes():
                return address
    return 0


def _write_rows(rows: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    tensors = _copyable(rows)
    with torch.no_grad():
        torch.stack(tensors, out=flat.view(len(tensors), *tensors[0].shape))


def _copyable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values in memory that torch can copy from."""
    if min(map(_address, tensors)) < LOWEST:  # empty, or all zeros, or freed
        tensors = [dense(t) for t in tensors]
    if copyable(tensors[0]) is not tensors[0]:
        tensors = [copyable(t) for t in tensors]
    return list(tensors)


def dense(t: torch.Tensor) -> torch.Tensor:
    """`t` itself if its bytes lie behind each other as they are meant, else a copy that does."""
    original = t
    if t.requires_grad:
        t = t.detach()
    if t.numel() and not t._is_zerotensor():
        _check_memory(t, original)
        if t.is_contiguous() and not t.is_neg() and not t.is_conj():
            return t
    try:
        t = copyable(t.resolve_conj().resolve_neg())
    except RuntimeError:
        reason = f"conjugate or negative of {t.dtype}, not yet applied, cannot be carried"
        raise Unsupported(original, f"{reason}: torch cannot apply it") from None
    return t.clone(memory_format=torch.contiguous_format)


def _check_memory(t: torch.Tensor, original: torch.Tensor) -> None:
    """Unsupported for a tensor whose storage was freed, or made smaller, under it."""
    last = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    needed = (t.storage_offset() + last + 1) * t.itemsize
    held = t.untyped_storage().nbytes()
    if needed > held:
        reason = f"the memory of this tensor was freed: it needs {needed} B, its storage holds"
        raise Unsupported(original, f"{reason} {held} B")
