"""Several frontends to one engine: everyone gets his own answers, and goes without the others."""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
from arena_pipeline_parts import arena_of, frozen, is_empty, mappings
from attach_parts import (
    BUDGET,
    MIB,
    attach,
    descriptors,
    frontend,
    news,
    say_go,
    send_fifty,
    some_items,
)
from pipeline_parts import script, wait_for

from mmlab import EngineError, UsageError, strategies
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items


@pytest.fixture(scope="module")
def shared() -> Iterator[Pipeline]:
    with Pipeline(
        model="echo", strategy="arena", max_inflight_nbytes=BUDGET, engine_threads=1
    ) as pipeline:
        yield pipeline


@pytest.fixture
def pipe(shared: Pipeline) -> Iterator[Pipeline]:
    """Afterwards it serves as before."""
    yield shared
    items = some_items(MIB)
    assert shared.submit_items(items).result(5).checksum == checksum_items(items)
    assert is_empty(shared)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("transport", ["ipc", "tcp", "arena"])
def test_three_processes_send_at_once_and_each_gets_its_own_answers(transport: str) -> None:
    strategy = replace(strategies()["msgpack"], name=f"by {transport}", transport=transport)
    with ExitStack() as undo:
        pipe = undo.enter_context(
            Pipeline("echo", strategy, max_inflight_nbytes=BUDGET, engine_threads=1)
        )
        others = [undo.enter_context(frontend(pipe, "fifty", seed)) for seed in (1, 2)]
        first = [news(other) for other in others]
        assert sorted(str(said["number"]) for said in first) == ["2", "3"]
        assert {said["pid"] for said in first} == {pipe.engine_pid}
        for other in others:
            say_go(other)
        mine = send_fifty(pipe, 3)
        assert mine == {"right": 50, "numbers": [1], "unexpected": 0}
        for other, said in zip(others, first, strict=True):
            wanted = {"right": 50, "numbers": [said["number"]], "unexpected": 0}
            assert news(other) == wanted
            assert other.wait(10) == 0
        assert pipe.stats()["engine_rejected"] == pipe.stats()["unexpected_replies"] == 0


def test_what_is_attached_works_like_any_pipeline(pipe: Pipeline) -> None:
    with attach(pipe, 8 * MIB) as other:
        assert (other.model, other.strategy, other.engine_pid) == (
            "echo",
            pipe.strategy,
            pipe.engine_pid,
        )
        assert other.address == pipe.address and other.info.device == "cpu"
        assert other.arena is not None and other.arena.id != arena_of(pipe).id
        assert other.info.arena_nbytes == other.arena.size == 9 * MIB
        assert other.stats()["nbytes_budget"] == 8 * MIB and other.engine_output == ""
        with pytest.raises(UsageError, match="has no processor"):
            other.submit("Hello.")
        with frozen(other):
            future = other.submit_items(some_items(MIB))
            assert future.cancel()
        assert is_empty(other)
        assert wait_for(lambda: other.stats()["requests_inflight"] == 0)


def test_requests_of_two_arenas_land_in_one_batch(pipe: Pipeline) -> None:
    together = 0
    with attach(pipe) as other:
        for _ in range(50):  # how many it finds when it wakes is the kernel's to say
            items = [some_items(MIB, 2) for _ in range(6)]
            with frozen(pipe):
                futures = [
                    (pipe if n % 2 else other).submit_items(some) for n, some in enumerate(items)
                ]
            replies = [future.result(10) for future in futures]
            assert [reply.checksum for reply in replies] == [checksum_items(some) for some in items]
            together = max(reply.batch_requests for reply in replies)
            if together > 3:  # more than one of them has sent
                break
        assert together > 3
        assert is_empty(other)


def test_a_request_may_be_as_large_as_the_owners_budget_and_no_larger(pipe: Pipeline) -> None:
    with attach(pipe, 3 * BUDGET) as other:
        items = some_items(BUDGET)
        futures = [other.submit_items(items) for _ in range(2)]
        assert {future.result(10).checksum for future in futures} == {checksum_items(items)}
        with pytest.raises(UsageError, match=f"{BUDGET + 1} payload bytes.* takes {BUDGET} bytes"):
            other.submit_items(some_items(BUDGET + 1))


def test_closing_ends_ones_own_link_only_in_any_order(
    pipe: Pipeline, leftovers: Callable[..., list[str]]
) -> None:
    assert pipe.submit_items(some_items(MIB)).result(5)
    leftovers.reset()  # type: ignore[attr-defined]
    before = descriptors(pipe.engine_pid)
    first, second = attach(pipe), attach(pipe)
    assert first.submit_items(some_items(MIB)).result(5)
    arenas = [arena_of(first).id, arena_of(second).id]
    with frozen(pipe):
        lost = first.submit_items(some_items(MIB))
        kept = second.submit_items(some_items(MIB))
        first.close()
        with pytest.raises(EngineError, match="closed"):
            lost.result(0)
    assert kept.result(5)
    first.close()
    with pytest.raises(EngineError, match="closed"):
        first.submit_items(None)
    with attach(pipe) as third:
        assert third.submit_items(some_items(MIB)).result(5)
        numbers = [next(p._link._ids) >> 40 for p in (first, second, third)]
        assert numbers == sorted(set(numbers))  # a number is never given twice
        second.close()
        assert third.submit_items(some_items(MIB)).result(5)
    del lost, kept
    gc.collect()
    assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
    assert [mappings(pipe.engine_pid, arena) for arena in arenas] == [[], []]
    assert not leftovers("fds", "threads", "processes", "shm")


def test_a_forgotten_one_is_closed(pipe: Pipeline, leftovers: Callable[..., list[str]]) -> None:
    assert pipe.submit_items(some_items(MIB)).result(5)
    leftovers.reset()  # type: ignore[attr-defined]
    before = descriptors(pipe.engine_pid)
    other = attach(pipe)
    assert other.submit_items(some_items(MIB)).result(5)
    assert descriptors(pipe.engine_pid) > before
    del other
    gc.collect()
    assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
    assert not leftovers("fds", "threads")


def test_closing_is_seen_though_a_fork_holds_the_connection(pipe: Pipeline) -> None:
    before = descriptors(pipe.engine_pid)
    with attach(pipe) as other:
        copy = socket.socket(fileno=os.dup(other._link.process._control.fileno()))  # type: ignore[attr-defined]
    assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
    copy.close()


FORK = """
import os, sys
import mmlab
with mmlab.Pipeline.attach(sys.argv[1], max_inflight_nbytes=1 << 20) as pipe:
    if os.fork() == 0:
        try:
            pipe.submit_items(None)
        except mmlab.TransportError as error:
            assert "fork" in str(error)
        pipe.close()
        os._exit(0)
    assert os.wait()[1] == 0
    print(pipe.submit_items(None).result(5).checksum)
"""


def test_a_fork_neither_uses_nor_closes_it(pipe: Pipeline) -> None:
    with script(FORK, pipe.address) as run:
        out, err = run.communicate(timeout=20)
    assert int(out) == pipe.submit_items(None).result(5).checksum, err


def test_ctrl_c_in_close_is_raised_and_leaves_nothing(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    other = attach(pipe)
    other.submit_items(None).result(5)

    def interrupted(**how: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(other._link.process, "stop", interrupted)
        other.close()
    other.close()
    del other
    assert not leftovers("fds", "threads")


def test_many_threads_attach_and_leave_at_once(
    pipe: Pipeline, leftovers: Callable[..., list[str]]
) -> None:
    before = descriptors(pipe.engine_pid)

    def come_and_go(seed: int) -> bool:
        items = some_items(80_000)
        with attach(pipe, MIB) as other:
            return other.submit_items(items).result(10).checksum == checksum_items(items)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(come_and_go, range(24)))
    assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
    gc.collect()
    assert not leftovers("fds", "threads")


def test_pickle_has_to_be_allowed_on_both_sides() -> None:
    with Pipeline("echo", "pickle", insecure_pickle=True, engine_threads=1) as pipe:
        with pytest.raises(UsageError, match="insecure_pickle=True"):
            Pipeline.attach(pipe.address)
        with Pipeline.attach(pipe.address, insecure_pickle=True) as other:
            items = some_items(MIB)
            assert other.submit_items(items).result(5).checksum == checksum_items(items)


def test_a_stopped_frontend_with_many_replies_delays_nobody(pipe: Pipeline) -> None:
    """Its leases are given back to it when it goes on, and the others' at once meanwhile."""
    with frontend(pipe, "send", 100, 100_000) as other:
        news(other)
        say_go(other)
        assert news(other) == {"sent": 100}
        other.send_signal(signal.SIGSTOP)
        for _ in range(30):
            items = some_items(MIB)
            assert pipe.submit_items(items).result(5).checksum == checksum_items(items)
        assert is_empty(pipe)
