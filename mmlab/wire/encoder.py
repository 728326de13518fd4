"""The Encoder: any message -> frame 0 and payload frames.

All state of a call lives in an object of that call, so that threads may share an Encoder and an
encode may run inside another one. A message without tensors is plain msgpack behind an envelope.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np
import torch

from mmlab.dtypes import CODE_OF_TORCH
from mmlab.errors import EncodeError
from mmlab.fields.items import KwargsItem, KwargsItems
from mmlab.wire.columns import pack_item, pack_items
from mmlab.wire.direct import lay_out
from mmlab.wire.envelope import (
    ALIGN,
    LAYOUT,
    MAGIC,
    MAX_HEADER,
    PLAIN,
    PLAIN_0,
    SIZE,
    VERSION,
    Buffer,
)
from mmlab.wire.payload import (
    FEW_REFERENCES,
    FIRST,
    REFERENCES,
    Ext,
    Payload,
    shape_of,
    tensor_piece,
)
from mmlab.wire.piece import Piece, own_view
from mmlab.wire.record import pack_record, pack_table
from mmlab.wire.sink import PAD, FrameSink, PayloadSink, Place, packed
from mmlab.wire.unsupported import Unsupported, locate, misfit
from mmlab.wire.values import encode_plain, pack

T = TypeVar("T")
R = TypeVar("R")

EXT_VALUE: Final = 2  # msgpack of a tagged value (mmlab.wire.values)
EXT_ITEMS: Final = 3  # msgpack of all items of a request (mmlab.wire.columns)
EXT_ITEM: Final = 4  # msgpack of one item

_MAX_BODY: Final = MAX_HEADER - SIZE

_encode = msgspec.msgpack.encode
_encode_text = msgspec.msgpack.Encoder().encode  # raises on the first tensor
_MSGSPEC_RAISES: Final = (
    *(msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RuntimeError, struct.error),
)


class Encoder:
    """Encodes messages; thread-safe and reentrant.

    `size_threshold` (bytes): smaller payloads travel inside frame 0; None puts all of it there.
    """

    def __init__(self, size_threshold: int | None = 256) -> None:
        if size_threshold is not None and size_threshold < 0:
            raise ValueError(f"size_threshold is {size_threshold}, wanted 0 or more, or None")
        self.size_threshold = size_threshold
        self._text = False  # a guess that only costs time where it is wrong

    def encode(
        self, obj: object, kind: int = 0, request_id: int = 0, sink: PayloadSink | None = None
    ) -> list[Buffer]:
        """`obj` -> [frame 0, payload frames ...]; the frames borrow the tensors' memory.

        Raises EncodeError naming path and type where something cannot be carried; nothing of the
        message exists then. `sink` takes the payload where it is not to go into frames.
        """
        if self._text:  # the last message had no tensors: most often this one has none either
            try:
                body = _encode_text(obj)
                if len(body) <= _MAX_BODY:
                    if not kind and not request_id:
                        return [PLAIN_0 + body]
                    return [PLAIN.pack(MAGIC, VERSION, kind, 0, request_id) + body]
            except _MSGSPEC_RAISES:
                self._text = False
        call = _Call()
        try:
            body = _encode(obj, enc_hook=call.hook)
            found = call.found
            if found is None:
                if len(body) > _MAX_BODY:
                    raise EncodeError(_too_long(len(body)))
                self._text = True
                return [PLAIN.pack(MAGIC, VERSION, kind, 0, request_id) + body]
            if sink is None:
                one: object = found
                if type(found) is Payload and len(found.values) == 1:
                    one = found.values[0]
                if type(one) is torch.Tensor:
                    return self._finish_one(body, one, kind, request_id)
                if self.size_threshold is not None and type(found) is Payload:
                    made = lay_out(found.values, self.size_threshold)
                    if made is not None:
                        table, inline, frames = made
                        header = _envelope(kind, request_id, body, table, len(inline))
                        if inline:
                            header = b"".join((header, PAD[len(header) % ALIGN], inline))
                        return [header, *frames]
                sink = FrameSink()
            return self._finish(body, call.start().pieces(), kind, request_id, sink)
        except Unsupported as error:
            raise EncodeError(_message(obj, error)) from None
        except EncodeError:
            raise
        except struct.error as error:
            raise EncodeError(
                f"kind {kind!r}, request_id {request_id!r}: wanted 0 to 255 and 0 to 2**64 - 1"
            ) from error
        except _MSGSPEC_RAISES as error:
            raise EncodeError(_reason(obj, error)) from error

    def _finish(
        self, body: bytes, pieces: list[Piece], kind: int, request_id: int, sink: PayloadSink
    ) -> list[Buffer]:
        limit = self.size_threshold
        places: list[Place] = []
        inline: list[Piece] = []
        outside: list[int] = []
        size = 0
        for i, piece in enumerate(pieces):
            nbytes = piece.nbytes
            places.append((0, size))
            if not nbytes:
                continue
            if limit is None or nbytes < limit:
                inline.append(piece)
                size += (nbytes + 63) & -ALIGN
            else:
                outside.append(i)
        if len(outside) == len(pieces):
            places = sink.place(pieces)
        elif outside:
            chosen = sink.place([pieces[i] for i in outside])
            for i, place in zip(outside, chosen, strict=True):
                places[i] = place
        table = pack_table(pieces, places)
        header = _envelope(kind, request_id, body, table, size)
        if not size:
            return [header, *sink.frames]
        return [b"".join((header, PAD[len(header) % ALIGN], packed(inline, size))), *sink.frames]

    def _finish_one(self, body: bytes, t: torch.Tensor, kind: int, request_id: int) -> list[Buffer]:
        """The message of exactly one tensor, which is the most common one."""
        limit = self.size_threshold
        if limit is not None and t.layout is torch.strided and t.nbytes >= limit:
            view = own_view(t)
            if view:
                table = pack_record(CODE_OF_TORCH[t.dtype], t.shape, 1, 1, 0)
                return [_envelope(kind, request_id, body, table, 0), view]
        piece = tensor_piece(t, t.dtype, shape_of(t))
        nbytes = piece.nbytes
        if nbytes and (limit is None or nbytes < limit):
            table = pack_record(piece.code, piece.shape, 1, 0, 0)
            header = _envelope(kind, request_id, body, table, (nbytes + 63) & -ALIGN)
            data, pad = piece.view(), PAD[len(header) % ALIGN]
            return [b"".join((header, pad, data, PAD[nbytes % ALIGN]))]
        return self._finish(body, [piece], kind, request_id, FrameSink())


def _envelope(kind: int, request_id: int, body: bytes, table: bytes, inline: int) -> bytes:
    """Envelope, body and table."""
    nbody, ntable = len(body), len(table)
    if SIZE + nbody + ntable > MAX_HEADER:
        raise EncodeError(_too_long(SIZE + nbody + ntable))
    head = LAYOUT.pack(MAGIC, VERSION, kind, 0, request_id, nbody, ntable, inline)
    return b"".join((head, body, table))


class _Call:
    """One encode: what it has found so far that msgspec does not know."""

    # nothing, one tensor, or all that there is (a default of the class: no message, no attribute)
    found: torch.Tensor | Payload | None = None

    def start(self) -> Payload:
        """The payload, with the tensor found first as its number 0."""
        found = self.found
        if isinstance(found, Payload):
            return found
        payload = self.found = Payload()
        if found is not None:
            payload.number(found)
        return payload

    def hook(self, value: object) -> Ext:
        """What msgspec does not know."""
        found = self.found
        if type(value) is torch.Tensor:
            if found is None:
                self.found = value
                return FIRST
            payload = found if type(found) is Payload else self.start()
            new = len(payload.values)
            number = payload.memo.setdefault(id(value), new)
            if number == new:
                payload.values.append(value)
            if number < FEW_REFERENCES:
                return REFERENCES[number]
            return payload.reference(value)
        payload = found if type(found) is Payload else self.start()
        if isinstance(value, (torch.Tensor, np.ndarray)):
            return payload.reference(value)
        if isinstance(value, KwargsItems):
            if type(value) is not KwargsItems or value.foreign is not None:
                raise Unsupported(value, value.foreign or _subclass(type(value), KwargsItems))
            return Ext(EXT_ITEMS, _inside(value, pack_items, payload))
        if isinstance(value, KwargsItem):
            if type(value) is not KwargsItem:
                raise Unsupported(value, _subclass(type(value), KwargsItem))
            return Ext(EXT_ITEM, _inside(value, pack_item, payload))
        return Ext(EXT_VALUE, encode_plain(_inside(value, pack, payload)))


def _inside(value: T, pack_value: Callable[[T, Payload], R], payload: Payload) -> R:
    """Pack; what fails inside `value` has a path that begins at it."""
    try:
        return pack_value(value, payload)
    except Unsupported as error:
        error.owner = value
        raise


def _subclass(kind: type, base: type) -> str:
    return f"{kind.__name__} is a subclass of {base.__name__}: its own fields would be lost"


def _too_long(nbytes: int) -> str:
    return (
        f"message body and tensor table are {nbytes} B, at most {MAX_HEADER - SIZE} B: "
        "send long data as tensors or numpy arrays"
    )


def _reason(obj: object, error: Exception) -> str:
    """Of an error of msgspec's, which names no path: find what it can be about."""
    if isinstance(error, RecursionError):
        return f"{type(obj).__name__}: nested too deep, or a container holds itself"
    found = misfit(obj)
    if found is None:
        return f"{type(obj).__name__}: {error}"
    return f"{type(obj).__name__}{found[0]}: {found[1]}"


def _message(obj: object, error: Unsupported) -> str:
    path = locate(obj, error.value if error.owner is None else error.owner) + error.path
    return f"{type(obj).__name__}{path}: {error.reason}"
