"""Which tensors of a batch must be written, which can be used as they lie, and which stay behind.

A batch's kwargs are nested: a tensor for most keys, lists where shapes differ, numbers. Staging
wants a flat list of tensors. A `Layout` is both: the kwargs with a `Slot` wherever a tensor
belongs that is to be written or copied, and the list that the slots point into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from mmlab.reducers import Batch
from mmlab.reducers.reduction import Part, Plan
from mmlab.staging.device import Device
from mmlab.staging.writing import write_key, write_twice

ALIGN = 64  # bytes; tensors of one staging buffer start on a cache line of their own
SMALL = 64 << 10  # bytes; up to here a copy of its own takes longer to start than to run


class Slot(NamedTuple):
    """Stands in the kwargs for the tensor of that index."""

    at: int


class Piece(NamedTuple):
    """A tensor to be written into staging memory, for a slot."""

    slot: Slot
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    write: Callable[[torch.Tensor], object]  # fills the tensor it is given


@dataclass(slots=True)
class Source:
    """Host memory of a slot's tensor. None: its piece is not written yet, or it has parts."""

    tensor: torch.Tensor | None
    pinned: bool = False
    borrowed: bool = False  # not ours: must be kept alive until its copy has finished
    parts: Sequence[Part] = ()  # pinned and dense, of a device tensor of this plan
    plan: Plan | None = None


class Bundle(NamedTuple):
    """Small pieces behind each other in staging memory, and where each begins."""

    memory: torch.Tensor
    pinned: bool
    places: list[tuple[Piece, int]]


class Layout:
    """How one batch is staged. Making it plans, and writes nothing.

    Its pieces refer to the batch, never to the layout: a cycle would keep staging memory until the
    next garbage collection.
    """

    def __init__(
        self,
        batch: Batch,
        device: Device,
        *,
        write: bool,
        direct: bool = False,
        twice: bool = False,
    ) -> None:
        """`twice`: what must be put together first is, in ordinary memory, and is then written."""
        self.batch = batch
        self.kwargs: dict[str, object] = {}
        self.sources: list[Source] = []
        self.pieces: list[Piece] = []
        self.bundle: Bundle | None = None  # of the small pieces, once they are written
        self.nbytes = 0  # payload on its way to the device
        self.copied_nbytes = 0  # moved by the CPU, each time counted
        self.copies = 0  # the most that any byte was moved
        self._twice = twice
        for key in list(batch.keys()):
            if batch.field(key).keep_on_cpu:
                self.kwargs[key] = batch.reduce_key(key)
            elif device.is_host:
                self._add_here(key, write)
            elif not (direct and self._add_parts(key, device)):
                self._add_for_device(key, device, write)

    def _add_here(self, key: str, write: bool) -> None:
        """On the CPU a batch that exists, or that is no single tensor, is already staged."""
        plan = self.batch.plan(key)
        if plan is not None:
            self.nbytes += plan.nbytes
            self._count(plan.copies, plan.nbytes)
            if plan.copies and write:
                self.kwargs[key] = self._piece(
                    plan.shape, plan.dtype, plan.nbytes, partial(write_key, self.batch, key)
                )
                return
        self.kwargs[key] = self.batch.reduce_key(key)

    def _add_parts(self, key: str, device: Device) -> bool:
        """Copy the parts of a batch that is not there yet straight from where they lie, if they
        lie in pinned memory."""
        reduction = self.batch.reduction(key)
        plan = reduction.plan
        if plan is None or reduction.parts is None:
            return False
        parts = reduction.parts()
        if not all(part.is_contiguous() and device.is_pinned(part) for _, part in parts):
            return False
        self.nbytes += plan.nbytes
        self.sources.append(Source(None, pinned=True, borrowed=True, parts=parts, plan=plan))
        self.kwargs[key] = Slot(len(self.sources) - 1)
        return True

    def _add_for_device(self, key: str, device: Device, write: bool) -> None:
        plan = self.batch.plan(key)
        if write and plan is not None and plan.copies:
            self.nbytes += plan.nbytes
            self._count(2 if self._twice else 1, plan.nbytes)
            put = partial(write_twice if self._twice else write_key, self.batch, key)
            self.kwargs[key] = self._piece(plan.shape, plan.dtype, plan.nbytes, put)
            return
        if plan is not None:
            self._count(plan.copies, plan.nbytes)

        def place(tensor: torch.Tensor) -> Slot:
            self.nbytes += tensor.nbytes
            if not write:
                return self._borrow(tensor)
            if tensor.is_contiguous() and device.is_pinned(tensor):
                return self._borrow(tensor, pinned=True)
            self._count(1, tensor.nbytes)
            shape = tuple(tensor.shape)
            return self._piece(shape, tensor.dtype, tensor.nbytes, lambda out: out.copy_(tensor))

        self.kwargs[key] = map_tensors(self.batch.reduce_key(key), place)

    def _count(self, copies: int, nbytes: int) -> None:
        self.copied_nbytes += copies * nbytes
        if nbytes:
            self.copies = max(self.copies, copies)

    def _borrow(self, tensor: torch.Tensor, pinned: bool = False) -> Slot:
        self.sources.append(Source(tensor, pinned, borrowed=True))
        return Slot(len(self.sources) - 1)

    def _piece(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        nbytes: int,
        write: Callable[[torch.Tensor], object],
    ) -> Slot:
        self.sources.append(Source(None))
        slot = Slot(len(self.sources) - 1)
        self.pieces.append(Piece(slot, shape, dtype, nbytes, write))
        return slot

    @property
    def _small(self) -> list[Piece]:
        """Pieces that one copy can take together."""
        small = [piece for piece in self.pieces if piece.nbytes <= SMALL]
        return small if len(small) > 1 else []

    @property
    def staging_nbytes(self) -> int:
        """Bytes of staging memory that the pieces take, aligned."""
        return sum(_aligned(piece.nbytes) for piece in self.pieces)

    def write(self, memory: torch.Tensor, pinned: bool) -> None:
        """Write every piece into `memory` (uint8, at least `staging_nbytes`), small ones first."""
        small = self._small
        places: list[tuple[Piece, int]] = []
        at = 0
        for piece in (*small, *(piece for piece in self.pieces if piece not in small)):
            out = memory[at : at + piece.nbytes].view(piece.dtype).view(piece.shape)
            piece.write(out)
            self.sources[piece.slot.at] = Source(out, pinned)
            places.append((piece, at))
            at += _aligned(piece.nbytes)
        if small:
            last, start = places[len(small) - 1]
            together = memory[: start + last.nbytes]
            self.bundle = Bundle(together, pinned, places[: len(small)])

    def finish(self, tensors: Iterable[torch.Tensor | None]) -> dict[str, object]:
        """The kwargs with `tensors` in their slots."""
        found = list(tensors)
        return {key: _fill(value, found) for key, value in self.kwargs.items()}


def map_tensors(value: object, change: Callable[[torch.Tensor], object]) -> object:
    """`value` with every tensor in it changed; lists and tuples are walked, the rest is kept."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        walked = [map_tensors(part, change) for part in value]
        return walked if isinstance(value, list) else tuple(walked)
    return value


def _fill(value: object, tensors: list[torch.Tensor | None]) -> object:
    if isinstance(value, Slot):
        return tensors[value.at]
    if isinstance(value, list | tuple):
        walked = [_fill(part, tensors) for part in value]
        return walked if isinstance(value, list) else tuple(walked)
    return value


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
