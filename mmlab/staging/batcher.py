"""PinnedBatcher: items in, batches on the device out, with one CPU copy of every byte or none.

Plan, acquire, write, copy, event: the shape of the batch is known first, so every elem is written
once, straight into its place in staging memory (vLLM #19169; stacking and pinning afterwards, mode
`pin-after`, is there to be measured against). The copy runs on a stream of its own, and its event
decides when the staging memory may be filled again.

Memory is acquired in one piece for all that must be held together: nobody waits for a second
buffer while holding a first. On a GPU that is one batch, since its memory comes back by itself
once its copy has finished. On a CPU it is one call of `stage`, since the written batch is the
result: the caller gets views of pool memory, and only their death returns it.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import torch

from mmlab.arena import stream
from mmlab.errors import BatchError, UsageError, unknown
from mmlab.fields import Entry
from mmlab.reducers import group
from mmlab.staging.copying import memory_of, start_copies
from mmlab.staging.device import Device, Event, Stream, UnknownEnd, resolve_device
from mmlab.staging.layout import Layout
from mmlab.staging.memory import Buffer, FreshMemory, PinningWarning, StagingMemory
from mmlab.staging.pool import PinnedPool, PoolStats
from mmlab.staging.prefetch import prefetch
from mmlab.staging.staged import Staged, StagedBatch, Transfer

# What a strategy calls `staging`: reduce into ordinary memory, then a blocking copy; the same, but
# copied once more, into a fresh pinned buffer (what vLLM did before #19169); a fresh pinned buffer
# for every batch; a buffer of the bounded pool; the same, but what lies in pinned memory, as in a
# registered arena, goes to its place in the batch on the device straight from there. On a CPU the
# first three are one: there is nothing to pin for.
MODES = ("pageable", "pin-after", "pinned", "pool", "direct")

# Two batches of the pipeline's default budget of bytes in flight (1 GiB), and the size classes.
DEFAULT_POOL_NBYTES = 9 << 28

_InFlight = list[tuple[Event, Sequence[torch.Tensor | None]]]


class PinnedBatcher:
    """Stages items as batches on `device`; thread-safe; a context manager.

    Without `pool`, mode `pool` makes one of DEFAULT_POOL_NBYTES and closes it with the batcher.
    `pin` is for that memory, as in `PinnedPool`; an explicit `device="cpu"` does not try to pin.
    `timeout`: seconds to wait for staging memory before BackpressureTimeout.
    """

    def __init__(
        self,
        device: str | torch.device | Device = "auto",
        pool: PinnedPool | None = None,
        *,
        mode: str = "pool",
        pin: bool | None = None,
        timeout: float | None = 60.0,
    ) -> None:
        if mode not in MODES:
            raise unknown("staging mode", mode, MODES)
        pooled = mode in ("pool", "direct")
        if pool is not None and (not pooled or pin is not None):
            raise UsageError(
                f"PinnedBatcher: a pool was given together with mode={mode!r}, pin={pin}; a pool "
                "goes with mode='pool' or mode='direct' and decides itself whether it pins"
            )
        self._device = resolve_device(device)
        if pin is None and self._device.is_host and device != "auto":
            pin = False
        self.mode = mode
        self.timeout = timeout
        self._pool = pool
        self._own_pool: PinnedPool | None = None
        self._memory: StagingMemory | None = pool
        if pooled and pool is None:
            self._own_pool = PinnedPool(DEFAULT_POOL_NBYTES, pin=pin, device=self._device)
            self._pool = self._memory = self._own_pool
        elif mode in ("pinned", "pin-after"):
            fresh = FreshMemory(self._device, pin)
            self._memory = None if self._device.is_host else fresh
        if self._memory is not None:
            stream.compiled()  # some 30 ms, not on the first batch
        self._lock = threading.Lock()
        self._submitting = threading.Lock()  # one batch at a time between its two events
        self._stream: Stream | None = None
        self._in_flight: _InFlight = []  # sources whose copies have not finished
        weakref.finalize(self, _wait_for, self._in_flight)

    @property
    def device(self) -> torch.device:
        return self._device.torch_device

    @property
    def pin(self) -> Callable[[np.ndarray], None] | None:
        """Pins whole pages of others (an arena's) for as long as their array lives, or warns once;
        None unless the mode is `direct` and copies to a device."""
        if self.mode != "direct" or self._device.is_host:
            return None
        return self._pin

    def _pin(self, memory: np.ndarray) -> None:
        try:
            self._device.register(memory)
        except (RuntimeError, OSError) as error:
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"{memory.nbytes} B could not be pinned, copies from there to the device go by "
                f"staging memory: {reason}",
                PinningWarning,
                stacklevel=2,
            )

    def stage(self, pairs: Iterable[tuple[str, Entry]]) -> Staged:
        """Batch the items of `pairs` ([(modality, item), ...]) and start their way to the device.

        BatchError: the items cannot be batched, or need more than the whole pool.
        BackpressureTimeout: the pool stayed full. In both cases no staging memory is lost.
        """
        return self._stage(pairs, self.timeout)

    def prefetch(
        self, batches: Iterable[Iterable[tuple[str, Entry]]], depth: int = 1
    ) -> Iterator[Staged]:
        """`stage` for each of `batches`, in order, up to `depth` of them ahead of the consumer.

        On a GPU the copies of those ahead run while the consumer computes; reading
        `staged.batches` lets its stream wait for its own. Staging ahead never waits for memory: a
        pool that is too small for it stages as the consumer lets go. What `stage` raises comes in
        the turn of its batch and ends the iteration. `release()` a batch once it is consumed.
        """
        return prefetch(self._stage, batches, depth, self.timeout)

    def _stage(self, pairs: Iterable[tuple[str, Entry]], timeout: float | None) -> Staged:
        self.settle()
        run = _Run(timeout)
        with torch.no_grad():
            write = self._memory is not None
            direct, twice = self.mode == "direct", self.mode == "pin-after"
            layouts = [
                Layout(batch, self._device, write=write, direct=direct, twice=twice)
                for batch in group(pairs)
            ]
            run.clock("reduce")
            if self._device.is_host:
                self._write(layouts, run)
                batches = [
                    _batch(layout, [source.tensor for source in layout.sources])
                    for layout in layouts
                ]
            else:
                batches = [self._send(layout, run) for layout in layouts]
        return Staged(
            batches,
            self.device,
            stream=self._stream,
            transfers=run.transfers,
            pinned=bool(run.pinned) and all(run.pinned),
            nbytes=sum(layout.nbytes for layout in layouts),
            copied_nbytes=sum(layout.copied_nbytes for layout in layouts),
            copies=max((layout.copies for layout in layouts), default=0),
            acquire_s=run.seconds["acquire"],
            reduce_s=run.seconds["reduce"],
        )

    def stats(self) -> PoolStats | None:
        """Those of the pool, where the mode has one."""
        return None if self._pool is None else self._pool.stats()

    def close(self) -> None:
        """Wait for unfinished copies, close the batcher's own pool. Staged batches stay valid."""
        with self._lock:
            _wait_for(self._in_flight)
            self._in_flight.clear()
        if self._own_pool is not None:
            self._own_pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, layouts: Sequence[Layout], run: _Run) -> Buffer | None:
        """Write all pieces of `layouts` into one buffer; None if there are none."""
        if self._memory is None or not any(layout.pieces for layout in layouts):
            return None
        sizes = [layout.staging_nbytes for layout in layouts]
        try:
            buffer = self._memory.acquire(sum(sizes), run.timeout)
        except BatchError as error:
            shapes = ", ".join(f"{x.batch.num_items} {x.batch.modality}" for x in layouts)
            raise BatchError(f"stage({shapes}): {error}") from None
        run.clock("acquire")
        try:
            at = 0
            for layout, size in zip(layouts, sizes, strict=True):
                layout.write(buffer.tensor[at : at + size], buffer.pinned)
                at += size
        except BaseException:
            buffer.release()  # nothing was handed out, no copy has started
            raise
        run.clock("reduce")
        return buffer

    def _send(self, layout: Layout, run: _Run) -> StagedBatch:
        stream = self._copy_stream()
        buffer = self._write([layout], run)
        arrived: list[torch.Tensor] = []
        # The pool keeps its own memory until `end`; whatever else is read late is kept here.
        kept = list(memory_of(layout.sources, own=self._pool is None))
        with self._submitting:
            end: Event = UnknownEnd()
            try:
                start = stream.record()
                tensors = start_copies(stream, layout, arrived)
            finally:  # also after an error: the copies that were started still read their sources
                try:
                    end = stream.record()
                finally:
                    if buffer is not None:
                        buffer.release(after=end)
                    if kept:
                        with self._lock:
                            self._in_flight.append((end, kept))
        run.transfers.append(Transfer(start, end, arrived))
        run.pinned.extend(source.pinned for source in layout.sources)
        run.clock("submit")
        return _batch(layout, tensors)

    def _copy_stream(self) -> Stream:
        with self._lock:
            if self._stream is None:
                self._stream = self._device.stream()
            return self._stream

    def settle(self) -> None:
        """Let go of memory of others whose copies have finished; `stage` does it too."""
        if self._in_flight:
            with self._lock:
                self._in_flight[:] = [entry for entry in self._in_flight if not entry[0].query()]


class _Run:
    """What one `stage` call gathers on its way."""

    __slots__ = ("_last", "pinned", "seconds", "timeout", "transfers")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout  # for staging memory
        self.transfers: list[Transfer] = []
        self.pinned: list[bool] = []
        self.seconds = {"acquire": 0.0, "reduce": 0.0, "submit": 0.0}
        self._last = time.perf_counter()

    def clock(self, stage: str) -> None:
        """Count the time since the last call to `stage`."""
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now


def _batch(layout: Layout, tensors: Iterable[torch.Tensor | None]) -> StagedBatch:
    batch = layout.batch
    return StagedBatch(batch.modality, batch.num_items, batch.indices, layout.finish(tensors))


def _wait_for(in_flight: _InFlight) -> None:
    for event, _ in in_flight:
        event.synchronize()
