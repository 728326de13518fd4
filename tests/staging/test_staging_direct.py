"""Mode `direct`: parts that lie in pinned memory go straight to their places in the batch."""

from __future__ import annotations

import gc
from collections import deque

import numpy as np
import pytest
import torch
from staging_fakes import FakeDevice

import mmlab
from mmlab.arena import ArenaReader, ArenaSink, Returned
from mmlab.staging import PinnedBatcher, PinnedPool, PinningWarning, Staged
from mmlab.wire import Decoder, Encoder

KIB = 1024


def batcher_on(device: FakeDevice, pool_nbytes: int = 64 * KIB) -> PinnedBatcher:
    return PinnedBatcher(device, PinnedPool(pool_nbytes, device=device), mode="direct", timeout=0)


def request(data: torch.Tensor, field: mmlab.FieldConfig) -> list[tuple[str, object]]:
    return mmlab.KwargsItems.from_processor({"x": data}, {"x": field}).pairs()  # type: ignore[return-value]


def pinned(device: FakeDevice, values: torch.Tensor) -> torch.Tensor:
    memory = device.allocate(values.nbytes, pin=True).view(values.dtype).view(values.shape)
    return memory.copy_(values)


def result(staged: Staged) -> torch.Tensor:
    value = staged.kwargs["x"]
    assert isinstance(value, torch.Tensor)
    return value


FIELDS = {
    "batched": (mmlab.batched("image"), 0),
    "flat": (mmlab.flat("image", sizes=[1, 3]), 0),
    "flat along the last dim": (mmlab.flat("image", sizes=[2, 4], dim=-1), -1),
}


@pytest.mark.parametrize("name", FIELDS)
def test_requests_in_pinned_memory_form_a_batch_on_the_device_without_a_host_copy(
    name: str,
) -> None:
    field, dim = FIELDS[name]
    device = FakeDevice()
    values = [torch.rand(4, 6), torch.rand(4, 6)]
    sources = [pinned(device, value) for value in values]
    with batcher_on(device) as batcher:
        pairs = [pair for source in sources for pair in request(source, field)]
        staged = batcher.stage(pairs)  # type: ignore[arg-type]
        assert [copy.source for copy in device.copies] == [s.data_ptr() for s in sources]
        assert (staged.copies, staged.copied_nbytes, staged.pinned) == (0, 0, True)
        assert staged.nbytes == sum(value.nbytes for value in values)
        out = result(staged)
        assert not torch.equal(out, torch.cat(values, dim))
        device.complete_all()
        assert torch.equal(out, torch.cat(values, dim))
        assert device.faults == []


def test_sources_are_kept_until_their_copies_have_finished_and_no_longer() -> None:
    device = FakeDevice()
    sources = [pinned(device, torch.full((2, 8), value)) for value in (1.0, 2.0)]
    addresses = [source.data_ptr() for source in sources]
    batcher = batcher_on(device)
    pairs = [pair for source in sources for pair in request(source, mmlab.batched("image"))]
    staged = batcher.stage(pairs)  # type: ignore[arg-type]
    staged.release()
    del sources, pairs
    gc.collect()
    batcher.settle()
    assert set(addresses) <= set(device.live)
    device.complete_all()
    assert device.faults == []
    batcher.settle()
    gc.collect()
    assert not set(addresses) & set(device.live)


def test_one_part_in_pageable_memory_goes_by_staging_memory_with_all_others() -> None:
    device = FakeDevice()
    values = [torch.rand(2, 8), torch.rand(2, 8)]
    sources = [pinned(device, values[0]), values[1]]
    with batcher_on(device) as batcher:
        pairs = [pair for source in sources for pair in request(source, mmlab.batched("image"))]
        staged = batcher.stage(pairs)  # type: ignore[arg-type]
        assert len(device.copies) == 1
        assert (staged.copies, staged.pinned) == (1, True)
        device.complete_all()
        assert torch.equal(result(staged), torch.cat(values))


def test_padded_batches_go_by_staging_memory() -> None:
    device = FakeDevice()
    values = [torch.ones(2, 3), torch.ones(4, 2)]
    sources = [pinned(device, value) for value in values]
    field = mmlab.batched("image", pad=0)
    with batcher_on(device) as batcher:
        pairs = [pair for source in sources for pair in request(source[None], field)]
        staged = batcher.stage(pairs)  # type: ignore[arg-type]
        device.complete_all()
        out = result(staged)
        assert out.shape == (2, 4, 3)
        assert out[0].sum() == 6
        assert out[1].sum() == 8


def test_two_requests_in_a_registered_arena_need_no_staging_memory() -> None:
    device, ended = FakeDevice(), deque[Returned]()
    values = [torch.rand(2, 3, 16), torch.rand(1, 3, 16)]
    with mmlab.Arena.create(1 << 20) as arena, batcher_on(device, pool_nbytes=64) as batcher:
        reader = ArenaReader(arena.fileno(), ended.append, pin=device.register)
        assert device.pinned == {reader.address}
        pairs = []
        for value in values:
            items = mmlab.KwargsItems.from_processor({"x": value}, {"x": mmlab.batched("image")})
            sink = ArenaSink(arena)
            frames = Encoder(size_threshold=0).encode(items, sink=sink)
            assert sink.lease is not None
            assert sink.descriptor is not None
            sink.lease.expect(1)
            sink.lease.release()
            views = reader.view(sink.descriptor)
            found = Decoder(mmlab.KwargsItems).decode([frames[0], *views])
            pairs += found.pairs()  # type: ignore[attr-defined]
            del views, found
        staged = batcher.stage(pairs)
        del pairs
        assert len(device.copies) == 2
        assert (staged.copies, staged.pinned) == (0, True)
        out = result(staged)
        staged.release()
        batcher.settle()
        gc.collect()
        assert not ended, "returned while the device still reads"
        device.complete_all()
        assert torch.equal(out, torch.cat(values))
        batcher.settle()
        gc.collect()
        for end in ended:
            assert arena.give_back(end)
        assert len(ended) == 2
        assert arena.stats().live_nbytes == 0
        reader.close()
        gc.collect()
        assert device.pinned == set()
        assert device.faults == []


def test_an_arena_stays_registered_until_its_last_view_dies() -> None:
    device = FakeDevice()
    with mmlab.Arena.create(1 << 16) as arena:
        held = arena.empty((100,), torch.uint8)
        lease = arena.lease()
        assert lease.refer(held) is not None
        lease.expect(1)
        sink = ArenaSink(arena)
        frames = Encoder(size_threshold=0).encode(held, sink=sink)
        reader = ArenaReader(arena.fileno(), lambda end: None, pin=device.register)
        assert sink.descriptor is not None
        kept = np.frombuffer(reader.view(sink.descriptor)[0], np.uint8)
        reader.close()
        gc.collect()
        assert device.pinned == {reader.address}
        assert len(frames) == 2
        del kept
        gc.collect()
        assert device.pinned == set()
        lease.release()


def test_a_refused_registration_is_raised_and_leaves_no_mapping() -> None:
    def refuse(memory: np.ndarray) -> None:
        raise RuntimeError("out of locked memory")

    with (
        mmlab.Arena.create(1 << 16) as arena,
        pytest.raises(RuntimeError, match="out of locked memory"),
    ):
        ArenaReader(arena.fileno(), lambda end: None, pin=refuse)


def test_on_a_cpu_it_writes_a_batch_of_two_requests_once() -> None:
    values = [torch.rand(2, 8), torch.rand(2, 8)]
    with PinnedBatcher("cpu", mode="direct") as batcher:
        pairs = [pair for value in values for pair in request(value, mmlab.batched("image"))]
        staged = batcher.stage(pairs)  # type: ignore[arg-type]
        assert staged.copies == 1
        assert torch.equal(result(staged), torch.cat(values))
        whole = batcher.stage(request(values[0], mmlab.batched("image")))  # type: ignore[arg-type]
        assert whole.copies == 0
        assert result(whole).data_ptr() == values[0].data_ptr()


def test_the_batcher_pins_for_its_device_alone_and_a_refusal_is_one_warning() -> None:
    with PinnedBatcher("cpu", mode="direct") as batcher:
        assert batcher.pin is None
    with PinnedBatcher(FakeDevice(), mode="pool") as batcher:
        assert batcher.pin is None
    device = FakeDevice()
    with mmlab.Arena.create(1 << 16) as arena, PinnedBatcher(device, mode="direct") as batcher:
        with ArenaReader(arena.fileno(), lambda end: None, pin=batcher.pin) as reader:
            assert reader.address in device.pinned
        del reader
        gc.collect()
        assert not device.pinned
        device.fail_register = True
        with (
            pytest.warns(PinningWarning, match="65536 B could not be pinned.*out of locked memory"),
            ArenaReader(arena.fileno(), lambda end: None, pin=batcher.pin) as reader,
        ):
            assert reader.size == 1 << 16
