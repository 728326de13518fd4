"""The fixed 32 bytes in front of every message.

    magic 4s | version u8 | kind u8 | zero u16 | request id u64 | body u32 | table u32 | inline u64

They can be read without the body, so that an error reply, an abort or a cache miss needs none and
an undecodable request can still be answered by its id. All numbers are little-endian; body 0 says
that all the rest of frame 0 is the body, as it is in messages without tensors. Frame 0 is

    envelope | body (msgpack) | tensor table | zeros up to a multiple of 64 | inline payload
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from mmlab.errors import WireError

MAGIC: Final = b"mmlb"
VERSION: Final = 1
SIZE: Final = 32
ALIGN: Final = 64  # unit of alignment of payload inside a frame
MAX_HEADER: Final = 16 << 20  # envelope, body and table together

LAYOUT: Final = Struct("<4sBBHQIIQ")
PLAIN: Final = Struct("<4sBBHQ16x")  # neither tensors nor inline payload
PLAIN_0: Final = PLAIN.pack(MAGIC, VERSION, 0, 0, 0)

Buffer = bytes | bytearray | memoryview


class Envelope(NamedTuple):
    """What can be said of a message without reading its body. Sizes are in bytes."""

    version: int
    kind: int
    request_id: int
    body: int
    table: int
    inline: int


def read_envelope(frame0: Buffer) -> Envelope:
    """Kind and request id of a message; WireError if these are not mmlab's bytes or version."""
    try:
        magic, version, kind, reserved, request_id, body, table, inline = LAYOUT.unpack_from(frame0)
    except Exception as error:
        size = len(frame0) if isinstance(frame0, (bytes, bytearray, memoryview)) else frame0
        raise WireError(
            f"frame 0: got {size!r} bytes, wanted an envelope of {SIZE} bytes"
        ) from error
    if magic != MAGIC:
        raise WireError(f"frame 0: starts with {magic!r}, wanted {MAGIC!r}: not an mmlab message")
    if version != VERSION:
        raise WireError(
            f"frame 0: format version {version}, this mmlab reads version {VERSION}: "
            "use the same mmlab on both sides"
        )
    if reserved:
        raise WireError(f"frame 0: reserved bits are {reserved:#x}, wanted 0")
    return Envelope(version, kind, request_id, body, table, inline)
