"""Whoever dies or closes: the arena ends with the last process that maps it, and so do waits."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from arena_pipeline_parts import (
    MIB,
    arena_of,
    frozen,
    mapped_anywhere,
    mappings,
    pixels_of,
    random_items,
)
from pipeline_parts import script, wait_for

from mmlab import EngineError, TransportError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items


def pipeline(budget: int = 8 * MIB) -> Pipeline:
    return Pipeline(model="echo", strategy="arena", max_inflight_nbytes=budget, engine_threads=1)


def test_a_killed_engine_frees_all_leases_and_fails_every_future() -> None:
    with pipeline() as pipe:
        arena = arena_of(pipe)
        mine = arena.empty((3 * MIB,), torch.uint8)
        mine.fill_(7)
        more = arena.empty((3 * MIB,), torch.uint8)
        with ThreadPoolExecutor(1) as pool:
            os.kill(pipe.engine_pid, signal.SIGSTOP)
            pending = [pipe.submit_items(random_items(MIB)) for _ in range(3)]
            pending.append(pipe.submit_items(pixels_of(mine.view(3, MIB))))
            assert arena.stats().leases == 6
            waiting = pool.submit(pipe.submit_items, random_items(MIB * 2))  # the arena is full
            assert wait_for(lambda: arena.stats().waits == 1)
            begun = time.monotonic()
            os.kill(pipe.engine_pid, signal.SIGKILL)
            futures: list[Future[Any]] = [*pending, waiting]
            for future in futures:
                error = future.exception(5)
                assert isinstance(error, EngineError)
                assert error.exit_code == -9 and "SIGKILL" in str(error)
            assert time.monotonic() - begun < 5
        del error, future, futures, pending, waiting, more
        assert wait_for(lambda: arena.stats().leases == 1)  # the one that is held here
        assert arena.stats().live_nbytes == mine.nbytes and bool((mine == 7).all())
        del mine
        assert arena.stats().leases == arena.stats().live_nbytes == 0
        with pytest.raises(EngineError, match="SIGKILL"):
            pipe.submit_items(random_items(MIB))
        with pytest.raises(TransportError, match="closed"):
            arena.empty((10,), torch.uint8)
        assert pipe.stats()["arena_live_nbytes"] == 0
        begun = time.monotonic()
    assert time.monotonic() - begun < 2
    assert mapped_anywhere(arena.id) == []


def test_what_the_user_holds_survives_close(leftovers: Callable[..., list[str]]) -> None:
    pipe = pipeline()
    pipe.submit_items(random_items(MIB)).result(5)
    arena = arena_of(pipe)
    made = arena.empty((2, 3, 64, 64), torch.float32)
    made.fill_(1.5)
    part = made[1]
    with frozen(pipe):
        future = pipe.submit_items(pixels_of(made))
    assert future.result(5).checksum == checksum_items(pixels_of(made))
    begun = time.monotonic()
    pipe.close()
    assert time.monotonic() - begun < 5
    with pytest.raises(EngineError, match="closed"):
        pipe.submit_items(random_items(MIB))
    assert mappings("self", arena.id) == ["rw-s"]  # for the tensor, and nowhere else
    assert mapped_anywhere(arena.id) == [str(os.getpid())]
    assert bool((made == 1.5).all())
    made.fill_(2.5)
    del made
    assert bool((part == 2.5).all())
    assert not leftovers("threads", "processes", "shm")
    del part, future
    gc.collect()
    assert mappings("self", arena.id) == []
    pipe.close()
    assert not leftovers("fds", "threads", "processes", "shm")


def test_close_ends_a_wait_for_room() -> None:
    pipe = pipeline()
    arena = arena_of(pipe)
    held = arena.empty((8 * MIB,), torch.uint8)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pipe.submit_items, random_items(2 * MIB))
        assert wait_for(lambda: arena.stats().waits == 1)
        pipe.close()
        assert isinstance(waiting.exception(5), EngineError)
    assert held.nbytes == 8 * MIB


FRONTEND = """
import json
import torch, mmlab
pipe = mmlab.Pipeline(model="echo", strategy="arena", max_inflight_nbytes=8 << 20,
                      engine_threads=1)
made = pipe.arena.empty((1, 1 << 20), torch.uint8)
made.fill_(1)
items = mmlab.KwargsItems.from_processor({"x": made}, {"x": mmlab.batched("image")})
assert pipe.submit_items(items).result(10).checksum
print(json.dumps([pipe.engine_pid, pipe.arena.id]), flush=True)
while True:
    pipe.submit_items(items)
"""


def started(frontend: subprocess.Popen[str]) -> tuple[psutil.Process, int]:
    """The engine and the arena of a frontend that says so, and sends without end."""
    assert frontend.stdout is not None and frontend.stderr is not None
    line = frontend.stdout.readline()
    assert line, frontend.stderr.read()
    pid, inode = json.loads(line)
    return psutil.Process(pid), inode


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("both", [False, True], ids=["frontend", "frontend and engine"])
def test_after_a_killed_frontend_nothing_is_left(both: bool) -> None:
    before = set(Path("/dev/shm").iterdir())
    with script(FRONTEND) as frontend:
        try:
            engine, inode = started(frontend)
            assert set(mapped_anywhere(inode)) == {str(frontend.pid), str(engine.pid)}
            if both:
                engine.suspend()
            frontend.kill()
            frontend.wait()
            if both:
                engine.kill()
            assert wait_for(lambda: is_gone(engine), 5)
        finally:
            frontend.kill()
            if engine.is_running():
                engine.kill()
    assert wait_for(lambda: not mapped_anywhere(inode))
    assert not set(Path("/dev/shm").iterdir()) - before
