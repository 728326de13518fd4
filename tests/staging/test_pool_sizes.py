"""Size classes: small waste, few sizes, and a bound that holds whatever the shapes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staging_fakes import FakeDevice, FlagEvent

from mmlab.errors import BackpressureTimeout
from mmlab.staging import PinnedPool
from mmlab.staging.pool import size_class

MIB = 1 << 20


def pool_of(max_nbytes: int) -> PinnedPool:
    return PinnedPool(max_nbytes, pin=False)


@given(st.integers(1, 1 << 40))
def test_size_classes_waste_at_most_an_eighth(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % 64 == 0
    assert size - nbytes <= max(nbytes // 8, 63)
    assert size_class(size) == size


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 30))
def test_rounding_never_costs_one_of_a_few_buffers(nbytes: int, more: int) -> None:
    max_nbytes = nbytes + more
    size = size_class(nbytes, max_nbytes)
    assert nbytes <= size <= size_class(nbytes)
    if max_nbytes // nbytes <= 8:
        assert max_nbytes // size == max_nbytes // nbytes
    assert size_class(size, max_nbytes) == size


def test_size_classes_at_powers_of_two() -> None:
    assert [size_class(n) for n in (0, 1, 64, 65, 512, 513)] == [64, 64, 64, 128, 512, 576]
    for exponent in range(9, 34):
        assert size_class(1 << exponent) == 1 << exponent
        assert size_class((1 << exponent) + 1) == (1 << exponent) // 8 * 9
    assert len({size_class(n) for n in range(MIB + 1, 2 * MIB + 1, 1000)}) == 8


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 5000, 100 * 1000, MIB])
def test_pool_of_exactly_the_request_serves_it(nbytes: int) -> None:
    with pool_of(max(nbytes, 1)) as pool:
        for _ in range(3):
            buffer = pool.acquire(nbytes, timeout=0)
            assert nbytes <= buffer.tensor.numel() <= max(nbytes, 1)
            buffer.release()
        assert pool.stats().allocations == 1


@pytest.mark.parametrize("nbytes", [1, 100, 1536, 896 * 896 * 3 * 4, 50_000_000])
def test_twice_the_bytes_are_room_for_two(nbytes: int) -> None:
    with pool_of(2 * nbytes) as pool:
        one, two = pool.acquire(nbytes, timeout=0), pool.acquire(nbytes, timeout=0)
        with pytest.raises(BackpressureTimeout):
            pool.acquire(nbytes, timeout=0)
        one.release()
        two.release()


@pytest.mark.parametrize(
    ("max_nbytes", "batches", "reuses"), [(MIB, 2_000, 100), (8 * MIB, 10_000, 9_800)]
)
def test_ever_changing_shapes_stay_under_the_bound(
    max_nbytes: int, batches: int, reuses: int
) -> None:
    device = FakeDevice()
    rng = random.Random(0)
    events: list[FlagEvent] = []
    with PinnedPool(max_nbytes, device=device) as pool:
        for _ in range(batches):
            event = FlagEvent()
            events.append(event)
            buffer = pool.acquire(rng.randrange(1, MIB // 3), timeout=0)
            buffer.tensor[0] = 1
            buffer.release(after=event)
            if len(events) == 2:  # one copy is always under way
                events.pop(0).passed = True
        stats = pool.stats()
        assert device.most_nbytes <= max_nbytes
        assert stats.high_water_nbytes == device.most_nbytes
        assert stats.reuses + stats.allocations == batches
        assert stats.reuses > reuses
        assert (stats.evictions > 0) == (max_nbytes == MIB)
        events[0].passed = True
    assert device.live == {}
