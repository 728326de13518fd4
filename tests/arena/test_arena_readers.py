"""Readers: an extent is free when all that were expected have returned it, each once."""

from __future__ import annotations

import logging
import threading
from collections import deque

import pytest
from arena_parts import KIB, MIB, described, sent

from mmlab.arena import Arena, ArenaReader, Returned
from mmlab.errors import TransportError, WireError


def test_an_extent_is_free_when_all_readers_have_returned_it() -> None:
    with Arena(MIB) as arena:
        queues: list[deque[Returned]] = [deque() for _ in range(3)]
        readers = [ArenaReader(arena.fileno(), queue.append) for queue in queues]
        descriptor = sent(arena, 1000, 7, readers=3)
        views = [reader.view(descriptor) for reader in readers]
        assert arena.stats().leases == 1
        for i in (2, 0, 1):
            assert set(views[i][0]) == {7}
            part = views[i].pop()[500:]
            assert not queues[i]
            del part
            assert queues[i] == deque([(arena.id, descriptor.generation, descriptor.lease)])
            assert arena.stats().live_nbytes == 1024
            assert arena.give_back(queues[i][0], i)
            assert not arena.give_back(queues[i].pop(), i)  # twice
        assert arena.stats().live_nbytes == arena.stats().leases == 0
        assert arena.stats().stale_returns == 3


def test_one_return_for_all_extents_of_a_descriptor() -> None:
    with Arena(MIB) as arena:
        ended: deque[Returned] = deque()
        blockers = [arena.reserve(256 * KIB) for _ in range(4)]
        del blockers[::2]
        with ArenaReader(arena.fileno(), ended.append) as reader:
            lease = arena.reserve([200 * KIB] * 2)
            views = reader.view(described(arena, lease))
            assert [len(view) for view in views] == [200 * KIB] * 2
            views.pop(0)
            assert not ended
            views.pop()
            assert len(ended) == 1


def test_a_stale_return_frees_nothing_of_who_came_after() -> None:
    with Arena(MIB) as arena:
        first = sent(arena, 1000, 1)
        old = Returned(arena.id, first.generation, first.lease)
        assert arena.give_back(old)
        second = sent(arena, 1000, 2)
        assert (second.lease, second.extents) == (first.lease, first.extents)  # used again
        assert second.generation > first.generation
        assert not arena.give_back(old)
        assert not arena.give_back(Returned(arena.id + 1, second.generation, second.lease))
        assert not arena.give_back(Returned(arena.id, second.generation, 99))
        assert not arena.give_back(Returned(arena.id, second.generation, second.lease), reader=5)
        assert arena.stats().live_nbytes == 1024 and arena.stats().stale_returns == 4
        assert arena.give_back(Returned(arena.id, second.generation, second.lease))
        arena._room.returns.put(second.lease, second.generation)  # of the creator's own side
        assert arena.stats().stale_returns == 5
        third = arena.reserve(1000)
        assert third.number == second.lease
        arena._room.returns.put(third.number, second.generation)
        assert arena.stats().stale_returns == 6 and arena.stats().leases == 1


def test_a_dead_reader_holds_nothing_any_more() -> None:
    with Arena(MIB) as arena:
        both, mine = sent(arena, 1000, 1, readers=2), sent(arena, 1000, 2)
        assert arena.give_back(Returned(arena.id, both.generation, both.lease), reader=1)
        assert arena.forget(1) == 0 and arena.stats().leases == 2
        assert arena.forget(0) == 2 and arena.stats().leases == 0
        assert not arena.give_back(Returned(arena.id, mine.generation, mine.lease))
        assert arena.reserve(MIB, timeout=0)


def test_a_return_wakes_who_waits() -> None:
    with Arena(MIB) as arena:
        for act in (
            lambda d: arena.give_back(Returned(arena.id, d.generation, d.lease)),
            lambda d: arena.forget(0),
        ):
            descriptor = sent(arena, MIB, 1)
            timer = threading.Timer(0.1, act, [descriptor])
            timer.start()
            assert arena.reserve(MIB, timeout=0.8)  # the fallback would look after a second
            timer.join()


def test_a_failing_return_is_logged_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def returned(end: Returned) -> None:
        raise ConnectionError("the engine is gone")

    with Arena(MIB) as arena, ArenaReader(arena.fileno(), returned) as reader:
        with caplog.at_level(logging.ERROR, "mmlab"):
            views = reader.view(sent(arena, 64, 1))
            del views
        (record,) = caplog.records
        assert (
            record.getMessage()
            == "arena: lease 0 not returned: ConnectionError: the engine is gone"
        )
        assert record.exc_info is None


def test_a_closed_reader_gives_out_nothing_and_keeps_what_it_gave() -> None:
    ended: deque[Returned] = deque()
    with Arena(MIB) as arena:
        reader = ArenaReader(arena.fileno(), ended.append)
        (view,) = reader.view(sent(arena, 100, 9))
        reader.close()
        with pytest.raises(TransportError, match="closed"):
            reader.view(sent(arena, 100, 8))
        assert set(view) == {9} and not ended
    del view
    assert len(ended) == 1


def test_a_descriptor_can_be_read_once() -> None:
    """A second reading could outlive the return of the first."""
    with Arena(MIB) as arena, ArenaReader(arena.fileno(), print) as reader:
        first = sent(arena, 64, 1)
        reader.view(first)
        with pytest.raises(WireError, match="generation 1 is stale"):
            reader.view(first)
