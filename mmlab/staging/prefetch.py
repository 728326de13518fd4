"""Prefetch: batch n+1 is on its way to the device while batch n is computed with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from mmlab.errors import BackpressureTimeout, UsageError
from mmlab.fields import Entry
from mmlab.staging.staged import Staged

Pairs = Iterable[tuple[str, Entry]]


def prefetch(
    stage: Callable[[Pairs, float | None], Staged],
    batches: Iterable[Pairs],
    depth: int,
    timeout: float | None,
) -> Iterator[Staged]:
    """See `PinnedBatcher.prefetch`. `stage` takes pairs and how long to wait for memory."""
    if type(depth) is not int or depth < 0:
        raise UsageError(f"prefetch: depth is {depth!r}, wanted 0 or more batches ahead")
    return _staged(stage, iter(batches), depth, timeout)


def _staged(
    stage: Callable[[Pairs, float | None], Staged],
    batches: Iterator[Pairs],
    depth: int,
    timeout: float | None,
) -> Iterator[Staged]:
    ahead: deque[Staged] = deque()
    waiting: deque[Pairs] = deque()  # taken from `batches`, but found no room yet
    error: Exception | None = None
    try:
        while True:
            while len(ahead) <= depth and error is None:
                try:
                    if not waiting:
                        waiting.append(next(batches))
                    # Only who has nothing to hand out waits: looking ahead must not cost the
                    # consumer, who may hold the very memory that is waited for.
                    ahead.append(stage(waiting[0], 0 if ahead else timeout))
                    waiting.clear()
                except StopIteration:
                    break
                except BackpressureTimeout as full:
                    if not ahead:
                        error = full
                    break
                except Exception as failed:  # comes in its turn, after what was staged before it
                    error = failed
            if ahead:
                yield ahead.popleft()
            elif error is not None:
                raise error
            else:
                return
    finally:
        for staged in ahead:
            staged.release()
