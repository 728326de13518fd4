"""The Encoder: any message -> frame 0 and payload frames.

All state of a call lives in an object of that call, so that threads may share an Encoder and an
encode may run inside another one. A message without tensors is plain msgpack behind an envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np
import torch

from mmlab.errors import EncodeError
from mmlab.fields.items import KwargsItem, KwargsItems
from mmlab.wire.columns import pack_item, pack_items
from mmlab.wire.envelope import MAX_HEADER, SIZE, Buffer, pack_envelope, pack_plain
from mmlab.wire.payload import Payload, Ref
from mmlab.wire.sink import FrameSink, PayloadSink, Place, aligned, clear_gap, fresh
from mmlab.wire.table import pack_table
from mmlab.wire.unsupported import Unsupported, locate
from mmlab.wire.values import encode_plain, pack

T = TypeVar("T")
R = TypeVar("R")

EXT_TENSOR: Final = 1  # entry u32 [, row u32]
EXT_VALUE: Final = 2  # msgpack of a tagged value (mmlab.wire.values)
EXT_ITEMS: Final = 3  # msgpack of all items of a request (mmlab.wire.columns)
EXT_ITEM: Final = 4  # msgpack of one item


class Encoder:
    """Encodes messages; thread-safe and reentrant.

    `size_threshold` (bytes): smaller payloads travel inside frame 0; None puts all of it there.
    """

    def __init__(self, size_threshold: int | None = 256) -> None:
        if size_threshold is not None and size_threshold < 0:
            raise ValueError(f"size_threshold is {size_threshold}, wanted 0 or more, or None")
        self.size_threshold = size_threshold

    def encode(
        self, obj: object, *, kind: int = 0, request_id: int = 0, sink: PayloadSink | None = None
    ) -> list[Buffer]:
        """`obj` -> [frame 0, payload frames ...]; the frames borrow the tensors' memory.

        Raises EncodeError naming path and type where something cannot be carried; nothing of the
        message exists then. `sink` takes the payload where it is not to go into frames.
        """
        call = _Call()
        try:
            body = msgspec.msgpack.encode(obj, enc_hook=call.hook)
        except Unsupported as error:
            raise EncodeError(_message(obj, error)) from None
        except (TypeError, ValueError, OverflowError, RecursionError, RuntimeError) as error:
            raise EncodeError(f"message of type {type(obj).__name__}: {error}") from error
        payload = call.payload
        if payload is None:
            if len(body) > MAX_HEADER - SIZE:
                raise EncodeError(_too_long(len(body)))
            return [pack_plain(kind, request_id, len(body)) + body]
        return self._finish(body, payload, kind, request_id, FrameSink() if sink is None else sink)

    def _finish(
        self, body: bytes, payload: Payload, kind: int, request_id: int, sink: PayloadSink
    ) -> list[Buffer]:
        limit = self.size_threshold
        inline: list[int] = []
        outside: list[int] = []
        for i, entry in enumerate(payload.entries):
            if entry.piece is not None:
                small = limit is None or entry.piece.nbytes < limit
                (inline if small else outside).append(i)
        places = [Place(0, 0)] * len(payload.entries)
        size = 0
        for i in inline:
            places[i] = Place(0, size)
            size += aligned(_piece(payload, i))
        if outside:
            placed = sink.place([p for i in outside if (p := payload.entries[i].piece) is not None])
            for i, place in zip(outside, placed, strict=True):
                places[i] = place
        table = pack_table(payload.entries, places)
        if SIZE + len(body) + len(table) > MAX_HEADER:
            raise EncodeError(_too_long(len(body) + len(table)))
        envelope = pack_envelope(kind, request_id, len(body), len(table), size)
        if not size:
            return [b"".join((envelope, body, table)), *sink.frames]
        start = aligned(SIZE + len(body) + len(table))
        out, address = fresh(start + size)
        head = b"".join((envelope, body, table))
        out[: len(head)] = head
        clear_gap(out, len(head))
        for i in inline:
            piece = payload.entries[i].piece
            assert piece is not None
            at = start + places[i].offset
            piece.write(out, address, at)
            clear_gap(out, at + piece.nbytes)
        return [out, *sink.frames]


class _Call:
    """One encode: its payload, made when the first tensor appears."""

    __slots__ = ("payload",)

    def __init__(self) -> None:
        self.payload: Payload | None = None

    def hook(self, value: object) -> msgspec.msgpack.Ext:
        """What msgspec does not know."""
        payload = self.payload
        if payload is None:
            payload = self.payload = Payload()
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return _ref(payload.add(value))
        if isinstance(value, np.ndarray):
            return _ref(payload.add_array(value))
        if isinstance(value, KwargsItems):
            foreign = value.foreign
            if kind is not KwargsItems or foreign is not None:
                raise Unsupported(value, foreign or _subclass(kind, KwargsItems))
            return msgspec.msgpack.Ext(EXT_ITEMS, _inside(value, pack_items, payload))
        if isinstance(value, KwargsItem):
            if kind is not KwargsItem:
                raise Unsupported(value, _subclass(kind, KwargsItem))
            return msgspec.msgpack.Ext(EXT_ITEM, _inside(value, pack_item, payload))
        return msgspec.msgpack.Ext(EXT_VALUE, encode_plain(_inside(value, pack, payload)))


def _inside(value: T, pack_value: Callable[[T, Payload], R], payload: Payload) -> R:
    """Pack; what fails inside `value` has a path that begins at it."""
    try:
        return pack_value(value, payload)
    except Unsupported as error:
        error.owner = value
        raise


def _ref(ref: Ref) -> msgspec.msgpack.Ext:
    raw = ref[0].to_bytes(4, "little")
    return msgspec.msgpack.Ext(
        EXT_TENSOR, raw if len(ref) == 1 else raw + ref[1].to_bytes(4, "little")
    )


def _piece(payload: Payload, i: int) -> int:
    piece = payload.entries[i].piece
    return 0 if piece is None else piece.nbytes


def _subclass(kind: type, base: type) -> str:
    return f"{kind.__name__} is a subclass of {base.__name__}: its own fields would be lost"


def _too_long(nbytes: int) -> str:
    return (
        f"message body and tensor table are {nbytes} B, at most {MAX_HEADER - SIZE} B: "
        "send long data as tensors or numpy arrays"
    )


def _message(obj: object, error: Unsupported) -> str:
    path = locate(obj, error.value if error.owner is None else error.owner) + error.path
    return f"{type(obj).__name__}{path}: {error.reason}"
