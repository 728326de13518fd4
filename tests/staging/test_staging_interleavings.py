"""Whatever the order of stagings, copies, errors and deaths: no buffer is handed out too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from staging_fakes import Copy, FakeDevice

import mmlab
from mmlab.errors import BackpressureTimeout
from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.staging import PinnedBatcher, PinnedPool, Staged
from mmlab.staging.memory import Buffer

BOUND = 40_000


class WatchedPool(PinnedPool):
    """Looks at every buffer it hands out for copies that read it and tensors that use it."""

    machine: Interleavings

    def acquire(self, nbytes: int, timeout: float | None = None) -> Buffer:
        buffer = super().acquire(nbytes, timeout)
        for copy in self.machine.device.unfinished:
            assert not copy.overlaps(buffer.tensor), "handed out while a copy reads it"
        for tensor in self.machine.tensors():
            assert not Copy(tensor.data_ptr(), tensor).overlaps(buffer.tensor), "still held"
        return buffer


class Unstackable(torch.Tensor):
    """Fails in the middle of a reduction."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.stack:
            kwargs["out"].fill_(0xEE)
            raise RuntimeError("reducer failed")
        return super().__torch_function__(func, types, args, kwargs)


class Interleavings(RuleBasedStateMachine):
    @initialize(is_host=st.booleans())
    def start(self, is_host: bool) -> None:
        self.device = FakeDevice(is_host=is_host)
        self.pool = WatchedPool(BOUND, device=self.device)
        self.pool.machine = self
        self.batcher = PinnedBatcher(self.device, self.pool, timeout=0)
        self.staged: list[tuple[int, Staged]] = []
        self.held: list[tuple[int, torch.Tensor]] = []
        self.number = 0

    def pairs(self, sizes: list[int]) -> list[tuple[str, KwargsItem | None]]:
        self.number = (self.number + 1) % 251
        field = BatchedField()
        return [
            ("image", KwargsItem({"x": FieldElem(torch.full((size,), self.number).byte(), field)}))
            for size in sizes
        ]

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that somebody holds."""
        for _, staged in self.staged:
            for batch in staged.batches:
                value = batch.kwargs["x"]
                yield from value if isinstance(value, list) else [value]  # type: ignore[misc]
        yield from (view for _, view in self.held)

    def keep(self, staged: Staged) -> None:
        self.staged.append((self.number, staged))

    @rule(size=st.sampled_from([50, 1_000, 5_000]), count=st.integers(1, 4))
    def stage(self, size: int, count: int) -> None:
        try:
            self.keep(self.batcher.stage(self.pairs([size] * count)))
        except BackpressureTimeout:
            assert self.device.unfinished or self.staged or self.held

    @rule(sizes=st.lists(st.integers(0, 5_000), max_size=4))
    def stage_ragged(self, sizes: list[int]) -> None:
        try:
            self.keep(self.batcher.stage(self.pairs(sizes)))
        except BackpressureTimeout:
            assert self.device.unfinished or self.staged or self.held

    @rule(size=st.integers(1, 5_000))
    def stage_pinned_memory(self, size: int) -> None:
        self.number = (self.number + 1) % 251
        lent = self.device.allocate(size, pin=True)[None]
        lent.fill_(self.number)
        items = mmlab.KwargsItems.from_processor({"x": lent}, {"x": mmlab.batched("image")})
        self.keep(self.batcher.stage(items.pairs()))

    @rule(size=st.integers(1, 5_000))
    def fail_in_the_reducer(self, size: int) -> None:
        bad = torch.zeros(size, dtype=torch.uint8).as_subclass(Unstackable)
        item = KwargsItem({"x": FieldElem(bad, BatchedField())})
        with pytest.raises((RuntimeError, BackpressureTimeout)):
            self.batcher.stage([("image", item), ("image", item)])

    @rule(size=st.integers(1, 5_000))
    def fail_in_the_copy(self, size: int) -> None:
        if self.device.is_host:
            return
        self.device.fail_copy = len(self.device.copies)
        with pytest.raises((RuntimeError, BackpressureTimeout)):
            self.batcher.stage(self.pairs([size, size]))
        self.device.fail_copy = None

    @rule(at=st.integers(0, 100))
    def finish_a_copy(self, at: int) -> None:
        if unfinished := self.device.unfinished:
            self.device.complete(unfinished[at % len(unfinished)])

    @rule(at=st.integers(0, 100))
    def release(self, at: int) -> None:
        if self.staged:
            self.staged.pop(at % len(self.staged))[1].release()

    @rule(at=st.integers(0, 100))
    def hold_a_view_and_drop_the_rest(self, at: int) -> None:
        if self.staged:
            number, staged = self.staged.pop(at % len(self.staged))
            value = staged.kwargs.get("x")
            if isinstance(value, torch.Tensor) and staged.done():
                self.held.append((number, value[-1:]))

    @rule(at=st.integers(0, 100))
    def let_a_view_go(self, at: int) -> None:
        if self.held:
            self.held.pop(at % len(self.held))

    @rule(keep=st.integers(0, BOUND))
    def trim(self, keep: int) -> None:
        self.pool.trim(keep)

    @invariant()
    def values_are_what_was_staged(self) -> None:
        if not hasattr(self, "device"):
            return
        for number, view in self.held:
            assert torch.all(view == number)
        for number, staged in self.staged:
            if staged.done():
                value = staged.kwargs.get("x", [])
                assert all(torch.all(part == number) for part in value)  # type: ignore[attr-defined]
        assert self.device.faults == []

    @invariant()
    def accounts_add_up(self) -> None:
        if not hasattr(self, "device"):
            return
        stats = self.pool.stats()
        assert stats.live_nbytes + stats.pending_nbytes + stats.cached_nbytes <= BOUND
        if not self.device.is_host:
            assert stats.live == 0  # only copies hold pool memory, never results

    def teardown(self) -> None:
        if not hasattr(self, "device"):
            return
        self.device.complete_all()
        self.values_are_what_was_staged()
        self.staged.clear()
        self.held.clear()
        stats = self.pool.stats()
        assert (stats.live, stats.pending) == (0, 0)
        self.pool.close()
        self.batcher.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    settings.get_profile("mmlab"), max_examples=60, stateful_step_count=40
)
