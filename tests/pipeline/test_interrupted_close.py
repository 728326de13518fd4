"""Ctrl-C while a pipeline closes: nothing is left, at the latest after the next close."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import psutil
import pytest
from pipeline_parts import images, socket_directory

from mmlab import EngineError
from mmlab.pipeline import Pipeline, Reply
from mmlab.pipeline.inflight import ByteBudget, InFlight, Pending, ReplyFuture


@contextmanager
def ctrl_c_after(*seconds: float) -> Iterator[None]:
    def press() -> None:
        for wait in seconds:
            time.sleep(wait)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.timeout(40)
def test_ctrl_c_in_close_kills_the_engine_and_leaves_nothing(
    leftovers: Callable[..., list[str]],
) -> None:
    pipeline = Pipeline(model="echo", engine_threads=1)
    directory, pid = socket_directory(pipeline), pipeline.engine_pid
    future = pipeline.submit_items(None)
    future.result(5)
    os.kill(pid, signal.SIGSTOP)
    waiting = pipeline.submit_items(images(1))
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(0.5):
        pipeline.close()
    assert time.monotonic() - begun < 1.5
    assert not psutil.pid_exists(pid) and not directory.exists()
    with pytest.raises(EngineError, match="closed"):
        waiting.result(0)
    pipeline.close()
    assert not leftovers("fds", "threads", "processes")


@pytest.mark.timeout(40)
def test_a_close_that_was_interrupted_twice_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    pipeline = Pipeline(model="echo", engine_threads=1)
    directory, pid = socket_directory(pipeline), pipeline.engine_pid

    def interrupted(timeout: float) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._link.process, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pipeline.close()
    assert psutil.pid_exists(pid) and directory.exists()
    pipeline.close()
    assert not psutil.pid_exists(pid) and not directory.exists()
    pipeline.close()
    assert not leftovers("fds", "threads", "processes")


def test_a_callback_that_is_interrupted_leaves_the_other_futures_to_the_next_call() -> None:
    inflight = InFlight(ByteBudget(100))
    futures = [ReplyFuture(number, lambda _: True, None) for number in range(2)]
    for number, future in enumerate(futures):
        inflight.budget.acquire(10, None)
        inflight.add(number, Pending(future, 10, 0))

    def interrupted(future: Future[Reply]) -> None:
        raise KeyboardInterrupt

    futures[0].add_done_callback(interrupted)
    with pytest.raises(KeyboardInterrupt):
        inflight.fail_all(lambda: EngineError("closed"))
    assert inflight.fail_all(lambda: EngineError("closed")) == 1
    assert all(future.done() for future in futures) and inflight.budget.taken == 0
