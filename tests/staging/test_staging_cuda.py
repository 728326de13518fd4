"""Staging on a real GPU: exact bytes, no early reuse, no hidden synchronisation, honest times."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

import mmlab
from mmlab.fields import FieldElem, KwargsItem
from mmlab.staging import MODES, PinnedBatcher, PinnedPool, resolve_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA"),
    pytest.mark.timeout(120),
]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quiet_device() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def pairs_of(*tensors: torch.Tensor) -> list[tuple[str, KwargsItem]]:
    field = mmlab.batched("image").field
    return [("image", KwargsItem({"x": FieldElem(t, field)})) for t in tensors]


def test_auto_finds_the_gpu() -> None:
    assert PinnedBatcher().device == torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
def test_bytes_are_exact(mode: str, dtype: torch.dtype) -> None:
    raw = [torch.randint(0, 256, (1000, 8), dtype=torch.uint8) for _ in range(3)]
    with PinnedBatcher("cuda", mode=mode) as batcher:
        for _ in range(3):
            staged = batcher.stage(pairs_of(*(r.view(dtype) for r in raw)))
            out = staged.kwargs["x"]
            assert isinstance(out, torch.Tensor)
            assert out.device == staged.device == batcher.device
            assert torch.equal(out.cpu().view(torch.uint8), torch.stack(raw))
            assert staged.pinned == (mode != "pageable")


def test_pool_memory_is_pinned_until_it_is_freed() -> None:
    device = resolve_device("cuda")
    memory = device.allocate(5 * MIB + 1, pin=True)
    assert memory.is_pinned()
    assert memory[MIB:].is_pinned()
    address = memory.data_ptr()
    del memory
    again = device.allocate(5 * MIB + 1, pin=True)  # registering a mapping twice would fail
    assert again.is_pinned()
    assert not torch.empty(10).is_pinned()
    assert address


def test_staging_never_synchronises() -> None:
    with PinnedBatcher("cuda", PinnedPool(64 * MIB)) as batcher:
        pairs = pairs_of(*torch.rand(4, 3, 100, 100).clone().unbind(0)[::2])
        batcher.stage(pairs).synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            out = batcher.stage(pairs).kwargs["x"]
            total = out.sum()  # type: ignore[attr-defined]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        wanted = sum(item["x"].data.sum().item() for _, item in pairs)  # type: ignore[attr-defined]
        assert total.item() == pytest.approx(wanted, rel=1e-4)


def test_slot_refilled_as_soon_as_it_is_handed_out() -> None:
    half = 32 * MIB
    with PinnedBatcher("cuda", PinnedPool(2 * 2 * half)) as batcher:
        sums = []
        for number in range(200):
            parts = [torch.full((half,), number, dtype=torch.uint8) for _ in range(2)]
            out = batcher.stage(pairs_of(*parts)).kwargs["x"]
            sums.append(torch.stack([out.min(), out.max()]))  # type: ignore[attr-defined]
            if number % 10 == 0:
                with torch.cuda.stream(batcher._copy_stream()._stream):  # type: ignore[attr-defined]
                    torch.cuda._sleep(20_000_000)
        stats = batcher.stats()
        assert stats is not None
        assert stats.allocations == 2
        assert stats.pinned
    assert torch.stack(sums).tolist() == [[number, number] for number in range(200)]


def test_consumer_stream_waits_for_the_copy() -> None:
    with PinnedBatcher("cuda", PinnedPool(64 * MIB)) as batcher:
        warm = batcher.stage(pairs_of(torch.zeros(MIB), torch.zeros(MIB)))
        warm.synchronize().release()  # allocating, on either side, may wait for the device
        with torch.cuda.stream(batcher._copy_stream()._stream):  # type: ignore[attr-defined]
            torch.cuda._sleep(200_000_000)
        staged = batcher.stage(pairs_of(torch.ones(MIB), torch.ones(MIB)))
        assert not staged.done()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert staged.kwargs["x"].sum().item() == 2 * MIB  # type: ignore[attr-defined]


def test_growing_batches_keep_pinned_bytes_under_the_budget() -> None:
    budget = 256 * MIB
    torch.cuda.reset_peak_host_memory_stats()
    kept = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)  # by other tests
    with PinnedBatcher("cuda", PinnedPool(budget)) as batcher:
        for mib in range(33, 66):
            half = torch.full((mib * MIB // 2,), mib, dtype=torch.uint8)
            out = batcher.stage(pairs_of(half, half.clone())).kwargs["x"]
            assert out.min() == out.max() == mib  # type: ignore[attr-defined]
        stats = batcher.stats()
        assert stats is not None
        by_torch = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) - kept
        assert stats.high_water_nbytes + by_torch <= budget
        assert stats.pinned


def test_reported_copy_time_is_the_copy() -> None:
    parts = [torch.ones(512 * MIB, dtype=torch.uint8) for _ in range(2)]
    plain = torch.empty(1024 * MIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")

    def plain_copy() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(plain, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    link = min(plain_copy() for _ in range(3))
    with PinnedBatcher("cuda", PinnedPool(1024 * MIB)) as batcher:
        reported = [batcher.stage(pairs_of(*parts)).timings["h2d"] for _ in range(3)]
    assert min(reported) == pytest.approx(link, rel=0.1)


def test_dense_pinned_batch_is_copied_from_where_it_lies() -> None:
    source = resolve_device("cuda").allocate(8 * MIB, pin=True).view(8, MIB)
    source.copy_(torch.arange(8, dtype=torch.uint8)[:, None])
    items = mmlab.KwargsItems.from_processor({"x": source}, {"x": mmlab.batched("image")})
    with PinnedBatcher("cuda", PinnedPool(1024)) as batcher:  # too small for any copy
        staged = batcher.stage(items.pairs()[2:])
        assert (staged.copies, staged.pinned) == (0, True)
        assert torch.equal(staged.kwargs["x"].cpu(), source[2:])  # type: ignore[attr-defined]
