"""Items to stage, and a deterministic device: copies finish when told to, in any order.

A copy reads its source when it *completes*, by address, as DMA does: memory that was filled again
too early shows up as wrong bytes, memory that was freed too early as a fault in `faults`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

import mmlab
from mmlab.fields import FieldElem, KwargsItem
from mmlab.reducers.reduction import Part
from mmlab.staging.device import Event, Stream, map_memory

GARBAGE = 0xAA
Pairs = list[tuple[str, KwargsItem | None]]


def image(value: float, shape: tuple[int, ...] = (3, 8, 8)) -> KwargsItem:
    """One item with memory of its own: a batch of several must be written."""
    return KwargsItem(
        {
            "pixel_values": FieldElem(
                torch.full(shape, float(value)), mmlab.batched("image").field
            ),
            "num_crops": FieldElem(
                torch.tensor(int(value)), mmlab.batched("image", keep_on_cpu=True).field
            ),
        }
    )


def images(*values: float, shape: tuple[int, ...] = (3, 8, 8)) -> Pairs:
    return [("image", image(value, shape)) for value in values]


class CountdownEvent:
    """query() says False `times` times, then True."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left < 0


class FlagEvent:
    """Passes when told to."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


@dataclass(eq=False)
class Copy:
    source: int  # address
    target: torch.Tensor
    place: torch.Tensor | None = None  # where the target goes when the copy completes
    done: bool = False

    @property
    def nbytes(self) -> int:
        return self.target.nbytes

    def overlaps(self, tensor: torch.Tensor) -> bool:
        start = tensor.data_ptr()
        return self.source < start + tensor.nbytes and start < self.source + self.nbytes


class FakeEvent:
    """Covers the copies since the stream's previous event: later events may pass earlier."""

    def __init__(self, device: FakeDevice, copies: list[Copy]) -> None:
        self.device = device
        self.copies = copies

    def query(self) -> bool:
        return all(copy.done for copy in self.copies)

    def synchronize(self) -> None:
        for copy in self.copies:
            self.device.complete(copy)

    def seconds_since(self, start: FakeEvent) -> float:
        return 0.25 * len(self.copies)


class FakeStream:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.since: list[Copy] = []

    def copy(self, source: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        if self.device.fail_copy == len(self.device.copies):
            raise RuntimeError("copy failed")
        assert source.is_contiguous() or not pinned
        target = torch.empty(source.shape, dtype=source.dtype)
        target.view(-1).view(torch.uint8).fill_(GARBAGE)
        copy = Copy(source.data_ptr(), target)
        if pinned:
            self.since.append(copy)
        else:  # blocks until it is done
            target.copy_(source)
            copy.done = True
        self.device.copies.append(copy)
        return target

    def gather(
        self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[Part]
    ) -> torch.Tensor:
        whole = torch.empty(tuple(shape), dtype=dtype)
        whole.view(-1).view(torch.uint8).fill_(GARBAGE)
        for place, source in parts:
            assert source.is_contiguous()
            assert self.device.is_pinned(source)
            # a copy of its own: a place may have gaps, which DMA by one memmove cannot leave out
            copy = Copy(source.data_ptr(), torch.empty_like(source), whole[place])
            self.since.append(copy)
            self.device.copies.append(copy)
        return whole

    def record(self) -> FakeEvent:
        event = FakeEvent(self.device, self.since)
        self.since = []
        return event

    def hand_over(self, event: Event, tensors: Iterable[torch.Tensor]) -> None:
        assert isinstance(event, FakeEvent)
        self.device.handed_over.append((event, [t.data_ptr() for t in tensors]))


@dataclass
class FakeDevice:
    """`fail_pin`: the pinned allocation of that number (from 0) and all later ones fail."""

    fail_pin: int | None = None
    fail_copy: int | None = None
    fail_register: bool = False
    pin_problem: str | None = None
    is_host: bool = False
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    live: dict[int, int] = field(default_factory=dict)  # address -> bytes of all living memory
    pinned: set[int] = field(default_factory=set)
    pin_calls: int = 0
    most_nbytes: int = 0
    copies: list[Copy] = field(default_factory=list)
    handed_over: list[tuple[FakeEvent, list[int]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    finishing: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
        if pin:
            self.pin_calls += 1
            if self.fail_pin is not None and self.pin_calls > self.fail_pin:
                raise RuntimeError("out of locked memory\nwith a long explanation")
        memory = map_memory(nbytes)
        address = int(memory.ctypes.data)
        self.live[address] = nbytes
        self.most_nbytes = max(self.most_nbytes, sum(self.live.values()))
        if pin:
            self.pinned.add(address)
        weakref.finalize(memory, self._freed, address).atexit = False
        return torch.from_numpy(memory)

    def _freed(self, address: int) -> None:
        del self.live[address]
        self.pinned.discard(address)

    def allocate_fresh(self, nbytes: int) -> torch.Tensor:
        return self.allocate(nbytes, pin=True)

    def _home(self, address: int, nbytes: int) -> int | None:
        for start, size in list(self.live.items()):
            if start <= address and address + nbytes <= start + size:
                return start
        return None

    def register(self, memory: np.ndarray) -> None:
        if self.fail_register:
            raise RuntimeError("out of locked memory\nwith a long explanation")
        address = int(memory.ctypes.data)
        self.live[address] = memory.nbytes
        self.pinned.add(address)
        weakref.finalize(memory, self._freed, address).atexit = False

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._home(tensor.data_ptr(), tensor.nbytes) in self.pinned

    def stream(self) -> Stream:
        return FakeStream(self)

    @property
    def unfinished(self) -> list[Copy]:
        return [copy for copy in self.copies if not copy.done]

    def complete(self, copy: Copy) -> None:
        with self.finishing:
            if copy.done:
                return
            if copy.nbytes and self._home(copy.source, copy.nbytes) is None:
                self.faults.append(f"copy of {copy.nbytes} B read freed memory")
            elif copy.nbytes:
                ctypes.memmove(copy.target.data_ptr(), copy.source, copy.nbytes)
                if copy.place is not None:
                    copy.place.copy_(copy.target)
            copy.done = True  # last: whoever sees it may free the source

    def complete_all(self) -> None:
        for copy in reversed(self.unfinished):
            self.complete(copy)
