"""Staging to a device, on a fake one whose copies finish late: who waits for whom, and for what."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from staging_fakes import FakeDevice, images

import mmlab
from mmlab.errors import BackpressureTimeout, BatchError
from mmlab.fields import FieldElem, KwargsItem
from mmlab.staging import MODES, PinnedBatcher, PinnedPool, Staged, leases
from mmlab.staging.layout import SMALL

KIB = 1 << 10
SLOT = 2 * 3 * 8 * 8 * 4  # bytes of a batch of two test images


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that die at the end of a test do not wait for copies that nobody will finish."""
    monkeypatch.setattr(leases, "LEAK_S", 0.0)


LARGE = SMALL // 4  # elements of 4 B in each of two: a key that is copied on its own


def batcher_on(
    device: FakeDevice, mode: str = "pool", pool_nbytes: int = 64 * KIB
) -> PinnedBatcher:
    pool = PinnedPool(pool_nbytes, device=device) if mode in ("pool", "direct") else None
    return PinnedBatcher(device, pool, mode=mode, timeout=0)


def pixels(staged: Staged) -> torch.Tensor:
    value = staged.kwargs["pixel_values"]
    assert isinstance(value, torch.Tensor)
    return value


@pytest.mark.parametrize("mode", MODES)
def test_bytes_arrive_when_the_copy_finishes(mode: str) -> None:
    device = FakeDevice()
    with batcher_on(device, mode) as batcher:
        staged = batcher.stage(images(1, 2, 3))
        asynchronous = mode != "pageable"
        assert staged.pinned == asynchronous
        assert staged.done() != asynchronous
        out = pixels(staged)
        assert bool((out[:, 0, 0, 0] == torch.tensor([1.0, 2, 3])).all()) != asynchronous
        device.complete_all()
        assert staged.done()
        assert out[:, 0, 0, 0].tolist() == [1, 2, 3]
        copies = 2 if mode == "pin-after" else 1
        assert (staged.copies, staged.copied_nbytes) == (copies, copies * out.nbytes)
        assert staged.nbytes == out.nbytes
        assert device.faults == []


def test_consumer_waits_on_the_event_before_it_can_see_a_tensor() -> None:
    device = FakeDevice()
    staged = batcher_on(device).stage(images(1, 2))
    assert device.handed_over == []
    out = pixels(staged)
    ((event, addresses),) = device.handed_over
    assert event.copies == device.copies
    assert addresses == [out.data_ptr()]
    _ = staged.kwargs, staged.batches
    assert len(device.handed_over) == 1
    staged.wait()  # a second stream
    assert len(device.handed_over) == 2


def test_slot_is_not_filled_again_before_its_copy_has_finished() -> None:
    device = FakeDevice()
    batcher = batcher_on(device, pool_nbytes=2 * SLOT)
    staged: list[Staged] = []
    for value in range(100):
        if value >= 2:
            with pytest.raises(BackpressureTimeout, match="wait for their copy"):
                batcher.stage(images(value, value))
            device.complete(device.unfinished[value % 2])  # either of the two, in turn
        staged.append(batcher.stage(images(value, value)))
        assert len(device.unfinished) == 2 or value == 0
    device.complete_all()
    for value, earlier in enumerate(staged):
        assert torch.all(pixels(earlier) == value)
    assert len(device.live) <= 2
    assert device.faults == []


def test_memory_comes_back_without_the_result_being_released() -> None:
    device = FakeDevice()
    batcher = batcher_on(device, pool_nbytes=SLOT)
    staged = batcher.stage(images(1, 2))
    device.complete_all()
    other = batcher.stage(images(3, 4))
    device.complete_all()
    assert torch.all(pixels(staged)[1] == 2)
    assert torch.all(pixels(other)[1] == 4)


def test_dense_pinned_batch_is_copied_from_where_it_lies() -> None:
    device = FakeDevice()
    source = device.allocate(4 * 64, pin=True).view(torch.float32).view(4, 16)
    source.copy_(torch.rand(4, 16))
    wanted, address = source.clone(), source.data_ptr()
    items = mmlab.KwargsItems.from_processor({"x": source}, {"x": mmlab.batched("image")})
    batcher = batcher_on(device)
    staged = batcher.stage(items.pairs())
    assert [copy.source for copy in device.copies] == [address]
    assert (staged.copies, staged.pinned) == (0, True)
    del source, items
    gc.collect()
    assert address in device.live  # held for the copy alone
    device.complete_all()
    assert device.faults == []
    assert torch.equal(staged.kwargs["x"], wanted)  # type: ignore[arg-type]
    batcher.stage([])
    assert address not in device.live


def test_dense_pageable_batch_is_written_once_into_pinned_memory() -> None:
    device = FakeDevice()
    source = torch.rand(4, 16)
    items = mmlab.KwargsItems.from_processor({"x": source}, {"x": mmlab.batched("image")})
    staged = batcher_on(device).stage(items.pairs())
    assert device.copies[0].source != source.data_ptr()
    assert (staged.copies, staged.pinned) == (1, True)
    device.complete_all()
    assert torch.equal(staged.kwargs["x"], source)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_lists_numbers_and_cpu_keys(mode: str) -> None:
    device = FakeDevice()
    field, kept = mmlab.batched("image").field, mmlab.batched("image", keep_on_cpu=True).field
    values = [torch.rand(2, 3), torch.rand(4, 3).t()]  # ragged, one not contiguous
    grids = [torch.tensor([n]) for n in range(2)]
    pairs = [
        (
            "image",
            KwargsItem(
                {
                    "x": FieldElem(values[i], field),
                    "grid": FieldElem(grids[i], kept),
                    "seconds": FieldElem(0.5, field),
                }
            ),
        )
        for i in range(2)
    ]
    with batcher_on(device, mode) as batcher:
        staged = batcher.stage(pairs)
        device.complete_all()
    kwargs = staged.kwargs
    assert isinstance(kwargs["x"], list)
    assert all(torch.equal(a, b) for a, b in zip(kwargs["x"], values, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(kwargs["x"], values, strict=True))
    assert kwargs["seconds"] == [0.5, 0.5]
    assert torch.equal(kwargs["grid"], torch.tensor([[0], [1]]))  # type: ignore[arg-type]
    assert len(device.copies) == (2 if mode == "pageable" else 1)  # the grid stayed
    assert list(kwargs) == ["x", "grid", "seconds"]


def test_every_batch_has_its_own_buffer_and_event() -> None:
    device = FakeDevice()
    pairs = [*images(1, 2), ("video", images(5)[0][1]), *images(3, 4)]
    batcher = batcher_on(device, pool_nbytes=2 * SLOT + SLOT // 2)
    staged = batcher.stage(pairs)
    device.complete(device.copies[2])
    again = batcher.stage(images(6, 7))  # reuses the third batch's memory, and only that
    assert device.copies[3].source == device.copies[2].source
    device.complete_all()
    assert [b.kwargs["pixel_values"][-1, 0, 0, 0].item() for b in staged.batches] == [2, 5, 4]  # type: ignore[index]
    assert pixels(again)[1, 0, 0, 0] == 7


def test_failing_copy_returns_the_buffer_after_those_that_had_started() -> None:
    device = FakeDevice(fail_copy=1)
    field = mmlab.batched("image").field
    pairs = [
        (
            "image",
            KwargsItem({key: FieldElem(torch.full((LARGE,), 7.0), field) for key in ("a", "b")}),
        )
        for _ in range(2)
    ]
    batcher = batcher_on(device, pool_nbytes=4 * LARGE * 4)
    with pytest.raises(RuntimeError, match="copy failed"):
        batcher.stage(pairs)
    (started,) = device.copies
    device.fail_copy = None
    with pytest.raises(BackpressureTimeout):
        batcher.stage(pairs)
    device.complete(started)
    assert torch.all(started.target == 7)
    assert batcher.stage(pairs).device == device.torch_device


def test_batch_larger_than_the_pool_is_refused() -> None:
    device = FakeDevice()
    batcher = batcher_on(device, pool_nbytes=SLOT)
    with pytest.raises(BatchError, match=rf"{2 * SLOT} B wanted.* has {SLOT} B"):
        batcher.stage(images(1, 2, 3, 4))
    assert device.copies == []
    batcher.stage([*images(1, 2), ("video", images(3)[0][1])][:2])


@pytest.mark.parametrize("mode", MODES)
def test_threads_can_share_a_batcher(mode: str) -> None:
    device = FakeDevice()
    stop = threading.Event()

    def finish_copies() -> None:
        while not stop.is_set():
            device.complete_all()
            time.sleep(1e-4)

    def work(number: int) -> list[Staged]:
        return [batcher.stage(images(number, number)) for _ in range(40)]

    pool = PinnedPool(3 * SLOT, device=device) if mode in ("pool", "direct") else None
    batcher = PinnedBatcher(device, pool, mode=mode, timeout=30)
    with ThreadPoolExecutor(5) as threads:
        finishing = threads.submit(finish_copies)
        results = [threads.submit(work, number) for number in range(4)]
        try:
            for number, result in enumerate(results):
                for staged in result.result(50):
                    assert torch.all(pixels(staged.synchronize()) == number)
        finally:
            stop.set()
        finishing.result(5)
    batcher.close()
    assert device.faults == []


def test_reading_timings_waits_for_the_copies() -> None:
    device = FakeDevice()
    staged = batcher_on(device).stage(images(1, 2))
    assert device.unfinished
    assert staged.timings["h2d"] == 0.25  # what the fake's events say
    assert not device.unfinished


def test_close_waits_for_copies() -> None:
    device = FakeDevice()
    source = device.allocate(64, pin=True)
    items = mmlab.KwargsItems.from_processor({"x": source[None]}, {"x": mmlab.batched("image")})
    with PinnedBatcher(device, mode="pinned") as batcher:
        batcher.stage(items.pairs())
        batcher.stage(images(1, 2))
        assert len(device.unfinished) == 2
    assert device.unfinished == []
    assert device.faults == []


def test_dropped_batcher_waits_for_the_memory_it_was_lent() -> None:
    device = FakeDevice()
    items = mmlab.KwargsItems.from_processor(
        {"x": device.allocate(64, pin=True)[None]}, {"x": mmlab.batched("image")}
    )
    batcher = batcher_on(device)
    batcher.stage(items.pairs())
    del batcher, items
    gc.collect()
    assert device.unfinished == []
    assert device.faults == []
    assert device.live == {}
