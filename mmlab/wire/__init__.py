"""The wire: messages as a msgpack header and raw payload frames, exact and never trusted."""

from mmlab.wire.decoder import Decoder
from mmlab.wire.encoder import Encoder
from mmlab.wire.envelope import Buffer, Envelope, read_envelope
from mmlab.wire.piece import Piece
from mmlab.wire.sink import FrameSink, PayloadSink, Place

__all__ = [
    "Buffer",
    "Decoder",
    "Encoder",
    "Envelope",
    "FrameSink",
    "PayloadSink",
    "Piece",
    "Place",
    "read_envelope",
]
