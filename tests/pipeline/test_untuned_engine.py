"""An engine whose malloc gives memory back: the same answers, by pieces, without new pages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from arena_pipeline_parts import MIB, frozen, pixels_of
from pipeline_parts import images, wait_for

from mmlab import BackpressureTimeout, EngineError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.transports.pieces import LARGE, PIECE, PieceSender

BUDGET = 96 * MIB


@pytest.fixture(scope="module")
def untuned() -> Iterator[Pipeline]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMLAB_TUNE_MALLOC", "0")
        pipeline = Pipeline(model="echo", max_inflight_nbytes=BUDGET, engine_threads=1)
    with pipeline:
        assert not pipeline.info.malloc_tuned
        yield pipeline


def faults(pid: int) -> int:
    """Minor page faults of that process so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])


def test_large_and_small_requests_are_answered(untuned: Pipeline) -> None:
    for nbytes in (100, LARGE - MIB, LARGE, LARGE + 1, 3 * LARGE + 12345):
        items = pixels_of(torch.randint(0, 256, (1, nbytes), dtype=torch.uint8))
        reply = untuned.submit_items(items).result(10)
        assert reply.checksum == checksum_items(items)
        assert reply.num_frames == 1 + (nbytes > 256)
    stats = untuned.stats()
    assert stats["engine_rejected"] == stats["unexpected_replies"] == 0


def test_a_large_message_touches_no_new_pages(untuned: Pipeline) -> None:
    items = images(8, shape=(3, 896, 896))
    for _ in range(3):
        untuned.submit_items(items).result(10)
    before = faults(untuned.engine_pid)
    for _ in range(4):
        assert untuned.submit_items(items).result(10).checksum
    pages = 4 * items.nbytes // 4096
    assert faults(untuned.engine_pid) - before < pages / 10


@pytest.mark.parametrize("strategy", ["msgpack-inline", "pickle"])
def test_other_serializers_go_in_pieces_too(
    strategy: str, monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.setenv("MMLAB_TUNE_MALLOC", "0")
    items = images(3, shape=(3, 896, 896))
    with Pipeline(
        model="echo", strategy=strategy, transport="ipc", insecure_pickle=True, engine_threads=1
    ) as pipeline:
        assert isinstance(pipeline._link._sender, PieceSender)
        assert pipeline.submit_items(items).result(10).checksum == checksum_items(items)
    assert not leftovers("processes", "shm")


def test_a_request_that_was_cancelled_on_its_way_gives_its_room_back(untuned: Pipeline) -> None:
    items = images(8, shape=(3, 896, 896))
    with frozen(untuned):
        future = untuned.submit_items(items)
        with pytest.raises(BackpressureTimeout):
            untuned.submit_items(items, timeout=0.05)
        assert untuned.stats()["frames_unreleased"] > items.nbytes // PIECE / 2
        assert future.cancel()
    assert wait_for(lambda: untuned.stats()["nbytes_abandoned"] == 0)
    assert untuned.submit_items(items).result(10).checksum == checksum_items(items)
    assert wait_for(lambda: untuned.stats()["frames_unreleased"] == 0)


def test_an_engine_that_dies_over_half_a_message_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, leftovers: Callable[..., list[str]]
) -> None:
    monkeypatch.setenv("MMLAB_TUNE_MALLOC", "0")
    with Pipeline(model="echo", engine_threads=1) as pipeline:
        os.kill(pipeline.engine_pid, signal.SIGSTOP)
        future = pipeline.submit_items(images(8, shape=(3, 896, 896)))
        assert pipeline.stats()["frames_unreleased"] > 0  # not all of it is on its way
        os.kill(pipeline.engine_pid, signal.SIGKILL)
        assert isinstance(future.exception(5), EngineError)
    assert not leftovers("processes", "shm")


def test_an_engine_that_keeps_its_memory_gets_whole_messages() -> None:
    with Pipeline(model="echo", engine_threads=1) as pipeline:
        assert pipeline.info.malloc_tuned
        assert not isinstance(pipeline._link._sender, PieceSender)
