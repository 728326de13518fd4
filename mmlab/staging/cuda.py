"""The device protocols on CUDA: registered host memory, a copy stream, timed events.

Pool memory is page-aligned `mmap` memory registered with `cudaHostRegister`, not
`torch.empty(pin_memory=True)`: PyTorch's caching host allocator rounds up to powers of two (a
batch of 65 MiB pins 128) and keeps what is freed, so a bound in bytes would not hold. Registered
memory is pinned to the page, known to `Tensor.is_pinned`, and unpinned when its last view dies.
Copies from it are asynchronous all the same, but PyTorch does not track them: the pool does, by
events.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import torch

from mmlab.reducers.reduction import Part
from mmlab.staging.device import Event, Stream, map_memory

REGISTER_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device, not only the current one


class CudaEvent:
    """A `torch.cuda.Event` with timing."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def query(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        self.event.synchronize()

    def seconds_since(self, start: CudaEvent) -> float:
        return float(start.event.elapsed_time(self.event)) / 1e3


class CudaStream:
    """A stream of its own, so that copies run beside the computations of the consumer's stream.

    Device tensors are allocated in this stream: freed ones are reused in its order, and `hand_over`
    tells the caching allocator that the consumer's stream uses them too (`record_stream`).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]

    def copy(self, source: torch.Tensor, *, pinned: bool) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
            # From pageable memory non_blocking would block all the same, only unseen.
            return target.copy_(source, non_blocking=pinned)

    def gather(
        self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[Part]
    ) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            target = torch.empty(tuple(shape), dtype=dtype, device=self._device)
            for place, source in parts:
                target[place].copy_(source, non_blocking=True)
            return target

    def record(self) -> CudaEvent:
        return CudaEvent(self._stream)

    def hand_over(self, event: Event, tensors: Iterable[torch.Tensor]) -> None:
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(cast(CudaEvent, event).event)
        for tensor in tensors:
            tensor.record_stream(consumer)


class CudaDevice:
    """One GPU. Making the object touches nothing; CUDA starts with the first memory or stream."""

    is_host = False
    pin_problem: str | None = None

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    def allocate(self, nbytes: int, *, pin: bool) -> torch.Tensor:
        memory = map_memory(nbytes)
        if pin:
            self.register(memory)  # what the tensor's storage holds: it dies with the last view
        return torch.from_numpy(memory)

    def register(self, memory: np.ndarray) -> None:
        address = int(memory.ctypes.data)
        self._register(address, memory.nbytes)
        # An array's finalizers run before the pages under it are unmapped.
        weakref.finalize(memory, _unregister, address, os.getpid()).atexit = False

    def allocate_fresh(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def stream(self) -> Stream:
        return CudaStream(self.torch_device)

    def _register(self, address: int, nbytes: int) -> None:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.torch_device):
            code = runtime.cudaHostRegister(address, nbytes, REGISTER_PORTABLE)
        if int(code) == 0:
            return
        _forget_error(self.torch_device)
        reason = runtime.cudaGetErrorString(code)
        raise RuntimeError(f"cudaHostRegister of {nbytes} B failed: {reason}")


def _forget_error(device: torch.device) -> None:
    """The runtime remembers a failure and reports it at the next kernel launch, to somebody who has
    nothing to do with it: launch one here and swallow it."""
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device=device).fill_(1)


def _unregister(address: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has neither the registration nor a usable CUDA
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
