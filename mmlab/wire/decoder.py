"""The Decoder: frames that nobody vouches for -> a message, or one WireError.

Sizes are compared with the frames before anything is built. Tensors borrow their frame, which
they keep alive; `copy=True` gives them bytes of their own.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import torch

from mmlab.errors import WireError
from mmlab.fields.items import KwargsItem, KwargsItems
from mmlab.wire.call import EXT_ITEM, EXT_ITEMS, EXT_VALUE
from mmlab.wire.columns import unpack_item, unpack_items
from mmlab.wire.envelope import (
    ALIGN,
    LAYOUT,
    MAGIC,
    MAX_HEADER,
    SIZE,
    VERSION,
    Buffer,
    read_envelope,
)
from mmlab.wire.growth import SCAN_FROM, check_growth
from mmlab.wire.keys import check_keys
from mmlab.wire.payload import EXT_TENSOR
from mmlab.wire.quiet import quiet_frombuffer
from mmlab.wire.table import Table
from mmlab.wire.values import unpack

DEFAULT_MAX_NBYTES: Final = 16 << 30
LONGEST_ERROR: Final = 500  # characters

_AS_THEY_ARE: Final = (torch.Tensor, np.ndarray, KwargsItems, KwargsItem)
_NUMBER: Final = struct.Struct("<Q").unpack

_START: Final = MAGIC + bytes([VERSION])
_PLAIN_SIZES: Final = bytes(16)
_NOTHING: Final = memoryview(b"")

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
        if not isinstance(max_nbytes, int) or max_nbytes < 0:
            raise ValueError(f"max_nbytes is {max_nbytes!r}, wanted bytes >= 0")
        self.max_nbytes = max_nbytes
        self.copy = copy
        self._plain = min(max_nbytes, SCAN_FROM)
        wanted = object if type is None else type
        self._decode = msgspec.msgpack.Decoder(
            wanted, ext_hook=_ext_hook, dec_hook=_dec_hook if _converts(wanted) else None
        ).decode

    def decode(self, frames: Sequence[Buffer]) -> object:
        """[frame 0, payload frames ...] -> the message. Raises WireError and nothing else."""
        try:
            frame0 = frames[0]
            if (
                type(frame0) is bytes
                and len(frames) == 1
                and frame0.startswith(_START)
                and frame0[16:SIZE] == _PLAIN_SIZES
                and len(frame0) <= self._plain
                and _current.table is None
                and not frame0[6] | frame0[7]
            ):  # what `_message` would find out of a short text-only message
                return self._decode(frame0[SIZE:])
            return self._message(frames)
        except WireError as error:
            if len(f"{error}") <= LONGEST_ERROR:
                raise
            raise WireError(_short(f"{error}")) from None
        # frames come from anyone: whatever a hostile message makes a library raise is a WireError
        except Exception as error:
            raise WireError(_short(_reason(frames, error))) from error

    def _message(self, frames: Sequence[Buffer]) -> object:
        if type(frames) is not list and isinstance(frames, (bytes, bytearray, memoryview, str)):
            raise WireError("frames: got one buffer, wanted a list of frames")
        if not frames:
            raise WireError("frames: got none, wanted at least frame 0")
        frame0 = frames[0]
        frame0 = memoryview(frame0) if type(frame0) is bytes else _bytes(frame0)
        size = len(frame0)
        if size < SIZE:
            read_envelope(frame0)
        magic, version, _, reserved, _, body, table, inline = LAYOUT.unpack_from(frame0)
        if magic != MAGIC or version != VERSION or reserved:
            read_envelope(frame0)
        if not body and not table and not inline:
            body = size - SIZE
        if SCAN_FROM <= body <= MAX_HEADER:
            raw = bytes(frame0[SIZE : SIZE + body])
            check_growth(raw)
            check_keys(raw)
        before = _current.table
        if not table and not inline and len(frames) == 1:
            if size != SIZE + body or size > MAX_HEADER or size > self.max_nbytes:
                raise WireError(self._sizes(frame0, size))
            if before is None:  # no tensors, and no decode around this one
                return self._decode(frame0[SIZE:])
            made = None
        else:
            end = header = SIZE + body + table
            total = size
            views = [_NOTHING]
            if inline:
                end = (header + 63) & -ALIGN
                views[0] = frame0[end:]
            for frame in frames[1:]:
                view = memoryview(frame) if type(frame) is bytes else _bytes(frame)
                views.append(view)
                total += len(view)
            if header > MAX_HEADER or end + inline != size or total > self.max_nbytes:
                raise WireError(self._sizes(frame0, total))
            made = None
            if len(views) <= 2 and body and not self.copy:
                made = Table.of_one(frame0, SIZE + body, header, views)
            if made is None:
                made = Table(frame0, SIZE + body, header, views, self.copy, body)
        _current.table = made
        try:
            return self._decode(frame0[SIZE : SIZE + body])
        finally:
            _current.table = before

    def _sizes(self, frame0: memoryview, total: int) -> str:
        envelope, size = read_envelope(frame0), len(frame0)
        if total > self.max_nbytes:
            return f"message has {total} B, at most {self.max_nbytes} B (max_nbytes) are taken"
        return (
            f"frame 0 has {size} B, its envelope declares body {envelope.body} B, "
            f"table {envelope.table} B, inline payload {envelope.inline} B "
            f"(body and table at most {MAX_HEADER} B): it is damaged or cut short"
        )


def _bytes(frame: Buffer) -> memoryview:
    view = memoryview(frame)
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def _ext_hook(code: int, data: memoryview) -> object:
    table = _current.table
    if code == EXT_TENSOR:
        try:
            (number,) = _NUMBER(data)
            return table.made[number]  # type: ignore[union-attr]
        except KeyError:
            return table.refer(number)  # type: ignore[union-attr]
        except AttributeError:
            raise WireError("tensor reference in a message without a tensor table") from None
        except struct.error:
            raise WireError(f"tensor reference of {len(data)} B, wanted 8") from None
    if table is None:
        table = Table(b"", 0, 0, [_NOTHING], False, 0)
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


def _converts(wanted: object) -> bool:
    """Whether a type has parts that arrive as another type; msgspec alone checks the others."""
    todo: list[object] = [msgspec.inspect.type_info(wanted)]
    seen: set[int] = set()
    for info in todo:
        if isinstance(info, msgspec.inspect.CustomType) and info.cls not in _AS_THEY_ARE:
            return True
        if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(info) not in seen:
            seen.add(id(info))
            for name in info.__struct_fields__:
                part = getattr(info, name)
                todo += part if type(part) is tuple else (part,)
    return False


def _short(text: str) -> str:
    """An error names keys and values of the message, which are as long as its sender likes."""
    return text if len(text) <= LONGEST_ERROR else f"{text[:400]} ... {text[-90:]}"


def _reason(frames: object, error: Exception) -> str:
    if not isinstance(frames, Sequence) or isinstance(frames, str):
        return f"frames: got {type(frames).__name__}, wanted a list of frames"
    if not frames:
        return "frames: got none, wanted at least frame 0"
    for i, frame in enumerate(frames):
        try:
            memoryview(frame)
        except TypeError:
            return f"frame {i}: got {type(frame).__name__}, wanted bytes or another buffer"
    if isinstance(error, RecursionError):
        return "frame 0: nested too deep"
    if isinstance(error, msgspec.ValidationError):
        return f"frame 0: the body is no value of the decoder's type: {error}"
    return f"frame 0: {error}" if f"{error}" else f"frame 0: {type(error).__name__}"
