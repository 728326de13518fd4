"""The Encoder: any message -> frame 0 and payload frames.

All state of a call lives in an object of that call, so that threads may share an Encoder and an
encode may run inside another one. A message without tensors is plain msgpack behind an envelope.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ctypes import string_at
from typing import Final

import msgspec
import torch

from mmlab.dtypes import CODE_OF_TORCH
from mmlab.errors import EncodeError, TransportError, WireError
from mmlab.wire.call import Call
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
from mmlab.wire.growth import SCAN_FROM, check_growth
from mmlab.wire.keys import check_keys
from mmlab.wire.payload import MAX_NDIM, Payload, tensor_piece
from mmlab.wire.piece import Piece, dense_address, own_view
from mmlab.wire.record import pack_record, pack_table
from mmlab.wire.sink import PAD, FrameSink, PayloadSink, Place, packed
from mmlab.wire.unsupported import Unsupported, locate, misfit

_MAX_BODY: Final = MAX_HEADER - SIZE

_encode = msgspec.msgpack.encode
_encode_text = msgspec.msgpack.Encoder().encode  # raises on the first tensor
_MSGSPEC_RAISES: Final = (
    *(msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RuntimeError, struct.error),
)


class Encoder:
    """Encodes messages; thread-safe and reentrant.

    What msgspec itself writes as it stands (its `Ext` and `Raw`) is not looked into.
    `size_threshold` (bytes): smaller payloads travel inside frame 0; None puts all of it there.
    """

    def __init__(self, size_threshold: int | None = 256) -> None:
        if size_threshold is not None and not (
            isinstance(size_threshold, int) and size_threshold >= 0
        ):
            raise ValueError(f"size_threshold is {size_threshold!r}, wanted bytes >= 0, or None")
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
                if len(body) >= SCAN_FROM:
                    _check_body(body)
                if kind == 0 and request_id == 0:
                    return [PLAIN_0 + body]
                return [PLAIN.pack(MAGIC, VERSION, kind, 0, request_id) + body]
            except _MSGSPEC_RAISES:
                self._text = False
        call = Call()
        try:
            body = _encode(obj, enc_hook=call.hook)
            if len(body) >= SCAN_FROM:
                _check_body(body)
            found = call.found
            if found is None:
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
        except (Unsupported, struct.error, _SinkFailed, *_MSGSPEC_RAISES) as error:
            raise _meant(obj, call, error, kind, request_id) from error

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
            places = list(_placed(sink, pieces))
        elif outside:
            chosen = _placed(sink, [pieces[i] for i in outside])
            for i, place in zip(outside, chosen, strict=True):
                places[i] = place
        table = pack_table(pieces, places)
        header = _envelope(kind, request_id, body, table, size)
        if not size:
            return [header, *sink.frames]
        return [b"".join((header, PAD[len(header) % ALIGN], packed(inline, size))), *sink.frames]

    def _finish_one(self, body: bytes, t: torch.Tensor, kind: int, request_id: int) -> list[Buffer]:
        """The message of exactly one tensor, which is the most common one."""
        limit, nbytes = self.size_threshold, t.nbytes
        if limit is not None and nbytes >= limit:
            view = own_view(t, nbytes)
            if view:
                table = pack_record(CODE_OF_TORCH[t.dtype], t.shape, 1, 1, 0)
                return [_envelope(kind, request_id, body, table, 0), view]
        elif nbytes and t.layout is torch.strided and t.is_cpu and (address := dense_address(t)):
            code, shape = CODE_OF_TORCH.get(t.dtype), t.shape
            if code is not None and len(shape) <= MAX_NDIM:
                table = pack_record(code, shape, 1, 0, 0)
                header = _envelope(kind, request_id, body, table, (nbytes + 63) & -ALIGN)
                data = string_at(address, nbytes)
                return [b"".join((header, PAD[len(header) % ALIGN], data, PAD[nbytes % ALIGN]))]
        piece = tensor_piece(t, t.dtype, t.shape)
        return self._finish(body, [piece], kind, request_id, FrameSink())


def _check_body(body: bytes) -> None:
    """EncodeError for a long body that a decoder would refuse."""
    if len(body) > _MAX_BODY:
        raise EncodeError(_too_long(len(body)))
    try:
        check_growth(body)
        check_keys(body)
    except WireError as error:
        raise EncodeError(f"{error}") from None


def _placed(sink: PayloadSink, pieces: list[Piece]) -> Sequence[Place]:
    """What the sink says; its own errors are kept apart from those of a message."""
    if type(sink) is FrameSink:
        return sink.place(pieces)
    try:
        places = sink.place(pieces)
    except (Unsupported, EncodeError):
        raise
    except _MSGSPEC_RAISES as error:
        raise _SinkFailed(error) from error
    if len(places) != len(pieces):
        kind = type(sink).__name__
        raise _SinkFailed(TransportError(f"{kind}: {len(places)} places, {len(pieces)} pieces"))
    return places


class _SinkFailed(Exception):
    """A sink has raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _envelope(kind: int, request_id: int, body: bytes, table: bytes, inline: int) -> bytes:
    """Envelope, body and table."""
    nbody, ntable = len(body), len(table)
    if SIZE + nbody + ntable > MAX_HEADER:
        raise EncodeError(_too_long(SIZE + nbody + ntable))
    head = LAYOUT.pack(MAGIC, VERSION, kind, 0, request_id, nbody, ntable, inline)
    return b"".join((head, body, table))


def _meant(
    obj: object, call: Call, error: Exception, kind: object, request_id: object
) -> Exception:
    """The error to raise for one that an encode has ended with."""
    if not isinstance(error, (Unsupported, EncodeError)) and call.found is not None:
        try:
            call.start().explain()  # what torch says of a tensor names neither it nor its place
        except Unsupported as found:
            error = found
    if isinstance(error, Unsupported):
        return EncodeError(_message(obj, error))
    if isinstance(error, EncodeError):
        return error
    if isinstance(error, _SinkFailed):
        return error.error
    if isinstance(error, struct.error):
        wanted = "wanted 0 to 255 and 0 to 2**64 - 1"
        return EncodeError(f"kind {kind!r}, request_id {request_id!r}: {wanted}")
    return EncodeError(_reason(obj, error))


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
