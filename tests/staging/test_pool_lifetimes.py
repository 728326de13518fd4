"""Who may still use a buffer, and what becomes of it when its owner, or the pool, is gone."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from staging_fakes import CountdownEvent, FakeDevice, FlagEvent

from mmlab.errors import BackpressureTimeout, MMLabError
from mmlab.staging import PinnedPool

MIB = 1 << 20


def pool_of(max_nbytes: int) -> PinnedPool:
    return PinnedPool(max_nbytes, pin=False)


def test_tensor_that_is_still_held_is_never_overwritten() -> None:
    with pool_of(MIB) as pool:
        view = pool.acquire(MIB).tensor[10:20].view(2, 5)  # the buffer itself is dropped
        view.fill_(7)
        with pytest.raises(BackpressureTimeout):
            pool.acquire(MIB, timeout=0)
        assert view.tolist() == [[7] * 5] * 2
        address = view.data_ptr() - 10
        del view
        assert pool.acquire(MIB, timeout=0).tensor.data_ptr() == address


def test_release_is_idempotent_and_final() -> None:
    with pool_of(MIB) as pool:
        buffer = pool.acquire(MIB)
        buffer.release()
        buffer.release()
        with pytest.raises(MMLabError, match="after release"):
            _ = buffer.tensor
        other = pool.acquire(MIB)
        with pytest.raises(MMLabError, match="came after it had been released"):
            buffer.release(after=FlagEvent())
        buffer.release()  # not this one's any more
        assert pool.stats().live == 1
        with other:
            pass
        assert pool.stats().live == 0


def test_death_of_a_view_takes_no_lock() -> None:
    """A finalizer may run while its own thread holds the pool's lock."""
    with pool_of(MIB) as pool:
        view = pool.acquire(MIB).tensor[:10]
        with pool._changed:
            del view
        assert pool.stats().live == 0


def test_close_waits_for_copies_refuses_acquires_and_keeps_held_tensors() -> None:
    device = FakeDevice()
    pool = PinnedPool(4 * MIB, device=device)
    event = CountdownEvent(3)
    view = pool.acquire(MIB).tensor[:4]
    view.fill_(9)
    pool.acquire(MIB).release(after=event)
    pool.acquire(MIB).release()
    pool.close()
    pool.close()
    assert event.left < 0
    with pytest.raises(MMLabError, match="after close"):
        pool.acquire(1)
    assert view.tolist() == [9] * 4
    assert sum(device.live.values()) == MIB
    del view
    assert device.live == {}
    assert pool.stats().live_nbytes == pool.stats().cached_nbytes == 0


def test_close_ends_a_waiting_acquire() -> None:
    pool = pool_of(MIB)
    held = pool.acquire(MIB)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, MIB)
        while pool.stats().waits == 0:
            time.sleep(0.001)
        pool.close()
        with pytest.raises(MMLabError, match="after close"):
            waiting.result(5)
    held.release()


def test_memory_outlives_its_pool_until_the_copy_has_finished() -> None:
    device = FakeDevice()
    pool = PinnedPool(MIB, device=device)
    alive: list[int] = []

    class Watching(CountdownEvent):
        def query(self) -> bool:
            alive.append(sum(device.live.values()))
            return super().query()

    pool.acquire(MIB).release(after=Watching(3))
    del pool
    gc.collect()
    assert alive == [MIB] * 4
    assert device.live == {}
