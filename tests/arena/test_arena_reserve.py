"""Waiting for room: in order of arrival, with a time-out, and awake as soon as there is some."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from arena_parts import KIB, MIB

from mmlab.arena import Arena, Lease
from mmlab.errors import BackpressureTimeout, TransportError, UsageError

if TYPE_CHECKING:
    from tests.conftest import Leftovers


def wait_until_queued(arena: Arena, count: int) -> None:
    end = time.monotonic() + 10
    while len(arena._room._queue) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_large_request_that_waits_is_not_overtaken_by_small_ones() -> None:
    with Arena(MIB) as arena, ThreadPoolExecutor(4) as threads:
        held = [arena.reserve(256 * KIB) for _ in range(4)]
        order: list[int] = []

        def take(nbytes: int) -> Lease:
            lease = arena.reserve(nbytes, 20)
            order.append(nbytes)
            return lease

        futures = []
        for count, nbytes in enumerate((600 * KIB, KIB, 200 * KIB), 1):
            futures.append(threads.submit(take, nbytes))
            wait_until_queued(arena, count)
        held.pop()  # room for the small ones, not for the first
        with pytest.raises(BackpressureTimeout):
            arena.reserve(64, timeout=0)
        time.sleep(0.05)
        assert order == [] and len(arena._room._queue) == 3
        held.pop()
        held.pop()  # now for the large one and the small one
        got = [futures[0].result(10), futures[1].result(10)]
        assert order == [600 * KIB, KIB]
        held.pop()
        got.append(futures[2].result(10))
        assert order == [600 * KIB, KIB, 200 * KIB]
        stats = arena.stats()
        assert stats.waits == 4 and stats.waited_s > 0.1 and stats.leases == 3


def test_a_waiting_request_is_awake_within_milliseconds_of_a_finalizer() -> None:
    with Arena(MIB) as arena, ThreadPoolExecutor(1) as threads:
        delays = []
        for _ in range(20):
            held = arena.empty((MIB,), torch.uint8)
            future = threads.submit(lambda: (arena.reserve(MIB, 20), time.perf_counter())[1])
            wait_until_queued(arena, 1)
            time.sleep(0.002)
            began = time.perf_counter()
            del held
            delays.append(future.result(10) - began)
            del future
        assert sorted(delays)[10] < 0.02, delays  # the fallback looks once a second


def test_a_time_out_names_needed_free_and_largest_free() -> None:
    with Arena(MIB) as arena:
        leases = [arena.reserve(256 * KIB) for _ in range(4)]
        del leases[2], leases[0]
        began = time.monotonic()
        with pytest.raises(
            BackpressureTimeout,
            match=rf"{300 * KIB} B after 0.1 s: of {MIB} B, {512 * KIB} B are free, {256 * KIB} B",
        ):
            arena.reserve(300 * KIB, timeout=0.1)
        assert 0.1 <= time.monotonic() - began < 2
        began = time.monotonic()
        for timeout in (0, -1):
            with pytest.raises(TimeoutError):
                arena.reserve(300 * KIB, timeout=timeout)
        assert time.monotonic() - began < 0.5
        assert arena.reserve(256 * KIB, timeout=0)  # nobody is left in the queue
        assert arena.stats().waits == 3 and not arena._room.returns.waiting


def test_a_request_larger_than_the_arena_is_refused_at_once_with_both_numbers() -> None:
    with Arena(MIB) as arena:
        held = arena.reserve(MIB)
        for sizes in (MIB + 1, [MIB, 1], [MIB // 2] * 3):
            with pytest.raises(UsageError, match=rf"\d+ B needed, the whole arena has {MIB} B"):
                arena.reserve(sizes)
        with pytest.raises(ValueError, match="needed"):
            arena.empty((1 << 40,), torch.float32)
        for sizes in (0, -5, [], [64, 0]):
            with pytest.raises(UsageError, match="wanted 1 B or more"):
                arena.reserve(sizes)
        assert arena.stats().leases == 1
        del held


def test_fragmented_room_gives_a_list_of_extents_all_or_none() -> None:
    with Arena(MIB) as arena:
        leases = [arena.reserve(128 * KIB) for _ in range(8)]
        del leases[::2]
        lease = arena.reserve([100 * KIB] * 4, timeout=0)
        assert [extent.nbytes for extent in lease.extents] == [100 * KIB] * 4
        places = sorted(extent.offset for extent in lease.extents)
        assert all(b - a >= 100 * KIB for a, b in pairwise(places))
        for i in range(4):
            lease.array(i)[:] = i + 1
        assert [int(lease.array(i).sum()) for i in range(4)] == [
            100 * KIB * (i + 1) for i in range(4)
        ]
        lease.release()
        before = arena.stats()
        with pytest.raises(BackpressureTimeout):
            arena.reserve([100 * KIB] * 4 + [28 * KIB] * 5, timeout=0)  # the last one has no room
        assert arena.stats().live_nbytes == before.live_nbytes
        del leases
        whole = arena.reserve([100 * KIB] * 4, timeout=0)
        assert [extent.nbytes for extent in whole.extents] == [400 * KIB]


def test_close_fails_who_waits_and_refuses_what_comes() -> None:
    arena = Arena(MIB)
    held = arena.empty((MIB,), torch.uint8)
    held.fill_(9)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(arena.reserve, MIB) for _ in range(3)]
        wait_until_queued(arena, 3)
        began = time.monotonic()
        arena.close()
        arena.close()
        for future in waiting:
            with pytest.raises(TransportError, match="closed"):
                future.result(5)
        assert time.monotonic() - began < 0.5  # the fallback would look after a second
    with pytest.raises(TransportError, match="closed"):
        arena.reserve(64)
    assert int(held.sum()) == 9 * MIB and arena.where(held) is None
    assert arena.stats().live_nbytes == MIB
    del held, waiting, future
    assert arena.stats().live_nbytes == arena.stats().leases == 0


@pytest.mark.parametrize("debug", [False, True])
def test_the_mapping_and_its_descriptor_go_with_the_last_view(
    debug: bool, leftovers: Leftovers
) -> None:
    arena = Arena(MIB, debug=debug)
    name = "mmlab-arena (deleted)"
    view = arena.empty((1000,), torch.float32)[10:20]
    arena.close()
    assert name in Path("/proc/self/maps").read_text()
    del view
    assert name not in Path("/proc/self/maps").read_text()
    assert not leftovers("fds")


def test_an_arena_that_is_dropped_without_close_leaves_nothing(leftovers: Leftovers) -> None:
    arena = Arena(MIB)
    view = arena.empty((1000,), torch.float32)
    del arena
    view.fill_(1)
    del view
    assert not leftovers("fds")


def test_a_lease_takes_its_bytes_once_and_nothing_after_release() -> None:
    with Arena(MIB) as arena:
        lease = arena.reserve(64)
        with pytest.raises(UsageError, match="takes no more"):
            lease.reserve([64])
        lease.release()
        lease.release()
        for act in (lease.view, lease.array, lambda: lease.expect(1), lambda: lease.reserve([64])):
            with pytest.raises(TransportError, match="was released"):
                act()
        assert arena.stats().leases == 0


def test_many_threads_wait_and_all_are_served() -> None:
    """Half of all bytes are asked for all the time; the sum of what is live never exceeds them."""
    with Arena(MIB) as arena:
        done: list[int] = []

        def work(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(60):
                nbytes = int(torch.randint(1, 600 * KIB, (1,), generator=generator))
                tensor = arena.empty((nbytes,), torch.uint8, timeout=30)
                tensor.fill_(seed)
                assert int(tensor[0]) == int(tensor[-1]) == seed
                del tensor  # whoever holds some and waits for more may wait for ever
            done.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert sorted(done) == [0, 1, 2, 3]
        stats = arena.stats()
        assert stats.live_nbytes == stats.leases == 0 and stats.peak_nbytes <= MIB
        assert stats.largest_free_nbytes == MIB
