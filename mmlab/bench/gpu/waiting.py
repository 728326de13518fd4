"""No copy that the host waits for unseen, and copies that run while the device computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import torch

from mmlab.bench.gpu.context import Context, apart, pairs_of, pin_modes, spin, tensor_in
from mmlab.bench.gpu.findings import Finding
from mmlab.staging import Event, PinnedBatcher

BATCHES = 8
COMPUTE = 4  # times as long as a copy
MIN_OVERLAP = 0.9

Span = tuple[float, float]  # seconds since one common event


def no_hidden_waiting(context: Context) -> Iterator[Finding]:
    """`stage` under torch's own detector. Pageable memory shows that the detector works."""
    for mode in pin_modes():
        error = _error_of(context, mode)
        got = error or "none"
        yield Finding(f"no synchronising call, {mode}", got, "none", error is None)
    control = _error_of(context, "pageable")
    got = "raised" if control else "nothing raised: the detector is blind"
    yield Finding("the same, pageable (control)", got, "raised", control is not None)


def _error_of(context: Context, mode: str) -> str | None:
    """What torch says about a synchronising call while a batch is staged and used."""
    parts = apart(context, 4, context.mib, pinned=mode == "direct")
    with PinnedBatcher(context.device, mode=mode) as batcher:
        for _ in range(2):  # allocates, on both sides
            batcher.stage(pairs_of("x", parts)).synchronize().release()
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            total = tensor_in(batcher.stage(pairs_of("x", parts)).kwargs, "x").sum()
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        finally:
            torch.cuda.set_sync_debug_mode(before)
        wanted = sum(int(part.sum()) for part in parts)
        return None if int(total) == wanted else f"the sum is {int(total)}, not {wanted}"


def overlap(context: Context) -> Iterator[Finding]:
    """`prefetch`: batch n+1 is copied while a kernel of known length works on batch n."""
    from mmlab.staging.cuda import CudaEvent

    parts = apart(context, 4, 64 * context.mib, pinned=True)
    pairs = pairs_of("x", parts)
    copies: list[tuple[Event, Event]] = []
    computes: list[tuple[CudaEvent, CudaEvent]] = []
    with PinnedBatcher(context.device, mode="direct") as batcher:
        copy_s = min(batcher.stage(pairs).timings["h2d"] for _ in range(3))
        cycles = _cycles(COMPUTE * copy_s)
        stream = torch.cuda.current_stream()
        torch.cuda.synchronize()
        origin = CudaEvent(stream)
        for staged in batcher.prefetch([pairs] * BATCHES):
            copies += staged._events
            tensor_in(staged.kwargs, "x")  # from here on this stream waits for the copy
            start = CudaEvent(stream)
            spin(cycles)
            computes.append((start, CudaEvent(stream)))
            staged.release()
            computes[-1][1].synchronize()  # as an engine does, which reads the token
    torch.cuda.synchronize()
    yield judge_overlap(
        [_span(origin, start, end) for start, end in copies],
        [_span(origin, start, end) for start, end in computes],
    )


def _span(origin: Event, start: Event, end: Event) -> Span:
    return start.seconds_since(origin), end.seconds_since(origin)


def judge_overlap(copies: Sequence[Span], computes: Sequence[Span]) -> Finding:
    """Which part of the copy of batch n+1 lay inside the compute of batch n; the median of all.

    With one batch ahead the copy of n+1 is started just before n is handed out."""
    inside = [
        shared(copy, compute) / (copy[1] - copy[0]) if copy[1] > copy[0] else 0.0
        for copy, compute in zip(copies[1:], computes, strict=False)
    ]
    part = median(inside) if inside else 0.0
    return Finding(
        "overlap of copy n+1 and compute n",
        f"{part:.0%} of the copy",
        f">= {MIN_OVERLAP:.0%}",
        part >= MIN_OVERLAP,
        {"inside": inside, "copies_s": copies, "computes_s": computes},
    )


def shared(one: Span, other: Span) -> float:
    """Seconds that lie in both."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _cycles(seconds: float) -> int:
    """How long torch's spinning kernel must spin, measured."""
    from mmlab.staging.cuda import CudaEvent

    stream, probe = torch.cuda.current_stream(), 20_000_000
    took = []
    for _ in range(3):
        start = CudaEvent(stream)
        spin(probe)
        end = CudaEvent(stream)
        end.synchronize()
        took.append(end.seconds_since(start))
    return round(probe * seconds / min(took))
