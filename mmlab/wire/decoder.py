"""The Decoder: frames that nobody vouches for -> a message, or one WireError.

Sizes are compared with the frames before anything is built. Tensors borrow their frame, which
they keep alive; `copy=True` gives them bytes of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import torch

from mmlab.errors import WireError
from mmlab.wire.columns import unpack_item, unpack_items
from mmlab.wire.encoder import EXT_ITEM, EXT_ITEMS, EXT_TENSOR, EXT_VALUE
from mmlab.wire.envelope import ALIGN, MAX_HEADER, SIZE, Buffer, Envelope, read_envelope
from mmlab.wire.quiet import quiet_frombuffer
from mmlab.wire.table import Table
from mmlab.wire.values import unpack

DEFAULT_MAX_NBYTES: Final = 16 << 30
_REF_BYTES: Final = 10  # of one tensor reference in the body
_SCAN_FROM: Final = 1 << 16  # bodies this long are scanned before they are read
_MAP_BYTES: Final = bytes(range(0x80, 0x90))  # a small msgpack map costs 1 byte and becomes 232
_MAX_GROWTH: Final = 80  # bytes of Python objects per byte of body

_decode_value = msgspec.msgpack.Decoder().decode


class _Current(threading.local):
    """The table of the decode that runs in this thread; a nested decode saves and restores it."""

    table: Table | None = None


_current = _Current()
quiet_frombuffer()


class Decoder:
    """Decodes messages; thread-safe and reentrant.

    `type`: a Struct, dataclass, KwargsItems, torch.Tensor ... (msgspec's rules), or nothing for
    plain Python values. `max_nbytes`: of all frames together. `copy`: tensors own their bytes.
    """

    def __init__(
        self, type: object = None, max_nbytes: int = DEFAULT_MAX_NBYTES, copy: bool = False
    ) -> None:
        self.max_nbytes = max_nbytes
        self.copy = copy
        self._decode = msgspec.msgpack.Decoder(
            object if type is None else type,
            ext_hook=_ext_hook,
            dec_hook=_dec_hook,
        ).decode

    def decode(self, frames: Sequence[Buffer]) -> object:
        """[frame 0, payload frames ...] -> the message. Raises WireError and nothing else."""
        try:
            return self._message(frames)
        except WireError:
            raise
        # frames come from anyone: whatever a hostile message makes a library raise is a WireError
        except Exception as error:
            raise WireError(f"frame 0: {_reason(error)}") from error

    def _message(self, frames: Sequence[Buffer]) -> object:
        if isinstance(frames, (bytes, bytearray, memoryview, str)) or not len(frames):
            raise WireError("frames: got no list of frames, wanted at least frame 0")
        frame0 = frames[0]
        envelope = read_envelope(frame0)
        view = memoryview(frame0)
        if len(frames) == 1 and not envelope.table and not envelope.inline:
            end = SIZE + envelope.body
            size = view.nbytes
            if size != end or size > MAX_HEADER or size > self.max_nbytes:
                raise WireError(self._sizes(envelope, size, size))
            table = None
        else:
            views = [memoryview(frame) for frame in frames]
            table = self._table(envelope, views)
            end = SIZE + envelope.body
        body = view[SIZE:end]
        if envelope.body >= _SCAN_FROM:
            _check_growth(bytes(body))
        before = _current.table
        _current.table = table
        try:
            return self._decode(body)
        finally:
            _current.table = before

    def _table(self, envelope: Envelope, views: list[memoryview]) -> Table:
        for i, view in enumerate(views):
            if view.ndim != 1 or view.itemsize != 1:
                views[i] = view.cast("B")
        header = SIZE + envelope.body + envelope.table
        start = -(-header // ALIGN) * ALIGN if envelope.inline else header
        size, total = len(views[0]), sum(map(len, views))
        if header > MAX_HEADER or start + envelope.inline != size or total > self.max_nbytes:
            raise WireError(self._sizes(envelope, size, total))
        raw = views[0][SIZE + envelope.body : header]
        return Table(raw, [views[0][start:], *views[1:]], self.copy, envelope.body // _REF_BYTES)

    def _sizes(self, envelope: Envelope, size: int, total: int) -> str:
        if total > self.max_nbytes:
            return f"message has {total} B, at most {self.max_nbytes} B (max_nbytes) are taken"
        return (
            f"frame 0 has {size} B, its envelope declares body {envelope.body} B, "
            f"table {envelope.table} B, inline payload {envelope.inline} B "
            f"(body and table at most {MAX_HEADER} B)"
        )


def _ext_hook(code: int, data: memoryview) -> object:
    table = _current.table
    if code == EXT_TENSOR:
        n = len(data)
        if n == 4:
            ref: tuple[int, ...] = (int.from_bytes(data, "little"),)
        elif n == 8:
            ref = (int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little"))
        else:
            raise WireError(f"tensor reference of {n} B, wanted 4 or 8")
        if table is None:
            raise WireError("tensor reference in a message without a tensor table")
        return table.get(ref)
    if table is None:
        table = Table(memoryview(b""), [memoryview(b"")], False, 0)
    if code == EXT_VALUE:
        return unpack(_decode_value(data), table)
    if code == EXT_ITEMS:
        return unpack_items(data, table)
    if code == EXT_ITEM:
        return unpack_item(data, table)
    raise WireError(f"extension type {code}, wanted 1 to 4")


def _dec_hook(wanted: type, value: object) -> object:
    if isinstance(value, wanted):
        return value
    if wanted is torch.Size and isinstance(value, list):
        return torch.Size(value)
    if wanted is np.generic and isinstance(value, (bool, int, float)):
        return np.asarray(value)[()]
    raise WireError(f"got {type(value).__name__}, wanted {wanted.__name__}")


def _check_growth(body: bytes) -> None:
    """Small maps grow most when they become dicts; refuse bodies made of little else."""
    maps = len(body) - len(body.translate(None, _MAP_BYTES))
    if maps * 232 + len(body) * 8 > len(body) * _MAX_GROWTH:
        raise WireError(
            f"frame 0: up to {maps} maps in {len(body)} B would need more than "
            f"{_MAX_GROWTH} times their size"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return f"{error}" or type(error).__name__
