"""The pool: bounded bytes, and no buffer before its last copy has finished."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from staging_fakes import CountdownEvent, FakeDevice, FlagEvent

from mmlab.errors import BackpressureTimeout, BatchError
from mmlab.staging import PinnedPool

MIB = 1 << 20


def pool_of(max_nbytes: int) -> PinnedPool:
    return PinnedPool(max_nbytes, pin=False)


def test_released_buffer_is_reused_at_the_same_address() -> None:
    with pool_of(4 * MIB) as pool:
        first = pool.acquire(MIB)
        address = first.tensor.data_ptr()
        assert first.tensor.dtype == torch.uint8
        assert first.tensor.numel() >= MIB
        assert address % 64 == 0
        first.release()
        second = pool.acquire(MIB - 1000)  # the same class
        assert second.tensor.data_ptr() == address
        stats = pool.stats()
        assert (stats.allocations, stats.reuses, stats.live) == (1, 1, 1)


def test_two_buffers_never_share_memory() -> None:
    with pool_of(4 * MIB) as pool:
        one, two = pool.acquire(MIB), pool.acquire(MIB)
        one.tensor.fill_(1)
        two.tensor.fill_(2)
        assert one.tensor.min() == one.tensor.max() == 1


def test_event_that_has_not_passed_keeps_the_buffer() -> None:
    event = CountdownEvent(5)
    with pool_of(MIB) as pool:
        pool.acquire(MIB).release(after=event)
        for _ in range(5):
            with pytest.raises(BackpressureTimeout, match="1048576 B wait for their copy"):
                pool.acquire(MIB, timeout=0)
        assert event.asked == 5
        assert pool.acquire(MIB, timeout=0).nbytes == MIB


def test_acquire_waits_for_the_event() -> None:
    event = CountdownEvent(5)
    with pool_of(MIB) as pool:
        pool.acquire(MIB).release(after=event)
        pool.acquire(MIB, timeout=10)
        assert event.asked == 6
        assert pool.stats().waits == 1


def test_events_may_pass_in_any_order() -> None:
    early, late = FlagEvent(), FlagEvent()
    with pool_of(2 * MIB) as pool:
        one, two = pool.acquire(MIB), pool.acquire(MIB)
        addresses = one.tensor.data_ptr(), two.tensor.data_ptr()
        one.release(after=late)
        two.release(after=early)
        early.passed = True
        assert pool.acquire(MIB, timeout=0).tensor.data_ptr() == addresses[1]
        late.passed = True


def test_exhausted_pool_times_out_and_says_why() -> None:
    with pool_of(2 * MIB) as pool:
        held = [pool.acquire(MIB), pool.acquire(MIB)]
        began = time.monotonic()
        with pytest.raises(BackpressureTimeout) as caught:
            pool.acquire(MIB, timeout=0.05)
        assert 0.04 < time.monotonic() - began < 5
        assert isinstance(caught.value, TimeoutError)
        message = str(caught.value)
        for part in ("1048576 B after 0.05 s", "of 2097152 B", "2097152 B are handed out (2"):
            assert part in message
        assert pool.stats().waits == 1
        held[0].release()
        assert pool.acquire(MIB, timeout=0).nbytes == MIB


@pytest.mark.parametrize("nbytes", [MIB + 1, -1])
def test_impossible_request_is_refused_with_both_numbers(nbytes: int) -> None:
    with pool_of(MIB) as pool, pytest.raises(BatchError, match=rf"{nbytes} B wanted.* {MIB} B"):
        pool.acquire(nbytes)


def test_release_in_another_thread_wakes_a_waiting_acquire() -> None:
    with pool_of(MIB) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.acquire(MIB)
        waiting = threads.submit(pool.acquire, MIB, 10)
        while pool.stats().waits == 0:
            time.sleep(0.001)
        assert not waiting.done()
        held.release()
        assert waiting.result(5).nbytes == MIB


def test_large_request_is_not_starved_by_small_ones_behind_it() -> None:
    with pool_of(2 * MIB) as pool, ThreadPoolExecutor(2) as threads:
        first, second = pool.acquire(MIB), pool.acquire(MIB)
        large = threads.submit(pool.acquire, 2 * MIB, 10)
        while pool.stats().waits < 1:
            time.sleep(0.001)
        small = threads.submit(pool.acquire, MIB, 10)
        first.release()
        while pool.stats().waits < 2:
            time.sleep(0.001)
        time.sleep(0.02)
        assert not small.done()  # it would fit, but came later
        second.release()
        large.result(5).release()
        assert small.result(5).nbytes == MIB


def test_accounts_add_up_and_trim_frees() -> None:
    device = FakeDevice()
    event = FlagEvent()
    with PinnedPool(8 * MIB, device=device) as pool:
        live, pending, cached = (pool.acquire(n * MIB) for n in (1, 2, 3))
        pending.release(after=event)
        cached.release()
        stats = pool.stats()
        assert (stats.live_nbytes, stats.pending_nbytes, stats.cached_nbytes) == (
            MIB,
            2 * MIB,
            3 * MIB,
        )
        assert (stats.live, stats.pending, stats.cached, stats.pinned) == (1, 1, 1, True)
        assert sum(device.live.values()) == 6 * MIB
        assert pool.trim(3 * MIB) == 0
        assert pool.trim() == 3 * MIB
        assert sum(device.live.values()) == 3 * MIB
        event.passed = True
        assert pool.stats().cached_nbytes == 2 * MIB
        assert pool.stats().high_water_nbytes == 6 * MIB
        live.release()


def test_failed_allocation_gives_its_room_back() -> None:
    class Broken(FakeDevice):
        def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
            raise MemoryError("nothing left")

    device = Broken(pin_problem=None)
    with PinnedPool(MIB, pin=False, device=device) as pool:
        for _ in range(3):
            with pytest.raises(MemoryError):
                pool.acquire(MIB, timeout=0)
        assert pool.stats().live_nbytes == 0


def test_many_threads_never_share_a_buffer() -> None:
    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            nbytes = rng.randrange(1, 100_000)
            buffer = pool.acquire(nbytes, timeout=30)
            part = buffer.tensor[:nbytes]
            part.fill_(seed)
            time.sleep(0)
            assert int(part.min()) == int(part.max()) == seed
            how = rng.randrange(3)
            if how == 0:
                buffer.release()
            elif how == 1:
                buffer.release(after=CountdownEvent(rng.randrange(4)))
            del buffer, part  # else the finalizer returns it

    with pool_of(300_000) as pool:
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, seed) for seed in range(1, 9)]:
                done.result(50)
        time.sleep(0.01)
        stats = pool.stats()
        assert stats.live == 0
        assert stats.high_water_nbytes <= 300_000
        assert stats.reuses + stats.allocations == 8 * 150
    assert threading.active_count() < 20


def test_pool_of_nothing_is_refused() -> None:
    with pytest.raises(BatchError, match="max_nbytes is 0"):
        PinnedPool(0, pin=False)
