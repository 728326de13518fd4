"""Looking ahead: what is staged when, and that nothing waits, gets lost or out of order by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from staging_fakes import FakeDevice, Pairs, images

from mmlab.errors import BackpressureTimeout, BatchError, UsageError
from mmlab.staging import PinnedBatcher, PinnedPool, Staged

SLOT = 2 * 3 * 8 * 8 * 4  # bytes of a batch of two images


def batcher_on(device: FakeDevice, slots: float, timeout: float | None = 0) -> PinnedBatcher:
    pool = PinnedPool(int(slots * SLOT), device=device)
    return PinnedBatcher(device, pool, timeout=timeout)


def value_of(staged: Staged) -> float:
    batch = staged.kwargs["pixel_values"]
    assert isinstance(batch, torch.Tensor)
    return float(batch[0, 0, 0, 0])


def counted(taken: list[int], count: int) -> Iterator[Pairs]:
    for number in range(count):
        taken.append(number)
        yield images(number, number)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_so_many_copies_are_under_way_when_a_batch_is_handed_out(depth: int) -> None:
    device, taken = FakeDevice(), list[int]()
    batcher = batcher_on(device, 10)
    for number, staged in enumerate(batcher.prefetch(counted(taken, 6), depth)):
        assert taken == list(range(min(6, number + depth + 1)))
        assert len(device.copies) == len(taken)
        staged.synchronize()
        assert value_of(staged) == number
    assert number == 5
    device.complete_all()
    assert device.faults == []


def test_a_small_pool_stages_as_the_consumer_lets_go_and_never_waits_for_looking_ahead() -> None:
    device, taken = FakeDevice(), list[int]()
    batcher = batcher_on(device, 1, timeout=30)
    seen = []
    for staged in batcher.prefetch(counted(taken, 5), 3):
        assert len(device.unfinished) == 1
        device.complete_all()
        seen.append(value_of(staged))
    assert seen == [0, 1, 2, 3, 4]


def test_an_error_comes_in_its_turn() -> None:
    device = FakeDevice()
    large = images(*range(20))
    found = batcher_on(device, 4).prefetch([images(1, 1), images(2, 2), large, images(3, 3)], 2)
    device_values = []
    with pytest.raises(BatchError, match="wanted"):
        for staged in found:
            staged.synchronize()
            device_values.append(value_of(staged))
    assert device_values == [1, 2]


def test_a_failing_source_ends_it_after_what_came_before() -> None:
    def source() -> Iterator[Pairs]:
        yield images(1, 1)
        raise ValueError("no more of these")

    found = batcher_on(FakeDevice(), 4).prefetch(source(), 2)
    assert value_of(next(found).synchronize()) == 1
    with pytest.raises(ValueError, match="no more of these"):
        next(found)


def test_no_room_at_all_is_an_error_after_the_timeout() -> None:
    device = FakeDevice()
    batcher = batcher_on(device, 1)
    first = batcher.stage(images(9, 9))
    with pytest.raises(BackpressureTimeout):
        next(batcher.prefetch([images(1, 1)], 1))
    device.complete_all()
    assert value_of(first) == 9


def test_leaving_early_lets_go_of_what_was_staged_ahead() -> None:
    device = FakeDevice()
    batcher = batcher_on(device, 4)
    found = batcher.prefetch(counted([], 9), 2)
    next(found)
    found.close()  # type: ignore[attr-defined]
    device.complete_all()
    stats = batcher.stats()
    assert stats is not None
    assert stats.live == 0


@pytest.mark.parametrize("depth", [-1, 1.5, None, True])
def test_a_depth_that_is_none_is_refused_at_once(depth: object) -> None:
    with pytest.raises(UsageError, match="depth is"):
        batcher_on(FakeDevice(), 1).prefetch([], depth)  # type: ignore[arg-type]


def test_on_a_cpu_the_batches_come_in_order_too() -> None:
    with PinnedBatcher("cpu") as batcher:
        found = [value_of(staged) for staged in batcher.prefetch(counted([], 4), 2)]
    assert found == [0, 1, 2, 3]
