"""Payload: the tensors of one message, collected while its body is encoded.

Every tensor becomes an entry of the message's table. Entries of small tensors with one dtype and
shape are filled row by row (a thousand of them cost one entry and one `torch.stack`); a large
tensor is an entry of its own, sent from where it lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from mmlab.dtypes import CODE_OF_NUMPY, CODE_OF_TORCH
from mmlab.wire.unsupported import Unsupported

PACK_LIMIT = 8192  # smaller tensors are copied next to each other; larger ones are not copied

Ref = tuple[int] | tuple[int, int]  # entry, or entry and row (index into its first dimension)


class Piece:
    """The bytes of one entry: one dense tensor, or several that are written behind each other."""

    __slots__ = ("dense", "nbytes", "tensors")

    def __init__(self, nbytes: int, tensors: list[torch.Tensor], dense: np.ndarray | None) -> None:
        self.nbytes = nbytes
        self.tensors = tensors
        self.dense = dense  # an ndarray's memory; None for tensors

    @property
    def address(self) -> int:
        """Where a dense piece begins; only for pieces of one tensor or array."""
        if self.dense is not None:
            return int(self.dense.__array_interface__["data"][0])
        return self.tensors[0].data_ptr()

    def write(self, out: memoryview, address: int, offset: int) -> None:
        """Copy the bytes to `out[offset:]`, whose first byte is at `address`."""
        if self.dense is not None or len(self.tensors) == 1:
            ctypes.memmove(address + offset, self.address, self.nbytes)
            return
        first = self.tensors[0]
        if len(self.tensors) < 4:
            step = offset
            for t in self.tensors:
                t = dense(t)
                ctypes.memmove(address + step, t.data_ptr(), t.nbytes)
                step += t.nbytes
            return
        count = self.nbytes // first.dtype.itemsize
        flat = torch.frombuffer(out, dtype=first.dtype, count=count, offset=offset)
        with torch.no_grad():
            if count == len(self.tensors) * first.numel() and all(
                t.shape == first.shape for t in self.tensors
            ):
                torch.stack(self.tensors, out=flat.view(len(self.tensors), *first.shape))
            else:
                torch.cat([t.reshape(-1) for t in self.tensors], out=flat)


class Entry:
    """One logical tensor of the message: dtype code, shape, and its piece (None if it is empty)."""

    __slots__ = ("code", "piece", "rows", "shape")

    def __init__(self, code: int, shape: tuple[int, ...], piece: Piece | None, rows: bool) -> None:
        self.code = code
        self.shape = shape  # of one row where `rows`
        self.piece = piece
        self.rows = rows


class Payload:
    """Entries in the order in which they were met. One object per encode call."""

    __slots__ = ("_groups", "_memo", "entries", "keep")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.keep: list[object] = []  # what `_memo` knows by id must not be freed meanwhile
        self._memo: dict[int, Ref] = {}
        self._groups: dict[tuple[torch.dtype, torch.Size], tuple[int, Piece]] = {}

    def add(self, tensor: torch.Tensor) -> Ref:
        """Register a tensor and say how the body refers to it. The same object is sent once."""
        ref = self._memo.get(id(tensor))
        if ref is not None:
            return ref
        t = tensor if type(tensor) is torch.Tensor else _plain(tensor)
        dtype = t.dtype
        code = CODE_OF_TORCH.get(dtype)
        if code is None or not t.is_cpu or t.layout is not torch.strided or t.is_nested:
            raise Unsupported(tensor, _why_not(t))
        shape = t.shape
        nbytes = t.nbytes
        if nbytes == 0:
            ref = (len(self.entries),)
            self.entries.append(Entry(code, tuple(shape), None, False))
        elif nbytes < PACK_LIMIT:
            group = self._groups.get((dtype, shape))
            if group is None:
                group = self._groups[dtype, shape] = (len(self.entries), Piece(0, [], None))
                self.entries.append(Entry(code, tuple(shape), group[1], True))
            index, piece = group
            ref = (index, len(piece.tensors))
            piece.tensors.append(t if piece.tensors else dense(t))
            piece.nbytes += nbytes
        else:
            ref = (len(self.entries),)
            t = dense(t)
            self.entries.append(Entry(code, tuple(shape), Piece(nbytes, [t], None), False))
        self.keep.append(tensor)
        self._memo[id(tensor)] = ref
        return ref

    def add_parts(self, tensors: Sequence[torch.Tensor], shape: tuple[int, ...]) -> int:
        """An entry of `shape` whose bytes are those of `tensors` behind each other."""
        for t in tensors:
            if CODE_OF_TORCH.get(t.dtype) is None or not t.is_cpu or t.layout is not torch.strided:
                raise Unsupported(t, _why_not(t))
        parts = [dense(t) if len(tensors) == 1 else t for t in tensors]
        nbytes = sum(t.nbytes for t in parts)
        piece = Piece(nbytes, parts, None) if nbytes else None
        self.entries.append(Entry(CODE_OF_TORCH[parts[0].dtype], shape, piece, False))
        return len(self.entries) - 1

    def add_array(self, array: np.ndarray) -> Ref:
        """Register a numpy array: any byte order and strides, numbers and booleans only."""
        ref = self._memo.get(id(array))
        if ref is not None:
            return ref
        code = CODE_OF_NUMPY.get(array.dtype)
        if code is None or type(array) not in (np.ndarray, np.memmap):
            kind = f"numpy array of {array.dtype}"
            if type(array) not in (np.ndarray, np.memmap):
                kind = f"{type(array).__name__} (a subclass of numpy.ndarray)"
            raise Unsupported(array, f"{kind} cannot be carried: wanted numbers or booleans")
        piece = None
        if array.nbytes:
            flat = np.ascontiguousarray(array)
            piece = Piece(flat.nbytes, [], flat)
        ref = (len(self.entries),)
        self.entries.append(Entry(code, array.shape, piece, False))
        self.keep.append(array)
        self._memo[id(array)] = ref
        return ref


def dense(t: torch.Tensor) -> torch.Tensor:
    """`t` itself if its bytes lie behind each other as they are meant, else a copy that does."""
    if t.requires_grad:
        t = t.detach()
    if t.is_contiguous() and not t.is_neg() and not t.is_conj() and t.data_ptr():
        return t
    return t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A Parameter or a plain subclass as a Tensor; wrappers without memory of their own refused."""
    cls = type(tensor)
    if cls is torch.nn.Parameter:
        return tensor.detach()
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Unsupported(tensor, f"{cls.__name__} holds no plain memory: convert it first")
    return tensor.as_subclass(torch.Tensor)


def _why_not(t: torch.Tensor) -> str:
    if t.is_nested:
        return "nested (jagged) tensor cannot be carried: send a list of its parts"
    if not t.is_cpu:
        remedy = "has no data" if t.is_meta else "move it to the CPU first"
        return f"tensor on device {t.device} cannot be carried: {remedy}"
    if t.layout is not torch.strided:
        return f"{t.layout} tensor cannot be carried: make it dense (strided) first"
    return f"{t.dtype} tensor cannot be carried: not in the table of dtypes (mmlab.dtypes)"
