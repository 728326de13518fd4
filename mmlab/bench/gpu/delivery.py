"""Exact bytes by every mode, and no memory that is refilled before its copy has ended (R16)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmlab.bench.gpu.context import Context, Pairs, apart, hold_up, pairs_of, tensor_in
from mmlab.bench.gpu.findings import Finding
from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.staging import MODES, PinnedBatcher, PinnedPool

DTYPES = (torch.float32, torch.bfloat16, torch.uint8)
ITEMS = 3
ROUNDS = 3
BATCHES = 200


def exact_bytes(context: Context) -> Iterator[Finding]:
    """Random bits (every NaN among them), large and small, from ordinary and from pinned memory."""
    for mode in MODES:
        wrong: list[str] = []
        with PinnedBatcher(context.device, mode=mode) as batcher:
            for dtype in DTYPES:
                for pinned in (False, True):
                    found = _compare(context, batcher, dtype, pinned)
                    where = f"{dtype} of {'pinned' if pinned else 'ordinary'} memory"
                    wrong += [f"{where}: {what}" for what in found]
        got = f"{len(wrong)} wrong, {wrong[0]}" if wrong else "all equal"
        wanted = f"torch.equal, {len(DTYPES)} dtypes, large and small"
        yield Finding(f"bytes, {mode}", got, wanted, not wrong, {"wrong": wrong})


def _compare(
    context: Context, batcher: PinnedBatcher, dtype: torch.dtype, pinned: bool
) -> list[str]:
    large = apart(context, ITEMS, context.mib, pinned=pinned)
    small = apart(context, ITEMS, 256, pinned=pinned)
    other = apart(context, ITEMS, 64, pinned=pinned)
    wanted = {"large": large, "small": small, "other": other}
    pairs: Pairs = [
        (
            "image",
            KwargsItem(
                {key: FieldElem(raw[at].view(dtype), BatchedField()) for key, raw in wanted.items()}
            ),
        )
        for at in range(ITEMS)
    ]
    wrong: list[str] = []
    for _ in range(ROUNDS):
        staged = batcher.stage(pairs)
        kwargs = staged.kwargs
        staged.synchronize()
        for key, raw in wanted.items():
            arrived = tensor_in(kwargs, key)
            if arrived.device.type != context.torch_device.type or arrived.dtype != dtype:
                wrong.append(f"{key} is {arrived.dtype} on {arrived.device}")
            elif not torch.equal(arrived.cpu().view(torch.uint8), torch.stack(raw)):
                wrong.append(f"{key} has other bytes")
        if staged.pinned != (batcher.mode != "pageable"):
            wrong.append(f"pinned={staged.pinned}")
    return wrong


def no_early_refill(context: Context) -> Iterator[Finding]:
    """Two slots of 64 MiB, 200 batches of their own number each, a copy stream that lags."""
    half = 32 * context.mib
    seen: list[torch.Tensor] = []
    pool = PinnedPool(4 * half, device=context.device)
    with pool, PinnedBatcher(context.device, pool) as batcher:
        parts = apart(context, 2, half, pinned=False)
        for number in range(BATCHES):
            for part in parts:
                part.fill_(number)
            staged = batcher.stage(pairs_of("x", parts))
            if context.torch_device.type != "cuda":
                staged.synchronize()  # there the consumer's stream would wait
            arrived = tensor_in(staged.kwargs, "x")
            seen.append(torch.stack([arrived.min(), arrived.max()]))
            staged.release()
            if number % 10 == 0:
                hold_up(context, batcher)
        pool_stats = pool.stats()
    ends = torch.stack(seen).tolist()
    wrong = [number for number, pair in enumerate(ends) if pair != [number, number]]
    got = f"{len(wrong)} wrong, first {ends[wrong[0]]} in {wrong[0]}" if wrong else "all equal"
    wanted = f"min and max are the number, {BATCHES} times"
    yield Finding("R16: slots refilled at once", got, wanted, not wrong, {"wrong": wrong})
    yield Finding(
        "R16: slots",
        f"{pool_stats.allocations} allocated, pinned {pool_stats.pinned}",
        "2 allocated, pinned True",
        pool_stats.allocations == 2 and pool_stats.pinned,
        {"waits": pool_stats.waits, "reuses": pool_stats.reuses},
    )
