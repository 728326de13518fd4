"""Mutations: a valid message and a random generator -> frames that nobody would have sent.

Parts are changed first (structure, table, payload) and put together with an envelope that fits;
raw bytes of frame 0 are changed afterwards, envelope included, and nothing is put right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, cast

from fuzz_messages import TYPES, Base
from fuzz_parts import FIELDS, HEAD, SIZE, Frame, Parts
from fuzz_structure import EDGES, change_structure

Change = Callable[[random.Random, Parts, Sequence[Base]], None]

BYTES = bytes(
    (0, 1, 2, 3, 4, 0x7F, 0x80, 0x81, 0x90, 0x91, 0xC0, 0xC1, 0xC7, 0xD4, 0xDD, 0xDF, 0xFF)
)


def edit(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut, put in, or flipped."""
    if not data:
        return rng.randbytes(rng.randrange(4))
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, kind = rng.randrange(len(made)), rng.randrange(7)
        if kind < 2:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            made[at] = rng.choice(BYTES)
        elif kind == 3:
            made[at] = rng.randrange(256)
        elif kind == 4:
            made[at:at] = rng.randbytes(rng.choice((1, 1, 2, 8)))
        elif kind == 5:
            width = rng.choice((1, 2, 4, 8))
            number = (rng.choice(EDGES) & (1 << 8 * width) - 1).to_bytes(width, "little")
            made[at : at + width] = number if rng.random() < 0.5 else number[::-1]
        else:
            del made[at : at + rng.choice((1, 1, 2, 8, len(made)))]
            if not made:
                break
    return bytes(made)


def _structure(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    parts.body = change_structure(rng, parts.body)


def _body(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    parts.body = edit(rng, parts.body)


def _field(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """An edge value, or one beside the right one, in a field of a record of the table."""
    records = parts.records()
    if not records:
        return
    start, end = rng.choice(records)
    table = bytearray(parts.table)
    if end - start > HEAD and rng.random() < 0.5:
        at, width = start + HEAD + 8 * rng.randrange((end - start - HEAD) // 8), 8
    else:
        kind, offset = rng.choice(FIELDS)
        at, width = start + offset, {"B": 1, "H": 2, "I": 4, "Q": 8}[kind]
    old = int.from_bytes(table[at : at + width], "little")
    near = (old - 1, old + 1, old * 2, old // 2, old + 64)
    number = rng.choice(near) if rng.random() < 0.5 else rng.choice(EDGES)
    table[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
    parts.table = bytes(table)


def _empty(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """A tensor without elements that claims any extents, in place of a record of the table."""
    records = parts.records()
    if not records:
        return
    start, end = rng.choice(records)
    small = [0] * (rng.random() < 0.9) + [rng.choice((0, 1, 2, 7)) for _ in range(rng.randrange(3))]
    extents = [*small, *(rng.choice(EDGES) & (1 << 64) - 1 for _ in range(rng.randrange(3)))]
    rng.shuffle(extents)
    head = bytearray(parts.table[start : start + HEAD])
    head[1] = len(extents)
    made = bytes(head) + b"".join(n.to_bytes(8, "little") for n in extents)
    parts.table = parts.table[:start] + made + parts.table[end:]


def _records(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """Records twice, gone, in other order, or of another message."""
    table = parts.table
    found = [table[a:b] for a, b in parts.records()]
    kind = rng.randrange(4)
    if kind == 0 and found:
        found += [rng.choice(found)] * rng.choice((1, 2, 9))
    elif kind == 1 and found:
        del found[rng.randrange(len(found))]
    elif kind == 2:
        rng.shuffle(found)
    else:
        found.insert(rng.randrange(len(found) + 1), rng.choice(others).parts.table)
    parts.table = b"".join(found)


def _table(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    parts.table = edit(rng, parts.table)


def _frames(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """Payload frames gone, twice, in other order, cut, longer, empty."""
    frames, kind = list(parts.frames), rng.randrange(7)
    if kind == 0 or not frames:
        frames.insert(rng.randrange(len(frames) + 1), rng.randbytes(rng.choice((0, 1, 7, 64, 300))))
    else:
        at = rng.randrange(len(frames))
        if kind == 1:
            del frames[at]
        elif kind == 2:
            frames.append(frames[at])
        elif kind == 3:
            rng.shuffle(frames)
        elif kind == 4:
            frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
        elif kind == 5:
            frames[at] += bytes(rng.choice((1, 8, 64)))
        else:
            frames[at] = b""
    parts.frames = tuple(frames)


def _inline(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    inline, kind = parts.inline, rng.randrange(4)
    if kind == 0:
        parts.inline = inline[: rng.randrange(len(inline) + 1)]
    elif kind == 1:
        parts.inline = inline + bytes(rng.choice((1, 8, 64)))
    elif kind == 2:  # the payload the other way: inside and outside exchanged
        parts.inline = b"".join(parts.frames)
        parts.frames = (inline,)
    else:
        parts.inline = edit(rng, inline)


def _splice(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """A part of another message instead, or both bodies in one list."""
    other, kind = rng.choice(others).parts, rng.randrange(5)
    if kind == 0:
        parts.body = other.body
    elif kind == 1:
        parts.table = other.table
    elif kind == 2:
        parts.frames, parts.inline = other.frames, other.inline
    elif kind == 3:
        parts.body = b"\x92" + parts.body + other.body
        parts.table += other.table
    else:
        cut, from_ = rng.randrange(len(parts.body) + 1), rng.randrange(len(other.body) + 1)
        parts.body = parts.body[:cut] + other.body[from_:]


def _deep(rng: random.Random, parts: Parts, others: Sequence[Base]) -> None:
    """Nested far beyond what anyone means."""
    depth = rng.choice((63, 64, 65, 400, 1000, 3000))
    opening = rng.choice((b"\x91", b"\x81\xa1a", b"\x92\x02", b"\x92\x03", b"\x93\x05\x00"))
    deep = opening * depth + parts.body
    if rng.random() < 0.5:
        deep = b"\xc9" + len(deep).to_bytes(4, "big") + bytes([rng.randrange(2, 5)]) + deep
    parts.body = deep


CHANGES: list[tuple[int, Change]] = [
    (40, _structure),
    (12, _body),
    (20, _field),
    (4, _empty),
    (6, _records),
    (3, _table),
    (6, _frames),
    (4, _inline),
    (8, _splice),
    (1, _deep),
]
_WEIGHTS = [weight for weight, _ in CHANGES]
_CHANGES = [change for _, change in CHANGES]


def raw_edit(rng: random.Random, parts: Parts, frames: list[bytes]) -> None:
    """Bytes of frame 0 changed where they lie: in envelope, body, table, or anywhere."""
    frame0, kind = frames[0], rng.randrange(8)
    body, table = len(parts.body), len(parts.table)
    if kind == 0:
        frames[0] = frame0[: rng.randrange(len(frame0) + 1)]
        return
    if kind < 3:
        start, end = 0, SIZE
    elif kind < 5:
        start, end = SIZE, SIZE + body
    elif kind < 7 and table:
        start, end = SIZE + body, SIZE + body + table
    else:
        start, end = 0, len(frame0)
    frames[0] = frame0[:start] + edit(rng, frame0[start:end]) + frame0[end:]


def _as_sent(rng: random.Random, frame: bytes) -> Frame:
    """The bytes in another kind of buffer, perhaps at an odd address."""
    kind = rng.randrange(6)
    if kind == 0:
        return bytearray(frame)
    if kind == 1:
        return memoryview(b"\0" + frame)[1:]
    if kind == 2:
        return memoryview(frame)
    if kind == 3 and frame and len(frame) % 4 == 0:
        formats: list[Literal["b", "c", "H", "I", "f"]] = ["b", "c", "H", "I", "f"]
        return cast(Frame, memoryview(frame).cast(rng.choice(formats)))
    return frame


def mutate(rng: random.Random, bases: Sequence[Base]) -> tuple[int, list[Frame]]:
    """Place in TYPES of what to decode it as, mostly as what it began from; and the frames."""
    base = rng.choice(bases)
    parts = base.parts.copy()
    raw = rng.random() < 0.25
    count = rng.choice((0, 1) if raw else (1, 1, 1, 2, 3))
    for change in rng.choices(_CHANGES, _WEIGHTS, k=count):
        change(rng, parts, bases)
    frames = parts.assemble()
    if raw:
        raw_edit(rng, parts, frames)
        if rng.random() < 0.05:
            rng.shuffle(frames)
    kind = base.type if rng.random() < 0.9 else rng.randrange(len(TYPES))
    if rng.random() < 0.3:
        return kind, [_as_sent(rng, frame) for frame in frames]
    return kind, list(frames)
