"""The processor writes into the arena: nothing is copied, and nothing stays behind.

A real processor before an engine without a model, which answers with the checksum of what arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from arena_pipeline_parts import MIB, arena_of, frozen, is_empty, random_items, spied
from pipeline_parts import wait_for

from mmlab import BackpressureTimeout, EngineError, TransportError, UsageError, pixels
from mmlab.arena import ArenaReader, unpack
from mmlab.gemma import PRESETS, FrontendModel, gemma3, load_frontend
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import Request
from mmlab.pipeline.settings import PAYLOADS
from mmlab.staging import PinnedBatcher
from mmlab.strategies import resolve
from mmlab.wire import Decoder

BUDGET = 32 * MIB
ONE = 3 * 896 * 896  # bytes of an image as uint8; 13 of them fit into the budget


@pytest.fixture(scope="module")
def frontend() -> FrontendModel:
    return load_frontend("gemma3-tiny")


@pytest.fixture(scope="module")
def shared(frontend: FrontendModel) -> Iterator[Pipeline]:
    with Pipeline(
        model="echo", strategy="arena", max_inflight_nbytes=BUDGET, engine_threads=1
    ) as pipe:
        pipe._frontend = frontend
        yield pipe


@pytest.fixture
def pipe(shared: Pipeline) -> Iterator[Pipeline]:
    """Nothing is under way, taken or held after the test."""
    yield shared
    shared.strategy = resolve("arena")
    assert shared.submit_items(None).result(5).checksum
    stats = shared.stats()
    assert stats["requests_inflight"] == stats["nbytes_inflight"] == stats["nbytes_abandoned"] == 0
    assert shared._link.budget.count == 0
    assert is_empty(shared)


@pytest.fixture
def sent(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """Every message that goes over the socket from here on."""
    return spied(pipe, monkeypatch)


def pictures(count: int) -> list[np.ndarray]:
    """Different ones, of sizes that no processor could put into one group."""
    random = np.random.default_rng(count)
    return [
        random.integers(0, 256, (40 + 7 * n, 60 + 5 * n, 3), dtype=np.uint8) for n in range(count)
    ]


def with_payload(pipe: Pipeline, payload: str) -> None:
    pipe.strategy = resolve("arena", payload)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", ["float32", "bfloat16", "uint8"])
def test_the_engine_reads_what_the_processor_wrote_where_it_wrote_it(
    pipe: Pipeline,
    frontend: FrontendModel,
    sent: list[list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    payload: str,
) -> None:
    with_payload(pipe, payload)
    arena, images = arena_of(pipe), pictures(3)
    written: list[tuple[int | None, torch.dtype]] = []
    real = frontend.pixel_values

    def spy(images: Any, out: torch.Tensor) -> torch.Tensor:
        written.append((arena.where(out), out.dtype))
        return real(images, out)

    monkeypatch.setattr(frontend, "pixel_values", spy)
    nbytes, copied = 3 * ONE * PAYLOADS[payload].itemsize, pipe.stats()["arena_copied_nbytes"]
    with frozen(pipe):
        future = pipe.submit("What?", images=images)
        stats = pipe.stats()
        # One extent for all images, in whole pages; the message has nothing of its own.
        assert 0 <= stats["arena_live_nbytes"] - nbytes < 4096
        assert stats["nbytes_inflight"] == nbytes
        (message,) = sent
        with PinnedBatcher("cpu", mode="pageable") as batcher:
            seen = ArenaReader(arena.fileno(), lambda _: None)
            frames = seen.view(unpack(message[1]))
            request = Decoder(Request).decode([message[0], *frames])
            assert isinstance(request, Request) and request.mm is not None
            batch = batcher.stage(request.mm.pairs())
            got = batch.kwargs["pixel_values"]
            base = torch.frombuffer(frames[0], dtype=torch.uint8).data_ptr()
            assert isinstance(got, torch.Tensor) and got.data_ptr() == base and batch.copies == 0
    reply = future.result(10)
    ((offset, dtype),) = written
    assert dtype == PAYLOADS[payload]
    assert unpack(message[1]).extents == [(offset, nbytes)]
    assert reply.payload_nbytes == nbytes and reply.wire_nbytes < 8192
    assert pipe.stats()["arena_copied_nbytes"] == copied
    assert is_empty(pipe)  # with the reply, not with the future
    wanted = frontend.process("What?", images, payload=PAYLOADS[payload])
    assert reply.checksum == checksum_items(wanted.mm)
    assert request.steps == wanted.steps and (request.steps is None) == (payload != "uint8")


def test_what_was_made_elsewhere_is_copied_and_counted(pipe: Pipeline) -> None:
    before = pipe.stats()["arena_copied_nbytes"]
    pipe.submit_items(random_items(3 * MIB, 3)).result(10)
    assert pipe.stats()["arena_copied_nbytes"] - before == 3 * MIB


def test_a_payload_below_the_arenas_threshold_goes_the_plain_way(
    pipe: Pipeline, sent: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = PRESETS["gemma3-tiny"]
    small = dataclasses.replace(preset, vision={**preset.vision, "image_size": 56})
    monkeypatch.setattr(pipe, "_frontend", gemma3.frontend("small", small))
    with_payload(pipe, "uint8")
    peak = pipe.stats()["arena_peak_nbytes"]
    reply = pipe.submit("What?", images=pictures(2)).result(10)
    assert reply.payload_nbytes == 2 * 3 * 56 * 56
    assert [len(message) for message in sent] == [1]
    assert pipe.stats()["arena_peak_nbytes"] == peak


def test_waiting_for_the_budget_or_the_arena_ends_in_time_and_before_any_pixel(
    pipe: Pipeline, frontend: FrontendModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_payload(pipe, "uint8")
    images = pictures(4)
    monkeypatch.setattr(frontend, "pixel_values", lambda *_: pytest.fail("pixels were made"))
    held = arena_of(pipe).empty((30 * MIB,), torch.uint8)
    for timeout in (0, 0.2):
        with pytest.raises(BackpressureTimeout, match=r"arena: no room for \d+ B"):
            pipe.submit("What?", images=images, timeout=timeout)
        assert pipe.stats()["nbytes_inflight"] == 0
    del held
    assert is_empty(pipe)
    with frozen(pipe):
        future = pipe.submit_items(random_items(30 * MIB))
        for timeout in (0, 0.2):
            with pytest.raises(BackpressureTimeout, match="bytes are in flight"):
                pipe.submit("What?", images=images, timeout=timeout)
    assert future.result(10)
    with pytest.raises(UsageError, match=rf"{14 * ONE} payload bytes.* budget is {BUDGET} bytes"):
        pipe.submit("What?", images=pictures(14))


def test_with_room_a_timeout_of_zero_is_enough_again_and_again(pipe: Pipeline) -> None:
    with_payload(pipe, "uint8")
    images = pictures(3)
    for _ in range(10):
        assert pipe.submit("What?", images=images, timeout=0).result(10)


def test_a_submitter_waits_until_there_is_room_and_then_gets_its_own_answer(
    pipe: Pipeline, frontend: FrontendModel
) -> None:
    with_payload(pipe, "uint8")
    wanted = checksum_items(frontend.process("", pictures(4), payload=torch.uint8).mm)
    with ThreadPoolExecutor(4) as pool:
        with frozen(pipe):
            # 9.6 MB each, 33.6 MB in all: the fourth waits for budget, whoever it is.
            asking = [pool.submit(pipe.submit, "", images=pictures(4)) for _ in range(4)]
            assert wait_for(lambda: pipe.stats()["waiting"] == 1)
            assert wait_for(lambda: pipe.stats()["nbytes_inflight"] == 12 * ONE)
        assert [asked.result(20).result(20).checksum for asked in asking] == [wanted] * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["resizing", "writing", "sending"])
def test_whatever_fails_on_the_way_holds_nothing_though_its_error_is_kept(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str
) -> None:
    with_payload(pipe, "bfloat16")
    calls: list[float] = []
    when = 1 if where == "sending" else 2  # of the second image

    if where == "resizing":
        target, name = type(pipe._frontend.processor.image_processor), "resize"  # type: ignore[union-attr]
    elif where == "writing":
        target, name = pixels, "apply"  # type: ignore[assignment]
    else:
        target, name = pipe._link._outgoing, "dumps"  # type: ignore[assignment]
    real = getattr(target, name)

    def passes(*given: Any, **named: Any) -> Any:
        calls.append(pipe.stats()["arena_live_nbytes"])
        if len(calls) == when:
            raise error("stop")
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, passes)
        with pytest.raises(error, match="stop") as kept:
            pipe.submit("What?", images=pictures(3))
    assert calls[-1] >= 3 * ONE * 2  # it was held when it happened
    assert kept.value.__traceback__ is not None
    assert pipe.stats()["arena_live_nbytes"] == pipe.stats()["nbytes_inflight"] == 0
    assert pipe.submit("What?", images=pictures(3), timeout=0).result(10)


def test_a_bad_image_in_the_middle_is_named_and_holds_nothing(pipe: Pipeline) -> None:
    broken = Image.new("RGB", (8, 8)).convert("F").point(lambda value: value + 1000)
    for bad, said in ((broken, "mode F"), (None, "NoneType"), (np.zeros((3, 3)), "float64")):
        images: list[Any] = pictures(3)
        images[1] = bad
        with pytest.raises(UsageError, match=rf"images\[1\].*{said}") as kept:
            pipe.submit("What?", images=images)
        assert kept.value.__traceback__ is not None
        assert pipe.stats()["arena_live_nbytes"] == pipe.stats()["nbytes_inflight"] == 0
    with pytest.raises(UsageError, match="prompt"):
        pipe.submit("<image_soft_token>", images=pictures(1))


def test_a_send_that_fails_takes_everything_back(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(frames: object) -> None:
        raise TransportError("the socket is full")

    with monkeypatch.context() as patch:
        patch.setattr(pipe._link._sender, "send", fails)
        with pytest.raises(TransportError, match="the socket is full") as kept:
            pipe.submit("What?", images=pictures(2))
    assert kept.value.__traceback__ is not None
    assert pipe.stats()["arena_live_nbytes"] == pipe.stats()["requests_inflight"] == 0


def test_a_request_that_is_cancelled_returns_its_place(pipe: Pipeline) -> None:
    with_payload(pipe, "uint8")
    with frozen(pipe):
        future = pipe.submit("What?", images=pictures(3))
        assert future.cancel()
        assert pipe.stats()["nbytes_inflight"] == 0
    assert is_empty(pipe)


def test_an_engine_that_ends_meanwhile_or_before_is_said_as_that(
    frontend: FrontendModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Pipeline(
        model="echo", strategy="arena-uint8", engine_threads=1, max_inflight_nbytes=BUDGET
    ) as pipe:
        pipe._frontend = frontend
        real = frontend.pixel_values

        def ends(images: Any, out: torch.Tensor) -> torch.Tensor:
            pipe.close()
            return real(images, out)  # into memory that is still there

        monkeypatch.setattr(frontend, "pixel_values", ends)
        for _ in range(2):
            with pytest.raises(EngineError, match="has been closed"):
                pipe.submit("What?", images=pictures(2))
        assert pipe.stats()["arena_live_nbytes"] == pipe.stats()["nbytes_inflight"] == 0
