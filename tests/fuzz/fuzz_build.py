"""Bytes of a coverage-guided fuzzer -> a message: the header is built from them, then damaged.

Raw bytes behind the decoder end at its first checks. Here every few bytes decide about one thing (a
record's dtype, a column's field, an extent), so that a small change of the input is a small change
of the message. The same bytes always give the same message: what the fuzzer kept is replayed so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from fuzz_messages import TYPES
from fuzz_parts import ENVELOPE, SIZE, WIDE
from fuzz_structure import EDGES

from mmlab.dtypes import ITEMSIZE

T = TypeVar("T")

CODES = sorted(ITEMSIZE)
SIZES = (64, 0, 8, 100, 255)  # of frames
MAX_DEPTH = 6
KEYS = ("k", "a", "b", "", "ü")
Ext = msgspec.msgpack.Ext
_encode = msgspec.msgpack.encode


class Reader:
    """Decisions out of bytes; zeros where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def empty(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, end: int) -> int:
        """0 to end - 1, for ends up to 65536."""
        n = self.byte()
        return (n << 8 | self.byte() if end > 256 else n) % end

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def some(self, most: int) -> range:
        return range(0 if self.empty else self.below(most + 1))

    def bytes(self, most: int) -> bytes:
        return bytes(self.byte() for _ in self.some(most))

    def number(self) -> int:
        """Mostly small; sometimes where overflows begin."""
        n = self.byte()
        return n & 7 if n < 0xC0 else self.pick(EDGES)

    def size(self) -> int:
        """An extent, offset or count: as `number`, in 64 unsigned bits."""
        return self.number() & (1 << 64) - 1


class Builder:
    """One message."""

    def __init__(self, data: bytes) -> None:
        self.read = Reader(data)
        self.tensors = 1  # that the table may hold

    def frames(self) -> tuple[int, list[bytes]]:
        """Place in TYPES of what to decode it as, and the frames."""
        read = self.read
        kind, head, damage = read.below(len(TYPES)), read.byte(), read.byte()
        payload = [bytes(read.pick(SIZES)) for _ in read.some(3)]
        inline = bytes(read.pick(SIZES)) if read.below(2) else b""
        table = b"".join(self.record(len(payload), inline) for _ in read.some(4))
        body = _encode(self.node(0))
        plain = not (table or inline or payload)
        frame0 = (
            ENVELOPE.pack(
                b"mmlb" if head < 0xF8 else bytes((head, 0, 0, 0)),
                1 if head < 0xF0 else head & 7,
                head,
                0 if head < 0xF4 else 1,
                head,
                0 if plain else max(len(body) + (read.below(9) - 4) * (damage >= 0xF0), 0),
                len(table),
                len(inline),
            )
            + body
            + table
        )
        if inline:
            frame0 += bytes(-len(frame0) % 64) + inline
        if damage & 3 == 3:
            frame0 = self.damaged(bytearray(frame0), damage)
        return kind, [frame0, *payload]

    def damaged(self, frame0: bytearray, how: int) -> bytes:
        """Some bytes changed; perhaps cut."""
        read = self.read
        for _ in range(1 + (how >> 2 & 3)):
            at = read.below(65536) % len(frame0)
            frame0[at if at >= SIZE or how & 64 else len(frame0) - 1 - at] ^= read.byte()
        return bytes(frame0[: read.below(65536)] if how & 0x30 == 0x30 else frame0)

    def record(self, frames: int, inline: bytes) -> bytes:
        """A record of the tensor table: mostly one that the frames back."""
        read = self.read
        code = read.pick(CODES) if read.below(32) else read.byte()
        shape = [read.below(4) if read.below(8) else read.size() for _ in read.some(4)]
        frame = read.below(frames + 1) or (0 if inline else 1)
        offset = read.pick((0, 0, 0, 1, 4)) * ITEMSIZE.get(code, 1)
        count, ndim = 1, len(shape)
        odd = read.byte()
        if odd >= 0xF0:
            offset = read.size()
        elif odd >= 0xE0:
            frame = read.size() & 0xFFFF_FFFF
        elif odd >= 0xD8:
            ndim = read.byte()
        elif odd >= 0xA0:
            count = read.size() & 0xFFFF_FFFF
        self.tensors += min(count, 9)
        head = struct.pack("<BBHIQI", code, ndim, 0, frame, offset, count)
        return head + struct.pack(f"<{len(shape)}Q", *shape)

    def reference(self) -> int:
        """The number of a tensor."""
        read = self.read
        return read.below(self.tensors) if read.below(16) else read.size() & WIDE - 1

    def node(self, depth: int) -> object:
        """Anything that a body may be made of."""
        read = self.read
        kind = read.below(9 if depth < MAX_DEPTH and not read.empty else 4)
        if kind == 0:
            return read.number()
        if kind == 1:
            return read.pick((None, True, False, "", "text", 0.5, float("nan"), b"", b"bytes"))
        if kind == 2:
            return Ext(1, struct.pack("<Q", self.reference()))
        if kind == 3:
            return Ext(read.below(8) - 2, read.bytes(12))
        if kind == 4:
            return [self.node(depth + 1) for _ in read.some(5)]
        if kind == 5:
            return {f"k{i}": self.node(depth + 1) for i in read.some(4)}
        if kind == 6:
            return Ext(2, _encode(self.value(depth + 1)))
        if kind == 7:
            items = [[read.pick(("i", "v", "")), self.blocks(depth)] for _ in read.some(2)]
            return Ext(3, _encode(items))
        return Ext(4, _encode(self.block(depth, 1)))

    def value(self, depth: int) -> object:
        """A tagged value, mostly of a shape that its tag may have."""
        read = self.read
        kind = read.below(14 if depth < MAX_DEPTH and not read.empty else 2)
        if kind == 0:
            return [0, WIDE + self.reference()]
        if kind == 1:
            return read.pick((None, True, 1, -1, 2.5, "a", b"b", 1 << 63))
        if kind == 2:
            return [1, [read.pick((None, 1, "a", 0.5, b"")) for _ in read.some(4)]]
        if kind in (3, 4):
            return [kind - 1, *(self.value(depth + 1) for _ in read.some(4))]
        if kind == 5:
            return [4, *(read.number() for _ in read.some(4))]
        if kind == 6:
            return [5, *(self.value(depth + 1) for _ in range(2 * len(read.some(3))))]
        if kind == 7:
            return [6, *(self.value(depth + 1) for _ in range(3 if read.below(8) else 2))]
        if kind == 8:
            return [7, read.pick(CODES)]
        if kind == 9:
            code = read.pick(CODES)
            return [8, code, bytes(ITEMSIZE[code] if read.below(8) else read.below(20))]
        if kind == 10:
            return [read.pick((9, 10, 11)), read.pick(("a", b"a", ""))]
        if kind == 11:
            return [12, read.pick(CODES)]
        if kind == 12:
            return [read.byte(), *(self.value(depth + 1) for _ in read.some(3))]
        return self.node(MAX_DEPTH)

    def blocks(self, depth: int) -> list[object]:
        read = self.read
        return [
            self.block(depth, read.number()) if read.below(4) else read.number()
            for _ in read.some(3)
        ]

    def block(self, depth: int, size: int) -> object:
        read = self.read
        used = read.some(3)
        return [size, [self.column(depth, size, read.pick(KEYS)) for _ in used]]

    def column(self, depth: int, size: int, key: str) -> object:
        read = self.read
        n = size if 0 <= size < 9 and read.below(16) else read.below(9)
        cpu, kind = bool(read.below(2)), read.below(4)
        if kind == 0:
            field: list[object] = [1, cpu, read.pick((None, 0, 1, -1, 2.5, True, 1e300))]
        elif kind == 1:
            field = [2, read.number() if read.below(2) else 0, cpu]
        elif kind == 2:
            field = [3, n if read.below(2) else read.number(), cpu]
        else:
            field = [1]
        layout = read.pick((0, 0, 1, 2, 3))
        sizes = [read.number() for _ in range(n)] if kind == 1 and layout == 0 else None
        if layout == 1:
            return [key, field, 1, sizes, [self.value(depth + 1) for _ in range(n)]]
        if layout == 2:
            return [key, field, 2, sizes, [self.reference() for _ in range(n)]]
        return [key, field, layout, sizes, self.value(depth + 1)]


def build(data: bytes) -> tuple[int, list[bytes]]:
    """Place in TYPES of what to decode it as, and the frames."""
    return Builder(data).frames()
