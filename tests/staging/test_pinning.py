"""Pinning is optional: one warning, the same values, and `pinned=False` wherever it is reported."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from staging_fakes import FakeDevice, images

from mmlab.errors import UsageError
from mmlab.staging import MODES, HostDevice, PinnedBatcher, PinnedPool, PinningWarning
from mmlab.staging import device as device_module

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


def warned(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in record if w.category is PinningWarning]


@pytest.mark.parametrize("pin", [None, True])
def test_pool_without_a_gpu_warns_once_and_is_pageable(pin: bool | None) -> None:
    with pytest.warns(PinningWarning, match="pinned=False: no CUDA device is in use") as record:
        pool = PinnedPool(1 << 20, pin=pin, device=HostDevice())
        batcher = PinnedBatcher("cpu", pool)
        for value in range(3):
            staged = batcher.stage(images(value, value))
            assert staged.kwargs["pixel_values"][0, 0, 0, 0] == value  # type: ignore[index]
            assert not staged.pinned
            assert not pool.acquire(10).pinned
    assert len(warned(record.list)) == 1
    assert not pool.stats().pinned


@no_cuda
@pytest.mark.parametrize("mode", ["pinned", "pool"])
def test_batcher_that_finds_no_gpu_warns_once(mode: str) -> None:
    with pytest.warns(PinningWarning) as record:
        batcher = PinnedBatcher(mode=mode)
        staged = batcher.stage(images(1, 2))
    assert len(warned(record.list)) == 1
    assert staged.kwargs["pixel_values"][1, 0, 0, 0] == 2  # type: ignore[index]
    assert not staged.pinned
    with pytest.warns(PinningWarning):
        PinnedBatcher("cpu", mode=mode, pin=True)


def test_nobody_who_did_not_ask_for_pinning_is_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in MODES:
            PinnedBatcher("cpu", mode=mode).stage(images(1, 2))
        PinnedPool(1000, pin=False).acquire(1)


@pytest.mark.parametrize("mode", ["pin-after", "pinned", "pool"])
def test_second_allocation_that_cannot_be_pinned_is_pageable(mode: str) -> None:
    device = FakeDevice(fail_pin=1)
    pool = PinnedPool(1 << 20, device=device) if mode == "pool" else None
    batcher = PinnedBatcher(device, pool, mode=mode)
    staged = []
    with pytest.warns(PinningWarning, match="out of locked memory$") as record:
        for value in range(4):
            staged.append(batcher.stage(images(value, value + 1)))
        device.complete_all()
    assert len(warned(record.list)) == 1
    assert device.pin_calls == 2  # not tried again
    assert [s.pinned for s in staged] == [True, False, False, False]
    for value, s in enumerate(staged):
        assert s.kwargs["pixel_values"][1, 0, 0, 0] == value + 1  # type: ignore[index]
    if pool is not None:
        assert not pool.stats().pinned
        assert pool.stats().live == 0


def test_warning_turned_into_an_error_loses_no_room() -> None:
    pool = PinnedPool(1000, device=FakeDevice(fail_pin=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PinningWarning):
            pool.acquire(1000, timeout=0)
        assert not pool.acquire(1000, timeout=0).pinned


def test_asking_what_is_there_creates_no_context() -> None:
    before = torch.cuda.is_initialized()
    device_module.resolve_device("auto")
    assert torch.cuda.is_initialized() == before


def test_cpu_paths_leave_cuda_alone() -> None:
    code = """
import warnings
import torch
def refuse(*args): raise AssertionError("CUDA was started")
torch.cuda._lazy_init = refuse
from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.staging import MODES, PinnedBatcher, PinnedPool, resolve_device
pairs = [("image", KwargsItem({"x": FieldElem(torch.ones(9), BatchedField())})) for _ in range(2)]
for mode in MODES:
    with PinnedBatcher("cpu", mode=mode) as batcher:
        assert batcher.stage(pairs).kwargs["x"].sum() == 18
with PinnedPool(1000, pin=False) as pool:
    pool.acquire(10).release()
resolve_device("auto")
assert not torch.cuda.is_initialized()
print("clean")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "clean\n", done.stderr


@no_cuda
def test_cuda_without_cuda_is_refused_with_the_way_out() -> None:
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UsageError, match=rf"device '{name}': torch .*use device='auto'"):
            PinnedBatcher(name)
    with pytest.raises(UsageError, match="device 'cuda': torch"):
        PinnedBatcher(torch.device("cuda"))


def test_gpu_index_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=r"'cuda:7': this machine has 2 \(cuda:0 to cuda:1\)"):
        PinnedBatcher("cuda:7")
    assert PinnedBatcher("cuda:1").device == torch.device("cuda", 1)
    assert not torch.cuda.is_initialized() or torch.cuda.is_available()
