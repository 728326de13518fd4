"""Where staging memory comes from: pinned as long as that works, pageable after one warning.

Pinning fails for reasons outside the program (no GPU, a memlock limit, a container), sometimes only
at the second allocation. The run then goes on with pageable memory and says so once; whoever reads
the results sees `pinned=False`, so that no figure shows a pageable copy under the name of a pinned
one.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Protocol, Self

import torch

from mmlab.errors import MMLabError
from mmlab.staging.device import Completion, Device


class PinningWarning(UserWarning):
    """Staging memory could not be pinned and is pageable instead."""


class Buffer:
    """The lease of a piece of staging memory: `tensor` (uint8, at least `nbytes` long), `pinned`.

    `release()` ends it at once, `release(after=event)` as soon as the event has passed. A buffer
    that is dropped without either comes back when the last view of its tensor has died: a tensor
    that somebody still holds is never overwritten. As a context manager it is released on exit.
    """

    __slots__ = ("_end", "_tensor", "nbytes", "pinned")

    def __init__(
        self,
        tensor: torch.Tensor,
        nbytes: int,
        pinned: bool,
        end: Callable[[Completion | None], bool],
    ) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._end = end
        self.nbytes = nbytes
        self.pinned = pinned

    @property
    def tensor(self) -> torch.Tensor:
        if self._tensor is None:
            raise MMLabError("staging buffer: used after release(); acquire another one")
        return self._tensor

    def release(self, after: Completion | None = None) -> None:
        """Give the memory back, not to be reused before `after` has passed. Twice is once.

        Only a second release with an event is an error: the memory may have a new owner by now.
        """
        ended = self._end(after)  # first: dropping the tensor would end the lease without `after`
        self._tensor, self._end = None, _ended  # a kept Buffer does not keep its memory
        if not ended and after is not None:
            raise MMLabError("staging buffer: release(after=...) came after it had been released")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def _ended(after: Completion | None) -> bool:
    return False


class StagingMemory(Protocol):
    """Gives out buffers: the bounded pool, or fresh memory for every batch."""

    def acquire(self, nbytes: int, timeout: float | None = None) -> Buffer: ...


class HostMemory:
    """Allocates host memory, pinned if wanted and possible. Thread-safe, warns once."""

    def __init__(self, device: Device, pin: bool | None) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._pin = pin is not False
        if self._pin and device.pin_problem is not None:
            self._give_up_pinning(device.pin_problem)

    @property
    def pins(self) -> bool:
        """Whether the next allocation will ask for pinned memory."""
        return self._pin

    def allocate(self, nbytes: int, *, fresh: bool = False) -> tuple[torch.Tensor, bool]:
        """(memory, pinned). After the first failure to pin, pinning is not tried again."""
        if self._pin:
            try:
                if fresh:
                    return self.device.allocate_fresh(nbytes), True
                return self.device.allocate(nbytes, pin=True), True
            except (RuntimeError, OSError, MemoryError) as error:
                self._give_up_pinning(str(error).strip().partition("\n")[0])
        return self.device.allocate(nbytes, pin=False), False

    def _give_up_pinning(self, reason: str) -> None:
        with self._lock:
            first, self._pin = self._pin, False
        if first:
            warnings.warn(
                f"staging memory is pageable, copies to the device will be slower and results "
                f"carry pinned=False: {reason}",
                PinningWarning,
                stacklevel=4,
            )


class FreshMemory:
    """A fresh pinned buffer for every batch, as vLLM #19169 takes it from PyTorch's allocator.

    There is nothing to return it to: `release` drops the reference, and whoever started a copy
    keeps the tensor until it has finished.
    """

    def __init__(self, device: Device, pin: bool | None) -> None:
        self._memory = HostMemory(device, pin)

    def acquire(self, nbytes: int, timeout: float | None = None) -> Buffer:
        tensor, pinned = self._memory.allocate(max(nbytes, 1), fresh=True)
        return Buffer(tensor, nbytes, pinned, lambda after: True)
