"""Whoever of several dies: his own requests end, within seconds, and nobody else's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import pytest
from arena_pipeline_parts import is_empty
from attach_parts import (
    BUDGET,
    MIB,
    attach,
    descriptors,
    frontend,
    news,
    say_go,
    some_items,
)
from pipeline_parts import script, wait_for

from mmlab import EngineError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items

ERRORS_WITHIN_S = 2.0


def echo_pipeline() -> Pipeline:
    return Pipeline(model="echo", strategy="arena", max_inflight_nbytes=BUDGET, engine_threads=1)


def arenas_mapped(pid: int) -> int:
    return sum("/memfd:mmlab-arena" in line.path for line in psutil.Process(pid).memory_maps(False))


def test_a_killed_frontend_takes_only_its_own_along() -> None:
    """With requests queued in the engine, and leases of its arena held there."""
    with echo_pipeline() as pipe, attach(pipe) as other:
        for _ in range(3):
            assert pipe.submit_items(some_items(MIB)).result(5)
            assert other.submit_items(some_items(MIB)).result(5)
        before, maps = descriptors(pipe.engine_pid), arenas_mapped(pipe.engine_pid)
        stats = pipe.stats()
        with frontend(pipe, "send", 12, MIB) as killed:
            news(killed)
            assert arenas_mapped(pipe.engine_pid) == maps + 1
            os.kill(pipe.engine_pid, signal.SIGSTOP)
            try:
                say_go(killed)
                assert news(killed) == {"sent": 12}
                items = [some_items(MIB) for _ in range(10)]
                futures = [(other, pipe)[n % 2].submit_items(some) for n, some in enumerate(items)]
                killed.kill()
                killed.wait()
            finally:
                os.kill(pipe.engine_pid, signal.SIGCONT)
            checksums = [future.result(5).checksum for future in futures]
            assert checksums == [checksum_items(some) for some in items]
        assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
        assert wait_for(lambda: arenas_mapped(pipe.engine_pid) == maps)
        assert pipe.submit_items(None).result(5) and "has left" in pipe.engine_output
        assert is_empty(pipe) and is_empty(other)
        ignored = (
            "engine_rejected",
            "arena_peak_nbytes",
            "arena_copied_nbytes",
            "arena_free_nbytes",
        )
        after = pipe.stats()
        assert {n: v for n, v in after.items() if n not in ignored} == {
            n: v for n, v in stats.items() if n not in ignored
        }


def test_death_is_seen_though_a_fork_holds_all_its_descriptors() -> None:
    code = """
import os, signal, sys, mmlab
pipe = mmlab.Pipeline.attach(sys.argv[1], max_inflight_nbytes=1 << 20)
if (fork := os.fork()) == 0:
    signal.alarm(30)
    signal.pause()
print(fork, flush=True)
signal.pause()
"""
    with echo_pipeline() as pipe:
        before = descriptors(pipe.engine_pid)
        with script(code, pipe.address) as killed:
            assert killed.stdout is not None
            fork = int(killed.stdout.readline())
            try:
                killed.kill()
                killed.wait()
                assert wait_for(lambda: "frontend 2 has left" in pipe.engine_output)
                assert wait_for(lambda: arenas_mapped(pipe.engine_pid) == 1)
                assert psutil.pid_exists(fork)
            finally:
                os.kill(fork, signal.SIGKILL)
        assert wait_for(lambda: descriptors(pipe.engine_pid) == before)
        assert pipe.submit_items(some_items(MIB)).result(5)


def test_a_killed_engine_fails_the_futures_of_every_frontend() -> None:
    with echo_pipeline() as pipe, attach(pipe) as other, ExitStack() as undo:
        away = [undo.enter_context(frontend(pipe, "until")) for _ in range(2)]
        for one in away:
            news(one)
        os.kill(pipe.engine_pid, signal.SIGSTOP)
        for one in away:
            say_go(one)
            assert news(one) == {"sent": 8}
        futures = [p.submit_items(some_items(MIB)) for p in (pipe, other) for _ in range(3)]
        begun = time.monotonic()
        os.kill(pipe.engine_pid, signal.SIGKILL)
        errors = [future.exception(5) for future in futures]
        assert time.monotonic() - begun < ERRORS_WITHIN_S
        assert all(isinstance(error, EngineError) for error in errors)
        codes = [error.exit_code for error in errors if isinstance(error, EngineError)]
        assert codes == [-9] * 3 + [None] * 3
        assert f"engine (pid {pipe.engine_pid}) has ended" in str(errors[-1])
        for one in away:
            _failed_in_time(news(one), begun)
            assert news(one) == {"late": "EngineError"} and news(one) == {"closed": True}
            assert one.wait(10) == 0


def _failed_in_time(said: dict[str, object], begun: float) -> None:
    errors, at = said["errors"], said["at"]
    assert isinstance(errors, list) and isinstance(at, float)
    assert len(errors) == 8 and all(str(error).startswith("EngineError") for error in errors)
    assert at - begun < ERRORS_WITHIN_S


OWNER = """
import signal, mmlab
pipe = mmlab.Pipeline(model="echo", strategy="arena", max_inflight_nbytes=16 << 20,
                      engine_threads=1)
print(pipe.address, pipe.engine_pid, flush=True)
signal.pause()
"""


def fails_in_time(other: Pipeline, engine: psutil.Process, go: Callable[[], object]) -> None:
    """After `go` all that is under way, and all that comes later, ends with EngineError."""
    engine.suspend()
    futures = [other.submit_items(some_items(MIB)) for _ in range(4)]
    go()
    begun = time.monotonic()
    engine.resume()
    with pytest.raises(EngineError, match=f"attached at {other.address}"):
        while time.monotonic() - begun < 5:  # it may have answered some before it ended
            futures.append(other.submit_items(some_items(100_000)))
    errors = [future.exception(5) for future in futures]
    assert time.monotonic() - begun < ERRORS_WITHIN_S
    others = [e for e in errors if e is not None and not isinstance(e, EngineError)]
    assert not others


def test_when_the_owner_is_killed_the_engine_ends_and_the_others_are_told() -> None:
    with script(OWNER) as owner:
        assert owner.stdout is not None
        address, pid = owner.stdout.readline().split()
        engine = psutil.Process(int(pid))
        try:
            with Pipeline.attach(address, max_inflight_nbytes=BUDGET) as other:
                assert other.submit_items(some_items(MIB)).result(5)
                fails_in_time(other, engine, owner.kill)
                owner.communicate(timeout=10)
                gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
                assert wait_for(lambda: not engine.is_running() or engine.status() in gone)
        finally:
            owner.kill()


def test_when_the_owner_closes_the_others_are_told() -> None:
    with echo_pipeline() as pipe, ThreadPoolExecutor(1) as pool:
        other = attach(pipe)
        fails_in_time(other, psutil.Process(pipe.engine_pid), lambda: pool.submit(pipe.close))
    with pytest.raises(EngineError, match="ends: its owner has closed it"):
        other.submit_items(None)
    other.close()
