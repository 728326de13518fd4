"""Registering host memory with CUDA, against a stand-in for the runtime: who unregisters, when."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest
import torch

from mmlab.staging import PinnedPool, PinningWarning
from mmlab.staging import cuda as cuda_module
from mmlab.staging.cuda import CudaDevice


class Runtime:
    """Registers `room` mappings, then fails."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 1
        assert address % 4096 == 0
        assert address not in self.registered
        if len(self.registered) == self.room:
            return 2
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, code: int) -> str:
        return f"error {code}"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime(room=1)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda_module, "_forget_error", lambda device: None)
    return runtime


def test_memory_is_registered_until_its_last_view_dies(runtime: Runtime) -> None:
    memory = CudaDevice(torch.device("cuda", 0)).allocate(10_001, pin=True)
    assert runtime.registered == {memory.data_ptr(): 10_001}
    view = memory[5:10].view(5, 1)
    del memory
    gc.collect()
    assert len(runtime.registered) == 1
    view.fill_(1)
    del view
    assert runtime.registered == {}


def test_pageable_memory_is_not_registered(runtime: Runtime) -> None:
    CudaDevice(torch.device("cuda", 0)).allocate(100, pin=False).fill_(1)
    assert runtime.registered == {}


def test_refused_registration_makes_the_pool_pageable(runtime: Runtime) -> None:
    pool = PinnedPool(1 << 20, device=CudaDevice(torch.device("cuda", 0)))
    first = pool.acquire(1000)
    assert pool.stats().pinned
    with pytest.warns(PinningWarning, match="cudaHostRegister of 1024 B failed: error 2"):
        second = pool.acquire(1000)
    assert (first.pinned, second.pinned, pool.stats().pinned) == (True, False, False)
    first.release()
    second.release()
    pool.close()
    assert runtime.registered == {}


def test_forked_child_does_not_unregister(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = CudaDevice(torch.device("cuda", 0)).allocate(100, pin=True)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del memory
    assert len(runtime.registered) == 1
