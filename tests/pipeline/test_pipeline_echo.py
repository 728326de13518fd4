"""The pipeline with an engine that has no model: what a caller can rely on."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import psutil
import pytest
import torch
from pipeline_parts import images, socket_directory, wait_for

import mmlab
from mmlab import BackpressureTimeout, BatchError, EncodeError, EngineError, KwargsItems, UsageError
from mmlab.pipeline import Pipeline, Reply, process
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import STAGES
from mmlab.strategies import resolve


@contextmanager
def frozen(pipeline: Pipeline) -> Iterator[None]:
    """The engine does nothing meanwhile: what is sent stays under way."""
    os.kill(pipeline.engine_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pipeline.engine_pid, signal.SIGCONT)


def test_the_reply_says_what_reached_the_device_and_what_it_took(echo: Pipeline) -> None:
    items = images(4, shape=(3, 64, 64))
    begun = time.monotonic()
    reply = echo.submit_items(items, [1, 2]).result(10)
    wall = time.monotonic() - begun
    assert isinstance(reply, Reply)
    assert reply.checksum == checksum_items(items)
    assert reply.token_ids == [] and reply.text == ""
    assert reply.device == "cpu" and reply.pinned is False
    assert reply.payload_nbytes == items.nbytes == 4 * 3 * 64 * 64 * 4
    assert reply.num_frames == 2 and 0 < reply.wire_nbytes - reply.payload_nbytes < 1024
    assert {*STAGES, "queue", "checksum", "total"} <= reply.timings.keys()
    assert all(seconds >= 0 for seconds in reply.timings.values())
    parts = sum(s for stage, s in reply.timings.items() if stage != "total")
    assert 0 < parts <= reply.timings["total"] <= wall
    assert reply.timings["transport"] > 0 and reply.timings["encode"] > 0


def test_what_the_engine_is_can_be_asked(echo: Pipeline) -> None:
    info = echo.info
    assert info.pid == echo.engine_pid == psutil.Process(info.pid).pid
    assert (info.device, info.pinned, info.torch_threads) == ("cpu", False, 1)
    assert info.malloc_tuned
    assert info.start_s["total"] < 2  # beside the interpreter and torch's import
    assert echo.model == "echo" and echo.strategy.name == "msgpack"


def test_every_request_has_an_id_of_its_own(echo: Pipeline) -> None:
    replies = [future.result(5) for future in [echo.submit_items(None) for _ in range(5)]]
    assert len({reply.request_id for reply in replies}) == 5


def test_eight_threads_get_their_own_answers(echo: Pipeline) -> None:
    def client(thread: int) -> list[bool]:
        sent = []
        for number in range(50):
            items = images(1 + number % 3, 1000.0 * thread + number, (3, 48, 48))
            sent.append((echo.submit_items(items, timeout=30), checksum_items(items)))
        return [future.result(30).checksum == checksum for future, checksum in sent]

    unexpected = echo.stats()["unexpected_replies"]
    with ThreadPoolExecutor(8) as pool:
        answers = [right for client in pool.map(client, range(8)) for right in client]
    assert len(answers) == 400 and all(answers)
    assert echo.stats()["unexpected_replies"] == unexpected


def test_memory_of_sent_frames_is_let_go(echo: Pipeline) -> None:
    echo.submit_items(images(4, shape=(3, 128, 128))).result(10)
    assert wait_for(lambda: echo.stats()["frames_unreleased"] == 0)


def test_a_cached_item_is_refused_when_the_request_is_built(echo: Pipeline) -> None:
    items = KwargsItems({"image": [images(1)["image"][0], None], "video": [None]})
    with pytest.raises(ValueError, match=r"image\[1\], video\[0\]: None.*send the item itself"):
        echo.submit_items(items)
    assert issubclass(BatchError, ValueError)


def test_what_cannot_be_carried_is_an_error_before_anything_is_sent(echo: Pipeline) -> None:
    items = KwargsItems.from_processor(
        {"x": [torch.eye(2).to_sparse()]}, {"x": mmlab.batched("image")}
    )
    before = echo.stats()
    with pytest.raises(EncodeError, match="x"):
        echo.submit_items(items)
    assert echo.stats() == before


def test_echo_has_no_processor(echo: Pipeline) -> None:
    with pytest.raises(UsageError, match=r"use submit_items\(\)"):
        echo.submit("text")


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_a_request_over_the_budget_is_refused_at_once_with_both_numbers(
    echo: Pipeline, timeout: float | None
) -> None:
    items = images(6, shape=(3, 1024, 1024))
    begun = time.monotonic()
    with pytest.raises(UsageError, match=rf"{items.nbytes} payload bytes.*{64 << 20} bytes"):
        echo.submit_items(items, timeout=timeout)
    assert time.monotonic() - begun < 1


def test_submit_waits_for_room_up_to_its_timeout(echo: Pipeline) -> None:
    items = images(4, shape=(3, 1024, 1024))  # 48 of 64 MiB
    with frozen(echo):
        first = echo.submit_items(items)
        begun = time.monotonic()
        with pytest.raises(BackpressureTimeout, match=r"50331648 of 67108864 bytes"):
            echo.submit_items(items, timeout=0)
        assert time.monotonic() - begun < 0.5
        with pytest.raises(BackpressureTimeout):
            echo.submit_items(items, timeout=0.2)
        assert 0.6 > time.monotonic() - begun > 0.19
        small = echo.submit_items(images(1), timeout=0)  # fits beside it
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(echo.submit_items, items)
            assert wait_for(lambda: echo.stats()["waiting"] == 1)
            os.kill(echo.engine_pid, signal.SIGCONT)
            assert blocked.result(10).result(10).checksum == checksum_items(items)
    assert first.result(10).checksum == checksum_items(items)
    assert small.result(10)


def test_cancelling_makes_room_at_once(echo: Pipeline) -> None:
    items = images(4, shape=(3, 1024, 1024))
    with frozen(echo):
        first = echo.submit_items(items)
        assert first.cancel()
        second = echo.submit_items(items, timeout=0)
    with pytest.raises(CancelledError):
        first.result(0)
    assert wait([first], timeout=0).done == {first}
    assert second.result(10).checksum == checksum_items(items)
    assert wait_for(lambda: echo.stats()["nbytes_abandoned"] == 0)


def test_a_callback_may_submit_again(echo: Pipeline) -> None:
    second: Future[Future[Reply]] = Future()
    first = echo.submit_items(images(1))
    first.add_done_callback(lambda _: second.set_result(echo.submit_items(images(2))))
    assert second.result(5).result(5).checksum == checksum_items(images(2))


def test_asyncio_waits_without_blocking_its_loop(echo: Pipeline) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        with frozen(echo):
            await asyncio.sleep(0.05)
            first = echo.submit_items(images(4, shape=(3, 1024, 1024)))
            loop = asyncio.get_running_loop()
            blocked = loop.run_in_executor(
                None, echo.submit_items, images(4, shape=(3, 1024, 1024))
            )
            await asyncio.sleep(0.3)
            assert not blocked.done() and not first.done()
        reply = await asyncio.wrap_future(await blocked)
        assert reply.payload_nbytes == 48 << 20
        ticking.cancel()

    asyncio.run(main())
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    assert len(ticks) > 10 and sorted(gaps)[len(gaps) // 2] < 0.1


def test_names_are_checked_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.setattr(process.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    for settings, message in (
        ({"strategy": "msgpak"}, "unknown strategy 'msgpak': did you mean 'msgpack'"),
        ({"strategy": "pickle"}, "insecure_pickle=True"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        (
            {"max_inflight_nbytes": 0},
            "max_inflight_nbytes: got 0 .int., wanted a whole number from 1",
        ),
        ({"engine_threads": 0}, "engine_threads: got 0 .int., wanted .* to 1024, or None"),
        ({"model": "gemma3-tinny"}, "unknown model 'gemma3-tinny'.*gemma3-tiny"),
        ({"model": lambda: None}, "model: got"),
        ({"payload": "unit8"}, "unknown payload 'unit8': did you mean 'uint8'"),
    ):
        with pytest.raises(UsageError, match=message):
            Pipeline(**({"model": "echo"} | settings))  # type: ignore[arg-type]
    assert not leftovers("fds", "threads", "processes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transport": "inproc"}, "inproc does not reach another process"),
        ({"transport": "rdma"}, "unknown transport 'rdma'"),
        ({"serializer": "json"}, "unknown serializer 'json'"),
        ({"staging": "magic"}, "unknown staging mode 'magic'"),
        ({"payload": "float16"}, "unknown payload 'float16'.*float32, bfloat16, uint8"),
        ({"payload": ["uint8"]}, "unknown payload"),
        ({"reduce": "eager"}, "reduce is 'eager'"),
        ({"serializer": "pickle", "transport": "tcp"}, "private directory only"),
    ],
)
def test_a_strategy_of_ones_own_must_make_sense(changes: dict[str, str], message: str) -> None:
    strategy = dataclasses.replace(resolve("msgpack"), name="own", **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        Pipeline(model="echo", strategy=strategy, insecure_pickle=True)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU here")
def test_without_a_gpu_what_needs_one_says_so() -> None:
    with pytest.raises(UsageError, match=r"strategy 'msgpack-pinned' needs a GPU.*no"):
        Pipeline(model="echo", strategy="msgpack-pinned")
    with pytest.raises(UsageError, match=r"device 'cuda'.*torch"):
        Pipeline(model="echo", device="cuda")


def test_after_close_nothing_is_left(leftovers: Callable[..., list[str]], echo: Pipeline) -> None:
    """(The other pipeline has warmed pyzmq's thread up; it serves the whole process.)"""
    echo.submit_items(images(2, shape=(3, 128, 128))).result(10)
    leftovers.reset()  # type: ignore[attr-defined]
    with Pipeline(model="echo", strategy="pickle", insecure_pickle=True) as pipeline:
        pid, directory = pipeline.engine_pid, socket_directory(pipeline)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert pipeline.submit_items(images(2)).result(10).checksum == checksum_items(images(2))
        os.kill(pid, signal.SIGSTOP)  # reads nothing more, and takes no orders
        pending = [pipeline.submit_items(images(8, shape=(3, 256, 256))) for _ in range(3)]
        threads = [threading.Thread(target=pipeline.close) for _ in range(3)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert time.monotonic() - begun < 5
    for future in pending:
        with pytest.raises(EngineError, match="closed"):
            future.result(0)
    with pytest.raises(EngineError, match="closed"):
        pipeline.submit_items(images(1))
    assert not psutil.pid_exists(pid)
    assert not leftovers("fds", "threads", "processes", "shm")
    assert not directory.exists()
