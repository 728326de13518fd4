"""The checks of `mmlab bench gpu` that start pipelines, dry, on the CPU: none pins."""

from __future__ import annotations

import pytest

from mmlab.bench.gpu import normalizing, processes
from mmlab.bench.gpu.context import Context
from mmlab.staging import HostDevice


@pytest.mark.parametrize("strategy", ["msgpack", "arena"])
def test_checksums_of_a_real_pipeline_are_compared(strategy: str) -> None:
    """On the CPU, where nothing is pinned: all bytes are right, and the row says what is not."""
    found = processes._same_bytes(Context(HostDevice()), strategy)
    assert found.got == "3 of 3 checksums equal, pinned False"
    assert (found.ok, found.values) == (False, {"wrong": [], "devices": ["cpu"]})


def test_a_pipeline_starts_beside_what_this_process_uses() -> None:
    (found,) = processes.start_after_cuda(Context(HostDevice()))
    assert found.ok and "replies from cpu" in found.got


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_tokens_are_asked_of_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
    monkeypatch.setattr(processes, "gpu_strategies", lambda: ["arena"])
    (found,) = processes.same_tokens(Context(HostDevice()))
    assert (found.ok, found.got) == (True, "equal by 2 strategies")


def test_all_steps_agree_with_themselves_on_the_cpu() -> None:
    pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
    found = list(normalizing.normalized(Context(HostDevice())))
    assert [(f.ok, f.got) for f in found] == [(True, "0 ulp")] * 6
    assert processes.gpu_strategies()[:2] == ["msgpack-pinned", "msgpack-pool"]
