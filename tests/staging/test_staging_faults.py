"""An error in any step, in any mode: no buffer is lost, none is filled too early, bytes are right.

And 10,000 batches of ever-changing shapes, on devices whose copies finish late and out of order.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from staging_fakes import FakeDevice, FakeEvent, FakeStream, Pairs, images

import mmlab
from mmlab.errors import BackpressureTimeout
from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.reducers.reduction import Part
from mmlab.staging import MODES, HostDevice, PinnedBatcher, PinnedPool, Staged, leases
from mmlab.staging.device import Event

BOUND = 200_000
POOLED = ("pool", "direct")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEAK_S", 0.0)


class Injected(Exception):
    """Not of a kind that anybody expects."""


@dataclass
class FaultyDevice(FakeDevice):
    """The step of that number fails: memory, an event before, a copy, an event after."""

    fail_step: int | None = None
    steps: int = 0
    failed: str | None = None

    def step(self, name: str) -> None:
        self.steps += 1
        if self.steps - 1 == self.fail_step:
            self.failed = name
            raise Injected(name)

    def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
        self.step("allocate")
        return super().allocate(nbytes, pin=pin)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        self.step("is_pinned")
        return super().is_pinned(tensor)

    def stream(self) -> FaultyStream:
        self.step("stream")
        return FaultyStream(self)


class FaultyStream(FakeStream):
    device: FaultyDevice
    events = 0

    def copy(self, source: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        self.device.step("copy")
        return super().copy(source, pinned=pinned)

    def gather(
        self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[Part]
    ) -> torch.Tensor:
        self.device.step("gather")
        return super().gather(shape, dtype, parts)

    def record(self) -> FakeEvent:
        self.events += 1
        self.device.step("start" if self.events % 2 else "end")
        return super().record()


def mixed(device: FakeDevice, number: int) -> tuple[Pairs, dict[str, torch.Tensor]]:
    """Items with a key to be written, a ragged one, and one that lies in pinned memory."""
    lent = FakeDevice.allocate(device, 400, pin=True).view(2, 200)
    lent.fill_(number)
    values = {
        "x": [torch.full((20_000,), number, dtype=torch.uint8) for _ in range(2)],
        "lent": list(lent.unbind(0)),
    }
    field = BatchedField()
    pairs: Pairs = [
        ("image", KwargsItem({key: FieldElem(v[at], field) for key, v in values.items()}))
        for at in range(2)
    ]
    return pairs, {key: torch.stack(v) for key, v in values.items()}


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_any_step_loses_no_buffer_and_no_byte(mode: str) -> None:
    seen: set[str] = set()
    for fail_step in range(100):
        device = FaultyDevice()
        pool = PinnedPool(BOUND, device=device) if mode in POOLED else None
        batcher = PinnedBatcher(device, pool, mode=mode, timeout=0)
        pairs, _ = mixed(device, 1)
        device.steps, device.fail_step = 0, fail_step
        before, wanted_before = mixed(device, 2)
        staged: Staged | None = None
        with contextlib.suppress(Injected):
            staged = batcher.stage(pairs)
        device.fail_step = None
        if device.failed is None:
            break
        seen.add(device.failed)
        assert staged is None
        # the failed batch's copies, where any were started, are still under way
        again = [batcher.stage(before) for _ in range(2)]
        device.complete_all()
        for found in again:
            for key, value in wanted_before.items():
                assert torch.equal(found.kwargs[key], value)  # type: ignore[arg-type]
        assert device.faults == []
        if pool is not None:
            gc.collect()
            stats = pool.stats()
            lost = device.failed == "end"  # nobody can say when its copy ends
            assert (stats.live, stats.pending) == (0, int(lost))
        del again, found
        batcher.close()
    else:
        raise AssertionError("it never came to the end")
    wanted = {"stream", "start", "copy", "end"}
    assert seen >= wanted | ({"allocate"} if mode != "pageable" else set())


def test_an_unknown_end_of_a_copy_keeps_its_memory_from_everybody() -> None:
    device = FaultyDevice()
    pool = PinnedPool(2 * 40_000 + 1_000, device=device)
    batcher = PinnedBatcher(device, pool, timeout=0)
    batcher.stage(images(0))  # the stream is there
    device.complete_all()
    parts = [("image", KwargsItem({"x": FieldElem(torch.ones(10_000), BatchedField())}))] * 2
    device.steps = 0
    stream = batcher._copy_stream()
    record = stream.record
    calls = iter([False, True])

    def record_or_fail() -> Event:
        if next(calls, False):
            raise Injected("end")
        return record()

    stream.record = record_or_fail  # type: ignore[method-assign]
    with pytest.raises(Injected):
        batcher.stage(parts)
    gc.collect()
    with pytest.raises(BackpressureTimeout, match=r"81000 B wait for their copy \(1\)"):
        batcher.stage(parts)
    device.complete_all()
    assert device.faults == []
    (copy,) = (copy for copy in device.copies if copy.nbytes == 80_000)
    assert torch.all(copy.target.view(-1) == 1)


@pytest.mark.parametrize("late", [0, 1, 3])
def test_ten_thousand_shapes_stay_under_the_bound_though_copies_end_late(late: int) -> None:
    device = FakeDevice()
    rng = random.Random(late)
    pool = PinnedPool(BOUND, device=device)
    field = mmlab.batched("image").field
    ended: list[tuple[int, Staged]] = []
    with PinnedBatcher(device, pool, timeout=0) as batcher:
        for number in range(10_000):
            size = rng.randrange(1, BOUND // 16)  # two of them; several batches fit, few sizes do
            value = number % 251
            item = KwargsItem(
                {"x": FieldElem(torch.full((size,), value, dtype=torch.uint8), field)}
            )
            other = KwargsItem(
                {"x": FieldElem(torch.full((size,), value, dtype=torch.uint8), field)}
            )
            ended.append((value, batcher.stage([("image", item), ("image", other)])))
            while len(ended) > late:  # any of them, not the oldest
                value, staged = ended.pop(rng.randrange(len(ended)))
                staged.synchronize()
                found = staged.kwargs["x"]
                assert isinstance(found, torch.Tensor) and found.min() == found.max() == value
            device.copies[:] = device.unfinished
            device.handed_over.clear()
            if number % 50 == 0:
                stats = pool.stats()
                total = stats.live_nbytes + stats.pending_nbytes + stats.cached_nbytes
                assert total <= BOUND and stats.live == 0 and stats.pending <= late
        stats = pool.stats()
        assert stats.high_water_nbytes == device.most_nbytes <= BOUND
        assert stats.reuses + stats.allocations == 10_000
        assert device.faults == []
        device.complete_all()


def test_ten_thousand_shapes_stay_under_the_bound_on_a_cpu() -> None:
    rng = random.Random(0)
    pool = PinnedPool(BOUND, pin=False, device=HostDevice())
    field = BatchedField()
    held: list[torch.Tensor] = []
    with PinnedBatcher("cpu", pool, timeout=0) as batcher:
        for number in range(10_000):
            part = torch.empty(rng.randrange(1, BOUND // 16), dtype=torch.uint8)
            pairs: Pairs = [
                ("image", KwargsItem({"x": FieldElem(t, field)})) for t in (part, part.clone())
            ]
            found = batcher.stage(pairs).kwargs["x"]
            assert isinstance(found, torch.Tensor)
            held.append(found[1:, :1])  # one byte of it keeps it
            del found
            if len(held) > 2:
                held.pop(rng.randrange(3))
            if number % 50 == 0:
                stats = pool.stats()
                total = stats.live_nbytes + stats.pending_nbytes + stats.cached_nbytes
                assert total <= BOUND and stats.live == len(held)
        assert pool.stats().high_water_nbytes <= BOUND
