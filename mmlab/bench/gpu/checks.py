"""All checks in their order: cheap ones first, since the budget may end the list early."""

from __future__ import annotations

import gc

import torch

from mmlab.bench.gpu import bounded, delivery, normalizing, speed, waiting
from mmlab.bench.gpu.findings import Check


def all_checks() -> list[Check]:
    """With how many seconds each may take at most on a machine of today."""
    from mmlab.bench.gpu import encoder, processes

    return [
        Check("bytes", delivery.exact_bytes, 10),
        Check("no synchronising call", waiting.no_hidden_waiting, 5),
        Check("R16", delivery.no_early_refill, 20),
        Check("S13", bounded.pinned_bytes, 15),
        Check("S12", speed.reported_time, 15),
        Check("bandwidth", speed.bandwidth, 30),
        Check("overlap", waiting.overlap, 15),
        Check("uint8 normalized", normalizing.normalized, 15),
        Check("S14", processes.start_after_cuda, 20),
        Check("echo", processes.same_bytes, 40),
        Check("images/s", encoder.throughput, 50),
        Check("tokens", processes.same_tokens, 60),
    ]


def settle() -> None:
    """Between two checks: wait for the device, where errors show late, and free its memory."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
