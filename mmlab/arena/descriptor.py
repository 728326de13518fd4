"""What crosses the wire instead of payload: which arena, which lease, and where its bytes lie."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from mmlab.arena.extents import LINE
from mmlab.arena.ledger import MAX_LEASES
from mmlab.errors import WireError

MAX_EXTENTS: Final = 1 << 16
_FAR: Final = 1 << 63


class Descriptor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Extents are (offset, bytes) in the arena; frame n of the message is extents[n - 1]."""

    arena: int
    lease: int
    generation: int
    extents: list[tuple[int, int]]


class Returned(NamedTuple):
    """A reader's word that no view of a descriptor is left."""

    arena: int
    generation: int
    lease: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Descriptor).decode


def pack(descriptor: Descriptor) -> bytes:
    return _encode(descriptor)


def unpack(raw: bytes | bytearray | memoryview) -> Descriptor:
    """WireError for anything but a descriptor. Its numbers are checked by `check`."""
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"arena descriptor: {error}") from error


def check(descriptor: Descriptor, arena: int, size: int) -> None:
    """WireError unless these are separate, aligned extents of this arena of `size` bytes."""
    numbers = (descriptor.arena, descriptor.lease, descriptor.generation)
    if any(type(n) is not int for n in numbers) or descriptor.arena != arena:
        raise WireError(f"arena descriptor: of arena {descriptor.arena!r}, wanted {arena}")
    if not (0 <= descriptor.lease < MAX_LEASES and 0 < descriptor.generation < _FAR):
        raise WireError(
            f"arena descriptor: lease {descriptor.lease}, generation {descriptor.generation}: "
            f"wanted 0 to {MAX_LEASES - 1}, 1 or more"
        )
    extents = descriptor.extents
    if len(extents) > MAX_EXTENTS:
        raise WireError(f"arena descriptor: {len(extents)} extents, at most {MAX_EXTENTS}")
    for i, (offset, nbytes) in enumerate(extents):
        if type(offset) is not int or type(nbytes) is not int or offset % LINE:
            raise WireError(
                f"arena descriptor: extent {i} at {offset!r}, wanted a multiple of {LINE}"
            )
        if offset < 0 or nbytes < 1 or offset + nbytes > size:
            raise WireError(
                f"arena descriptor: extent {i} has {nbytes} B at {offset}, outside of {size} B"
            )
    end = 0
    for offset, nbytes in sorted(extents):
        if offset < end:
            raise WireError(f"arena descriptor: extents overlap at {offset}")
        end = offset + nbytes
