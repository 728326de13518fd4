"""A lease ends when its storage is freed: not before, not twice, from any thread."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from arena_parts import KIB, MIB, script

from mmlab.arena import Arena, Returned
from mmlab.errors import UsageError


def test_a_kept_view_stays_unchanged_while_the_arena_is_filled_three_times_over() -> None:
    with Arena(2 * MIB) as arena:
        kept = arena.empty((100, 1000), torch.float32)
        kept.copy_(torch.arange(100_000.0).view(100, 1000))
        kept = kept[40:60].view(-1)[::2]
        filled = 0
        while filled < 3 * 2 * MIB:
            tensor = arena.empty((256 * KIB,), torch.uint8, timeout=0)
            tensor.fill_(0xEE)
            filled += tensor.nbytes
        assert torch.equal(kept, torch.arange(40_000.0, 60_000.0, 2))
        del tensor
        assert arena.stats().live_nbytes == 98 * 4096


@pytest.mark.parametrize(
    "derive",
    [
        lambda t: t[1:3],
        lambda t: t.view(torch.int16),
        lambda t: t.t(),
        lambda t: t.numpy()[1:, ::2],
        lambda t: torch.from_numpy(t.numpy()[2:]),
        lambda t: t.detach().unflatten(0, (2, -1)).unbind(0)[1],
        lambda t: memoryview(t.numpy())[1:],
        lambda t: t.as_strided((2, 2), (1, 1)),
        lambda t: t.requires_grad_().view(-1),
        lambda t: t.untyped_storage(),
        lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    ],
)
def test_an_extent_comes_back_after_the_last_derived_view_has_died(derive) -> None:  # type: ignore[no-untyped-def]
    with Arena(MIB) as arena:
        tensor = arena.empty((4, 1000), torch.float32)
        tensor.fill_(3)
        derived = derive(tensor)
        del tensor
        gc.collect()
        assert arena.stats().live_nbytes == 16_000
        del derived
        gc.collect()
        assert arena.stats().live_nbytes == arena.stats().leases == 0


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex128, torch.int64]
)
def test_empty_makes_any_dtype_and_shape(dtype: torch.dtype) -> None:
    with Arena(MIB) as arena:
        for shape in ((), (3,), (2, 0, 4), (2, 3, 4)):
            tensor = arena.empty(shape, dtype)
            assert tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
            assert tensor.data_ptr() % 64 == 0
            assert (arena.where(tensor) is not None) == bool(tensor.numel())
        del tensor
        with pytest.raises(UsageError, match="no tensor of shape"):
            arena.empty((-1,), dtype)
        with pytest.raises(UsageError, match="quint8"):
            arena.empty((1,), torch.quint8)
        assert arena.stats().leases == 0


def test_where_knows_live_memory_and_nothing_else() -> None:
    with Arena(MIB) as arena, Arena(MIB) as other:
        a, b = arena.empty((1000,), torch.float32), arena.empty((1000,), torch.float32)
        place = arena.where(a)
        assert place is not None and arena.where(a[10:]) == place + 40
        assert arena.where(b.view(torch.uint8)[5:7]) == (arena.where(b) or 0) + 5
        assert other.where(a) is None and arena.where(torch.ones(3)) is None
        strided = arena.empty((10, 10), torch.float32)
        assert arena.where(strided.t()) is None and arena.where(strided[:, 1]) is None
        assert arena.where(torch.zeros(0)) is None
        assert arena.where(torch.empty(3, device="meta")) is None
        assert arena.where(torch.ones(3).to_sparse()) is None
        assert arena.where(arena.empty((4,), torch.complex64).conj()) is None
        whole = torch.from_numpy(np.frombuffer(arena._mapping, np.uint8))  # no lease of anything
        assert arena.where(whole) is None
        assert arena.where(whole[place : place + 4000]) == place  # these bytes are live
        assert arena.where(whole[place : place + 4100]) is None  # these belong to two
        del a
        gc.collect()
        assert arena.where(whole[place : place + 4000]) is None  # and these to nobody
        del whole


def test_freed_extents_are_poisoned_in_debug_mode_and_only_there() -> None:
    for debug in (True, False):
        with Arena(MIB, debug=debug) as arena:
            tensor, neighbour = (arena.empty((1000,), torch.uint8) for _ in range(2))
            tensor.fill_(1)
            neighbour.fill_(2)
            memory = np.frombuffer(arena._mapping, np.uint8)
            del tensor
            arena.stats()
            assert set(memory[:1024].tolist()) == ({0xDB} if debug else {0, 1})
            assert neighbour.eq(2).all()
            del memory


def test_an_expected_lease_outlives_its_producer_and_a_referring_one_its_tensor() -> None:
    with Arena(MIB) as arena:
        tensor = arena.empty((1000,), torch.uint8)
        tensor.fill_(4)
        leases = [arena.lease() for _ in range(2)]
        for lease in leases:
            assert lease.refer(tensor[10:20]) == (10, 0)
            lease.expect([3])
        ends = [Returned(arena.id, lease.generation, lease.number) for lease in leases]
        del tensor, lease, leases
        assert arena.stats().live_nbytes == 1024 and arena.stats().leases == 2
        assert arena.give_back(ends[0], 3)
        assert arena.stats().live_nbytes == 1024
        assert arena.give_back(ends[1], 3)
        assert arena.stats().live_nbytes == 0


def test_finalizers_in_four_threads_with_the_collector_at_work() -> None:
    """Leases in reference cycles end wherever the collector runs, also inside the arena's lock."""
    with Arena(4 * MIB) as arena:
        stop = threading.Event()
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for i in range(300):
                    tensor = arena.empty((1 + 977 * ((seed + i) % 97),), torch.uint8, timeout=20)
                    tensor.fill_(seed)
                    cycle: list[object] = [tensor]
                    cycle.append(cycle)
                    assert tensor.eq(seed).all()
                    del tensor, cycle
            except BaseException as error:
                errors.append(error)

        def collect() -> None:
            while not stop.is_set():
                gc.collect()

        before = gc.get_threshold()
        gc.freeze()  # what is there already need not be walked each time
        gc.set_threshold(5, 2, 2)
        try:
            collector = threading.Thread(target=collect)
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in (collector, *threads):
                thread.start()
            for thread in threads:
                thread.join(40)
                assert not thread.is_alive()
        finally:
            stop.set()
            gc.set_threshold(*before)
            gc.unfreeze()
        collector.join(10)
        assert not errors
        gc.collect()
        stats = arena.stats()
        assert stats.live_nbytes == stats.leases == stats.stale_returns == 0
        assert stats.largest_free_nbytes == 4 * MIB


def test_a_view_that_dies_under_the_lock_of_its_own_thread_does_not_hang() -> None:
    with Arena(MIB) as arena:
        tensor = arena.empty((MIB,), torch.uint8)
        with arena._room._changed:
            del tensor
        assert arena.reserve(MIB, timeout=0)


def test_a_forked_child_returns_nothing_and_allocates_nothing() -> None:
    done = script(
        """
ends = os.memfd_create("ends")
with Arena(MIB) as arena:
    reader = ArenaReader(arena.fileno(), lambda end: os.write(ends, b"x"))
    sent = arena.reserve(1000)
    views = reader.view(Descriptor(arena.id, sent.number, sent.generation, [(0, 1000)]))
    lease = arena.reserve(1000)
    child = os.fork()
    if not child:
        for act in (lambda: arena.reserve(64), arena.stats, arena.close, lambda: lease.expect(1)):
            try:
                act()
            except TransportError as error:
                print(error)
        del views, lease, sent, act
        gc.collect()
        print("queued", len(arena._room.returns.queue), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("live", arena.stats().leases, os.fstat(ends).st_size, arena.fileno() >= 0)
    del views, lease, sent
    print("live", arena.stats().leases, os.fstat(ends).st_size)
"""
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.startswith("arena: its allocator lives in process") for line in lines[:3]] == (
        [True] * 3
    )
    assert lines[3:] == ["queued 0", "live 2 0 True", "live 0 1"]
