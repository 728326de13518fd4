"""What staging returns: batches on their way to the device, or there already.

The copy is still under way when `stage` returns. Reading `batches` or `kwargs` lets the consumer's
current CUDA stream wait for it (the host does not wait), so that a model can be called at once and
cannot see bytes that have not arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmlab.errors import BatchError, MMLabError
from mmlab.staging.device import Event, Stream


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """One batch: `kwargs` as a model takes them; `indices` are its items' places in the pairs."""

    modality: str
    num_items: int
    indices: list[int]
    kwargs: dict[str, object]  # key -> nested tensors, on the device unless keep_on_cpu


@dataclass(frozen=True, slots=True)
class Transfer:
    """The copies of one batch between two events, and the device tensors they fill."""

    start: Event
    end: Event
    tensors: Sequence[torch.Tensor]


class Staged:
    """The batches of one `stage` call, in the order of their items.

    On a CPU the tensors borrow pool memory (or the items' own memory, where nothing had to be
    written): they stay valid as long as somebody holds them, and their memory returns to the pool
    when the last view has died. `release()` drops this object's references, no more: call it as
    soon as the encoder has consumed the batch.
    """

    def __init__(
        self,
        batches: list[StagedBatch],
        device: torch.device,
        *,
        stream: Stream | None = None,
        transfers: Sequence[Transfer] = (),
        pinned: bool = False,
        nbytes: int = 0,
        copied_nbytes: int = 0,
        copies: int = 0,
        acquire_s: float = 0.0,
        reduce_s: float = 0.0,
    ) -> None:
        self.device = device
        self.pinned = pinned  # every byte was copied to the device from pinned memory
        self.nbytes = nbytes  # payload, without keys that stay on the CPU
        self.copied_nbytes = copied_nbytes  # moved by the CPU before the device copy, all copies
        # Of a payload byte within `stage`, by the CPU: 0 if every batch existed already, else 1, or
        # 2 (pin-after). What a driver does on its own to copy from pageable memory is not visible.
        self.copies = copies
        self._batches: list[StagedBatch] | None = batches
        self._stream = stream
        self._transfers = transfers
        self._events = [(transfer.start, transfer.end) for transfer in transfers]
        self._waited = not transfers
        self._acquire_s = acquire_s
        self._reduce_s = reduce_s

    def wait(self) -> Staged:
        """Let the current stream of this thread wait for the copies; the host goes on at once.

        Called by the first access to `batches` or `kwargs`. A consumer with several streams calls
        it once in each.
        """
        if self._stream is not None:
            for transfer in self._transfers:
                self._stream.hand_over(transfer.end, transfer.tensors)
        self._waited = True
        return self

    def done(self) -> bool:
        """Whether all copies have arrived; never blocks."""
        return all(end.query() for _, end in self._events)

    def synchronize(self) -> Staged:
        """Block the host until all copies have arrived."""
        for _, end in self._events:
            end.synchronize()
        return self

    @property
    def batches(self) -> list[StagedBatch]:
        if self._batches is None:
            raise MMLabError("Staged: batches read after release(); take what you need before it")
        if not self._waited:
            self.wait()
        return self._batches

    @property
    def kwargs(self) -> dict[str, object]:
        """The kwargs of the only batch; empty where there were no items."""
        batches = self.batches
        if not batches:
            return {}
        if len(batches) != 1:
            raise BatchError(
                f"Staged.kwargs: the items form {len(batches)} batches, wanted 1; read .batches"
            )
        return batches[0].kwargs

    @property
    def timings(self) -> dict[str, float]:
        """Seconds. `acquire`: until staging memory was there; `reduce`: planning and writing it;
        `h2d`: on the device, between events around the copies (blocks until they have arrived)."""
        self.synchronize()
        h2d = sum(end.seconds_since(start) for start, end in self._events)
        return {"acquire": self._acquire_s, "reduce": self._reduce_s, "h2d": float(h2d)}

    def release(self) -> None:
        """Drop the references to all tensors. Views that somebody else keeps stay valid."""
        self._batches = None
        self._transfers = ()
