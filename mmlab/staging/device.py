"""What staging needs from a device, as four small protocols, and the device that every machine has.

All rules of staging are about order: a buffer may be filled again only after its copy has finished,
a consumer may read only after the copy has arrived. Written against these protocols the rules run,
and are tested, on a machine without a GPU; `cuda.py` is the implementation that has one. Nothing in
this module initialises CUDA: a process that only asks what is there keeps its right to fork, and a
frontend holds no context on the GPU.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import numpy as np
import torch

from mmlab.errors import UsageError, unknown
from mmlab.reducers.reduction import Part


class Completion(Protocol):
    """Something that has happened or not yet: all that a pool must know of a copy."""

    def query(self) -> bool: ...


class Event(Completion, Protocol):
    """A point in a stream's work. `query` never blocks, `synchronize` blocks the host."""

    def synchronize(self) -> None: ...

    def seconds_since(self, start: Self) -> float:
        """Device seconds from `start` to this event; both must have passed."""
        ...


class UnknownEnd:
    """Of copies whose event could not be recorded: memory that they may read is not used again."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def seconds_since(self, start: object) -> float:
        return float("nan")


class Stream(Protocol):
    """A queue of copies to the device, beside the queue of the consumer's computations."""

    def copy(self, source: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        """Start copying a contiguous host tensor; returns the device tensor it will arrive in.

        Asynchronous from pinned memory: the source must not change, and must not be freed, before
        an event recorded later has passed. From pageable memory it returns when the copy is done.
        """
        ...

    def gather(
        self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[Part]
    ) -> torch.Tensor:
        """Start copying dense pinned tensors, each into its place of one new device tensor.

        Asynchronous as `copy`. The parts fill the whole of it."""
        ...

    def record(self) -> Event:
        """An event that passes when every copy started so far has arrived."""
        ...

    def hand_over(self, event: Event, tensors: Iterable[torch.Tensor]) -> None:
        """Let the consumer's current stream wait for `event`, and tie `tensors` to that stream."""
        ...


class Device(Protocol):
    """Host memory of the kind a device copies from best, and streams that copy."""

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def is_host(self) -> bool:
        """True where a batch is already in place once it is written: nothing is copied."""
        ...

    @property
    def pin_problem(self) -> str | None:
        """Why memory cannot be pinned here at all, or None."""
        ...

    def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
        """Host memory (uint8, exactly nbytes), given back when its last view dies.

        Raises RuntimeError or OSError where pinning it is not possible."""
        ...

    def allocate_fresh(self, nbytes: int) -> torch.Tensor:
        """Pinned memory as `torch.empty(pin_memory=True)` makes it: what mode `pinned` measures."""
        ...

    def is_pinned(self, tensor: torch.Tensor) -> bool: ...

    def register(self, memory: np.ndarray) -> None:
        """Pin whole pages that exist already, until the array dies. Nothing where `is_host`.

        Raises RuntimeError where that is not possible."""
        ...

    def stream(self) -> Stream: ...


def map_memory(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Zeroed pages of their own: page-aligned, shared with no other object, unmapped when freed.

    (malloc would put neighbours on the same page, and keeps what is freed.)
    """
    region = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(region, dtype=np.uint8)


class HostDevice:
    """The CPU: batches stay where they were written, and pinning has no purpose."""

    torch_device = torch.device("cpu")
    is_host = True
    pin_problem: str | None = "no CUDA device is in use"

    def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
        if pin:
            raise RuntimeError(f"cannot pin {nbytes} B: {self.pin_problem}")
        return torch.from_numpy(map_memory(nbytes))

    def allocate_fresh(self, nbytes: int) -> torch.Tensor:
        return self.allocate(nbytes, pin=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def register(self, memory: np.ndarray) -> None:
        """Nothing: a batch on the CPU is not copied."""

    def stream(self) -> Stream:
        raise RuntimeError("batches on the CPU are not copied: there is no stream to copy on")


def cuda_problem() -> str | None:
    """Why CUDA cannot be used here, or None. Creates no context.

    NVML is asked first (`device_count`), which does not even start the driver; only where it knows
    a GPU does `is_available` check that driver and runtime get along.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    if torch.cuda.device_count() == 0 or not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU with a driver it can use"
    return None


def resolve_device(device: str | torch.device | Device) -> Device:
    """From `"auto"` (CUDA where usable, else the CPU), `"cpu"`, `"cuda"`, `"cuda:1"`, a Device."""
    if not isinstance(device, str | torch.device):
        return device
    problem = cuda_problem() if device == "auto" else None
    if device == "auto":
        device = "cpu" if problem else "cuda"
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = torch.device("meta")
    if wanted.type == "cpu":
        return HostDevice()
    if wanted.type != "cuda":
        raise unknown("device", str(device), ["auto", "cpu", "cuda", "cuda:0"])
    if problem := cuda_problem():
        raise UsageError(f"device {str(device)!r}: {problem}; use device='auto' or 'cpu'")
    index = wanted.index
    if index is None:
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(
            f"device {str(device)!r}: this machine has {count} (cuda:0 to cuda:{count - 1})"
        )
    from mmlab.staging.cuda import CudaDevice

    return CudaDevice(torch.device("cuda", index))
