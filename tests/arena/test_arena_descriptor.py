"""Descriptors that nobody vouches for: anything but parts of this arena is one WireError."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from arena_parts import MIB, described, sent
from hypothesis import given
from hypothesis import strategies as st

from mmlab.arena import Arena, ArenaReader, Descriptor, Returned, pack, unpack
from mmlab.arena.descriptor import MAX_EXTENTS, check
from mmlab.errors import WireError

ARENA, SIZE = 77, MIB


def of(*extents: tuple[int, int], lease: int = 0, generation: int = 1) -> Descriptor:
    return Descriptor(ARENA, lease, generation, list(extents))


def test_a_descriptor_survives_the_wire_in_few_bytes() -> None:
    descriptor = of((0, SIZE // 2), (SIZE // 2, 100))
    assert unpack(pack(descriptor)) == descriptor and len(pack(descriptor)) < 40
    check(descriptor, ARENA, SIZE)


@pytest.mark.parametrize(
    ("extents", "why"),
    [
        ([(SIZE, 64)], "outside of"),
        ([(SIZE - 64, 65)], "outside of"),
        ([(-64, 64)], "outside of"),
        ([(0, 0)], "outside of"),
        ([(64, -64)], "outside of"),
        ([(2**63 - 64, 2**63 - 1)], "outside of"),
        ([(0, 2**64 - 1)], "outside of"),
        ([(32, 64)], "multiple of 64"),
        ([(1, 1)], "multiple of 64"),
        ([(0, 65), (64, 64)], "overlap at 64"),
        ([(64, 64), (0, 128)], "overlap at 64"),
        ([(0, 64), (0, 64)], "overlap at 0"),
        ([(i * 64, 1) for i in range(MAX_EXTENTS + 1)], f"at most {MAX_EXTENTS}"),
        ([(0.0, 64)], "multiple of 64"),
        ([(0, True)], "multiple of 64"),
    ],
)
def test_extents_that_are_no_parts_of_the_arena_are_refused(
    extents: list[tuple[int, int]], why: str
) -> None:
    size = SIZE if len(extents) < 10 else SIZE * 10
    with pytest.raises(WireError, match=why):
        check(of(*extents), ARENA, size)


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        (Descriptor(ARENA + 1, 0, 1, []), f"of arena {ARENA + 1}, wanted {ARENA}"),
        (Descriptor("x", 0, 1, []), "of arena 'x'"),  # type: ignore[arg-type]
        (of(lease=-1), "lease -1"),
        (of(lease=1 << 20), "lease 1048576"),
        (of(generation=0), "generation 0"),
        (of(generation=1 << 63), "1 or more"),
        (of(lease=0.5), "arena"),  # type: ignore[arg-type]
    ],
)
def test_another_arena_or_a_lease_that_cannot_be_is_refused(
    descriptor: Descriptor, why: str
) -> None:
    with pytest.raises(WireError, match=why):
        check(descriptor, ARENA, SIZE)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x94",
        pack(of((0, 64)))[:-1],
        pack(of((0, 64))) + b"\0",
        msgspec.msgpack.encode([1, 2, 3, [[0, 64]], 5]),
        msgspec.msgpack.encode([1, 2, 3, [[0, 64, 1]]]),
        msgspec.msgpack.encode({"arena": 1}),
        msgspec.msgpack.encode([1, 2.5, 3, []]),
        b"\x91" * 100_000,
    ],
)
def test_bytes_that_are_no_descriptor_are_refused(raw: bytes) -> None:
    with pytest.raises(WireError, match="arena descriptor"):
        unpack(raw)


@given(st.binary(max_size=60), st.integers(0, 255))
def test_any_bytes_give_separate_parts_of_the_arena_or_a_wire_error(raw: bytes, at: int) -> None:
    good = bytearray(pack(of((0, 4096), (8192, 100_000))))
    good[at % len(good)] ^= 1 << at % 8
    for data in (raw, bytes(good)):
        try:
            descriptor = unpack(data)
            check(descriptor, ARENA, SIZE)
        except WireError:
            continue
        used = [range(offset, offset + nbytes) for offset, nbytes in descriptor.extents]
        assert all(0 <= r.start < r.stop <= SIZE for r in used)
        assert sum(map(len, used)) <= SIZE


def test_a_refused_descriptor_harms_nothing() -> None:
    """No view, no return, and the reader goes on; so does the lease that it pretended to be."""
    ended: deque[Returned] = deque()
    with Arena(MIB) as arena, ArenaReader(arena.fileno(), ended.append) as reader:
        good = sent(arena, 1000, 5)
        for bad in (
            msgspec.structs.replace(good, extents=[(MIB, 64)]),
            msgspec.structs.replace(good, arena=good.arena + 1),
            msgspec.structs.replace(good, generation=0),
        ):
            with pytest.raises(WireError):
                reader.view(bad)
        assert not ended
        (view,) = reader.view(good)
        assert view.readonly and len(view) == 1000 and set(view) == {5}
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
        with pytest.raises(WireError, match="stale"):
            reader.view(good)
        del view
        assert ended == deque([Returned(arena.id, good.generation, good.lease)])


def test_a_message_without_payload_in_the_arena_returns_at_once() -> None:
    ended: deque[Returned] = deque()
    with Arena(MIB) as arena, ArenaReader(arena.fileno(), ended.append) as reader:
        lease = arena.lease()
        assert reader.view(described(arena, lease)) == [] and len(ended) == 1
