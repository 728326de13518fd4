"""A message taken apart and put together again with an envelope that fits.

A change that leaves the sizes in the envelope wrong ends at the decoder's first check. Messages are
therefore changed in parts; what is assembled from them reaches the code behind. The layouts are
written down here a second time, so that the fuzzer does not change with the code it looks at.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ENVELOPE = struct.Struct("<4sBBHQIIQ")  # magic, version, kind, zero, request id, 3 sizes
SIZE = 32
HEAD = 20  # of a record of the tensor table; 8 bytes for each dimension follow
FIELDS = (("B", 0), ("B", 1), ("H", 2), ("I", 4), ("Q", 8), ("I", 16))  # of that head
WIDE = 1 << 63  # added to the numbers of tensors inside values

Frame = bytes | bytearray | memoryview


@dataclass(slots=True)
class Parts:
    """Frame 0 in its parts, and the payload frames."""

    body: bytes
    table: bytes = b""
    inline: bytes = b""
    frames: tuple[bytes, ...] = ()
    kind: int = 0
    request_id: int = 0

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> Parts:
        """A valid message in its parts."""
        first = bytes(frames[0])
        _, _, kind, _, request_id, body, table, inline = ENVELOPE.unpack_from(first)
        end = SIZE + body if body | table | inline else len(first)
        return cls(
            first[SIZE:end],
            first[end : end + table],
            first[len(first) - inline :] if inline else b"",
            tuple(map(bytes, frames[1:])),
            kind,
            request_id,
        )

    def assemble(self) -> list[bytes]:
        """The frames, sizes and padding right, whatever stands in the parts."""
        body, table, inline = len(self.body), len(self.table), len(self.inline)
        if not (table or inline or self.frames):
            body = 0
        head = b"".join(
            (
                ENVELOPE.pack(b"mmlb", 1, self.kind, 0, self.request_id, body, table, inline),
                self.body,
                self.table,
            )
        )
        if inline:
            head += bytes(-len(head) % 64) + self.inline
        return [head, *self.frames]

    def copy(self) -> Parts:
        return replace(self)

    def records(self) -> list[tuple[int, int]]:
        """Start and end of every record of the table, as far as it can be read."""
        found, at, table = [], 0, self.table
        while at + HEAD <= len(table):
            end = at + HEAD + 8 * table[at + 1]
            if end > len(table):
                break
            found.append((at, end))
            at = end
        return found


def save(path: Path, frames: Sequence[Frame]) -> None:
    """Frames as one file: their number, then size and bytes of each."""
    sized = [struct.pack("<Q", len(bytes(f))) + bytes(f) for f in frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(frames)) + b"".join(sized))


def load(path: Path) -> list[bytes]:
    """The reverse of `save`."""
    raw = path.read_bytes()
    (count,) = struct.unpack_from("<Q", raw)
    frames, at = [], 8
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", raw, at)
        frames.append(raw[at + 8 : at + 8 + size])
        at += 8 + size
    return frames
