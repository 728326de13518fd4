"""The allocator against a model that keeps a map of every 64 bytes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlab.arena.extents import LARGE, LINE, PAGE, Extent, Extents, rounded

KIB = 1 << 10
SIZES = st.one_of(
    st.integers(1, 300),
    st.integers(LARGE - 70, LARGE + 70),
    st.sampled_from([1, 64, 65, 4096, 200 * KIB, 512 * KIB]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("one"), SIZES),
        st.tuples(st.just("many"), st.lists(SIZES, min_size=1, max_size=6)),
        st.tuples(st.just("free"), st.integers(0, 1 << 30)),
    ),
    max_size=40,
)


class Model:
    """Which 64 bytes belong to whom."""

    def __init__(self, size: int) -> None:
        self.lines = [0] * (size // LINE)
        self.extents: list[Extent] = []

    def add(self, extent: Extent) -> None:
        first, count = extent.offset // LINE, rounded(extent.nbytes) // LINE
        assert extent.offset % (PAGE if extent.nbytes >= LARGE else LINE) == 0
        assert len(self.lines[first : first + count]) == count
        assert not any(self.lines[first : first + count])
        self.lines[first : first + count] = [1] * count
        self.extents.append(extent)

    def drop(self, index: int) -> Extent:
        extent = self.extents.pop(index % len(self.extents))
        first, count = extent.offset // LINE, rounded(extent.nbytes) // LINE
        self.lines[first : first + count] = [0] * count
        return extent

    def free(self) -> list[Extent]:
        """The gaps, each as long as it can be."""
        found, start = [], None
        for i, taken in enumerate([*self.lines, 1]):
            if not taken and start is None:
                start = i
            elif taken and start is not None:
                found.append(Extent(start * LINE, (i - start) * LINE))
                start = None
        return found

    def fits(self, nbytes: int) -> bool:
        step = PAGE if nbytes >= LARGE else LINE
        return any(-(-at // step) * step + rounded(nbytes) <= at + size for at, size in self.free())


@settings(max_examples=150)
@given(STEPS)
def test_every_byte_is_free_or_live_and_never_both(steps: list[tuple[str, object]]) -> None:
    size = 1024 * KIB
    extents, model = Extents(size), Model(size)
    for kind, value in steps:
        if kind == "one":
            assert isinstance(value, int)
            got = extents.allocate(value)
            assert (got is not None) == model.fits(value)
            if got is not None:
                assert got.nbytes == value
                model.add(got)
        elif kind == "many":
            assert isinstance(value, list)
            several = extents.allocate_many(value)
            if several is None:
                assert not model.fits(sum(value))
            elif model.fits(sum(value)):
                assert [e.nbytes for e in several] == [sum(value)]
            else:
                assert [e.nbytes for e in several] == value
            for extent in several or ():
                model.add(extent)
        elif model.extents:
            assert isinstance(value, int)
            gone = model.drop(value)
            assert extents.free(gone.offset) == (gone.offset, rounded(gone.nbytes))
        gaps = model.free()
        assert extents.free_extents() == gaps  # coalesced, in place
        assert extents.largest_free == max((gap.nbytes for gap in gaps), default=0)
        assert extents.free_nbytes == sum(gap.nbytes for gap in gaps)
        assert extents.live_nbytes == LINE * sum(model.lines)
        assert extents.live == {e.offset: rounded(e.nbytes) for e in model.extents}
    for extent in model.extents:
        extents.free(extent.offset)
    assert extents.free_extents() == [Extent(0, size)]


def test_the_best_fit_is_taken() -> None:
    extents = Extents(64 * KIB)
    made = [extents.allocate(nbytes) for nbytes in (640, 64, 192, 64, 320, 64)]
    for extent in made[::2]:
        assert extent is not None
        extents.free(extent.offset)
    assert extents.allocate(190) == Extent(704, 190)
    assert extents.allocate(200) == Extent(960, 200)


def test_bytes_are_found_inside_one_live_extent_only() -> None:
    extents = Extents(64 * KIB)
    a, b = extents.allocate(128), extents.allocate(128)
    assert (a, b) == (Extent(0, 128), Extent(128, 128))
    assert extents.find(0, 128) == 0 and extents.find(127, 1) == 0 and extents.find(128, 128) == 128
    assert extents.find(64, 128) is None  # across both
    assert extents.find(256, 1) is None
    extents.free(0)
    assert extents.find(0, 1) is None and extents.find(130, 4) == 128


def test_what_is_not_live_cannot_be_freed() -> None:
    extents = Extents(64 * KIB)
    extents.allocate(64)
    extents.free(0)
    for offset in (0, 64, -64):
        with pytest.raises(KeyError):
            extents.free(offset)
    assert extents.free_extents() == [Extent(0, 64 * KIB)]


def test_ten_thousand_holes_cost_microseconds() -> None:
    """One allocation among 10,000 free extents: far from a walk over all of them."""

    def seconds(holes: int) -> float:
        extents = Extents(1 << 30)
        made = [extents.allocate(64 + 64 * (i % 7)) for i in range(2 * holes)]
        for extent in made[::2]:
            assert extent is not None
            extents.free(extent.offset)
        best = 1.0
        for _ in range(5):
            began = time.perf_counter()
            for nbytes in range(1, 400, 2):
                got = extents.allocate(nbytes)
                assert got is not None
                extents.free(got.offset)
            best = min(best, time.perf_counter() - began)
        return best / 200

    assert seconds(10_000) < 20 * seconds(20) + 50e-6  # 500 times as many
