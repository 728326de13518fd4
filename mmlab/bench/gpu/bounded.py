"""S13: pinned bytes stay under the budget while batches grow.

Two numbers, which count different memory and are added. `pool.stats()` counts what the pool has
registered (`cudaHostRegister`): torch knows nothing of it. `torch.cuda.host_memory_stats()` counts
what torch's own allocator has pinned, which mode `pinned` uses: blocks of powers of two, kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmlab.bench.gpu.context import Context, apart, pairs_of
from mmlab.bench.gpu.findings import Finding
from mmlab.staging import PinnedBatcher, PinnedPool

BUDGET_MIB = 256
FROM_MIB, TO_MIB = 33, 65


def pinned_bytes(context: Context) -> Iterator[Finding]:
    """33 to 65 MiB in steps of 1 MiB, by the pool, then by mode `pinned` to compare with."""
    budget = BUDGET_MIB * context.mib
    before = _torch_nbytes(context, "current", reset=True)
    pool = PinnedPool(budget, device=context.device)
    with pool, PinnedBatcher(context.device, pool) as batcher:
        _grow(context, batcher)
        stats = pool.stats()
    by_torch = _torch_nbytes(context, "peak") - before
    yield Finding(
        "S13: pinned by the pool and by torch",
        f"{_mib(stats.high_water_nbytes, context)} + {_mib(by_torch, context)} MiB",
        f"<= {BUDGET_MIB} MiB, pinned",
        stats.high_water_nbytes + by_torch <= budget and stats.pinned,
        {
            "registered_nbytes": stats.high_water_nbytes,
            "torch_nbytes": by_torch,
            "allocations": stats.allocations,
            "evictions": stats.evictions,
        },
    )
    before = _torch_nbytes(context, "current", reset=True)
    with PinnedBatcher(context.device, mode="pinned") as batcher:
        _grow(context, batcher)
    grown = _torch_nbytes(context, "peak") - before
    yield Finding(
        "S13: the same batches, mode pinned",
        f"+{_mib(grown, context)} MiB of torch's",
        "shown: not bounded",
        None,
        {"torch_nbytes": grown, "torch_before_nbytes": before},
    )


def _grow(context: Context, batcher: PinnedBatcher) -> None:
    parts = apart(context, 2, TO_MIB * context.mib // 2, pinned=False)
    for mib in range(FROM_MIB, TO_MIB + 1):
        batch = [part[: mib * context.mib // 2] for part in parts]
        batcher.stage(pairs_of("x", batch)).synchronize().release()


def _torch_nbytes(context: Context, which: str, *, reset: bool = False) -> int:
    """Pinned by torch's allocator, now or at most since the last reset; 0 without CUDA."""
    if context.torch_device.type != "cuda":
        return 0
    if reset:
        torch.cuda.reset_peak_host_memory_stats()
    return int(torch.cuda.host_memory_stats().get(f"allocated_bytes.{which}", 0))


def _mib(nbytes: int, context: Context) -> str:
    return f"{nbytes / context.mib:.0f}"
