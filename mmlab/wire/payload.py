"""Payload: the tensors of one message, collected while its body is encoded.

The body refers to a tensor by its number alone. What lies where is decided afterwards, for all of
them at once: consecutive small tensors of one dtype and shape become one record of the table and
one `torch.stack`; a large tensor is a record of its own, sent from where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from struct import Struct
from typing import Final

import msgspec
import numpy as np
import torch

from mmlab.dtypes import CODE_OF_NUMPY, CODE_OF_TORCH
from mmlab.wire.piece import (
    Piece,
    array_view,
    dense_address,
    dense_view,
    own_view,
    parts_view,
)
from mmlab.wire.unsupported import Unsupported

PACK_LIMIT: Final = (
    8192  # smaller tensors are copied next to each other; larger ones are not copied
)
MAX_PACKED: Final = 16 << 20  # bytes of small tensors in one frame: keeping one pins no more
MAX_NDIM: Final = 64
MAX_SPAN: Final = 1 << 62  # bytes an entry may span, zero extents counted as one: torch's strides
RUN_NDIM: Final = 5  # of tensors in a run: torch allocates more for each tensor that has more
EXT_TENSOR: Final = 1  # extension type of a reference: number u64
WIDE: Final = 1 << 63  # added to numbers inside values, where msgpack writes small ones in 1 byte
# A tensor object needs some 700 bytes. At 10 bytes of body for each reference, no message can make
# more of them than the decoder's bound allows (`growth`).

Ext = msgspec.msgpack.Ext
_NUMBER: Final = Struct("<Q").pack
FEW_REFERENCES: Final = 1024
REFERENCES: Final = [Ext(EXT_TENSOR, _NUMBER(n)) for n in range(FEW_REFERENCES)]
FIRST: Final = REFERENCES[0]  # what the first tensor of a message is referred to by


class Payload:
    """The tensors, arrays and joined parts of a message by number. One object per encode call."""

    __slots__ = ("_keep", "memo", "values")

    def __init__(self) -> None:
        self.values: list[torch.Tensor | np.ndarray | Piece] = []
        self.memo: dict[int, int] = {}  # id -> number
        self._keep: list[object] = []  # what `memo` knows by id and `values` does not hold

    def number(self, value: torch.Tensor | np.ndarray) -> int:
        """Register a tensor or array and give its number; the same object is sent once."""
        values = self.values
        new = len(values)
        number = self.memo.setdefault(id(value), new)
        if number == new:
            if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor:
                self._keep.append(value)
                value = plain(value)
            values.append(value)
        return number

    def reference(self, value: torch.Tensor | np.ndarray) -> Ext:
        """The same, as the body refers to it outside kwargs items."""
        number = self.number(value)
        return REFERENCES[number] if number < FEW_REFERENCES else Ext(EXT_TENSOR, _NUMBER(number))

    def number_of_parts(self, tensors: Sequence[torch.Tensor], shape: Sequence[int]) -> int:
        """One tensor of `shape` whose bytes are those of `tensors` behind each other.

        They are strided, on the CPU and of one dtype.
        """
        check(tensors[0])
        nbytes = sum([t.nbytes for t in tensors])
        data = parts_view(tensors, nbytes) if nbytes else None
        self.values.append(Piece(CODE_OF_TORCH[tensors[0].dtype], shape, nbytes, data))
        return len(self.values) - 1

    def pieces(self) -> list[Piece]:
        """The records of the table, in the order of the numbers."""
        try:
            return self._pieces()
        except RuntimeError:  # a nested tensor has no shape
            self.explain()
            raise

    def explain(self) -> None:
        """After torch has failed on the payload: Unsupported if one of its tensors is why."""
        for value in self.values:
            if isinstance(value, torch.Tensor):
                check(value)

    def _pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        rows: list[torch.Tensor] = []  # of the run of small tensors that may go on
        last: torch.dtype | None = None
        shape = torch.Size()
        for value in self.values:
            if type(value) is torch.Tensor:
                dtype = value.dtype
                if dtype is last and value.shape == shape and value.is_cpu:
                    rows.append(value)
                    continue
                if last is not None:
                    _end_run(pieces, rows)
                    last = None
                shape = value.shape
                piece = tensor_piece(value, dtype, shape)
                if piece.rows is not None and len(shape) <= RUN_NDIM:
                    last, rows = dtype, piece.rows
                pieces.append(piece)
            else:
                if last is not None:
                    _end_run(pieces, rows)
                    last = None
                pieces.append(value if type(value) is Piece else _array_piece(value))
        if last is not None:
            _end_run(pieces, rows)
        return pieces


def _end_run(pieces: list[Piece], rows: list[torch.Tensor]) -> None:
    """`rows` are all of the last piece; a long run becomes several, each of MAX_PACKED at most."""
    count = len(rows)
    if count == 1:
        return
    first = pieces.pop()
    each = first.nbytes
    most = max(MAX_PACKED // each, 1)
    for begin in range(0, count, most):
        part = rows if count <= most else rows[begin : begin + most]
        piece = Piece(first.code, first.shape, each * len(part), rows=part)
        piece.count = len(part)
        pieces.append(piece)


def tensor_piece(t: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> Piece:
    """The record of one tensor. Unsupported, with its reason, if it cannot be carried."""
    code = CODE_OF_TORCH.get(dtype)
    if code is None or not t.is_cpu or t.layout is not torch.strided or len(shape) > MAX_NDIM:
        check(t)
        raise AssertionError("check() let an unknown tensor pass")
    nbytes = t.nbytes
    if nbytes >= PACK_LIMIT:
        view = own_view(t, nbytes)
        if view is None:
            view, t = dense_view(t)
        return Piece(code, shape, nbytes, view, t)
    if nbytes:
        return Piece(code, shape, nbytes, None, None, [t], dense_address(t))
    check_span(t)
    return Piece(code, shape, 0)


def _array_piece(array: torch.Tensor | np.ndarray | Piece) -> Piece:
    """Any byte order and strides, numbers and booleans only."""
    assert isinstance(array, np.ndarray)
    code = CODE_OF_NUMPY.get(array.dtype)
    if type(array) not in (np.ndarray, np.memmap):
        kind = f"{type(array).__name__} (a subclass of numpy.ndarray)"
        raise Unsupported(array, f"{kind} cannot be carried: wanted a plain array")
    if code is None:
        raise Unsupported(
            array, f"numpy array of {array.dtype} cannot be carried: wanted numbers or booleans"
        )
    if not array.nbytes:
        check_span(array)
        return Piece(code, array.shape, 0)
    return Piece(code, array.shape, array.nbytes, array_view(array))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A Parameter or a plain subclass as a Tensor; wrappers without memory of their own refused."""
    cls = type(tensor)
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Unsupported(tensor, f"{cls.__name__} holds no plain memory: convert it first")
    t = tensor.detach() if cls is torch.nn.Parameter else tensor.as_subclass(torch.Tensor)
    check(t, tensor)
    return t


def fits(shape: Sequence[int], itemsize: int) -> bool:
    """Whether a tensor of this shape, empty or not, is one that a table may describe."""
    return len(shape) <= MAX_NDIM and prod([n or 1 for n in shape]) * itemsize <= MAX_SPAN


def check_span(empty: torch.Tensor | np.ndarray) -> None:
    """Raise Unsupported if an empty tensor or array claims extents that no message may."""
    if not fits(empty.shape, empty.dtype.itemsize):
        reason = f"empty, and of shape {tuple(empty.shape)}: cannot be carried beyond 2**62 bytes"
        raise Unsupported(empty, reason)


def check(t: torch.Tensor, original: torch.Tensor | None = None) -> None:
    """Raise Unsupported, saying why and what to do about it, if a tensor cannot be carried."""
    if t.is_nested:
        reason = "nested (jagged) tensor cannot be carried: send a list of its parts"
    elif not t.is_cpu:
        remedy = "it has no data to send" if t.is_meta else "move it to the CPU first"
        reason = f"tensor on device {t.device} cannot be carried: {remedy}"
    elif t.layout is not torch.strided:
        reason = f"{t.layout} tensor cannot be carried: make it dense (strided) first"
    elif t.dtype not in CODE_OF_TORCH:
        remedy = "dequantize() it first" if t.is_quantized else "convert it to a plain dtype first"
        reason = f"{t.dtype} tensor cannot be carried: {remedy}"
    elif t.ndim > MAX_NDIM:
        reason = f"tensor of {t.ndim} dimensions cannot be carried: at most {MAX_NDIM}"
    else:
        return
    raise Unsupported(t if original is None else original, reason)
