"""How fast memory is here: the limits that every figure of a delivery is read against.

A copy between warm buffers, the first touch of fresh memory (the kernel zeroes every page, which
costs more than the copy itself), and on a GPU the copy from pinned memory. Well under a second.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from mmlab.measure.clocks import now

NBYTES = 64 << 20  # far beyond the caches of one core
_ROUNDS = 5


@dataclass(frozen=True)
class Bandwidth:
    """GB/s (1e9 bytes), medians over rounds, one thread; `h2d` None without a usable GPU."""

    memcpy: float
    first_touch: float
    h2d: float | None = None


def measure(*, cuda: bool = False, nbytes: int = NBYTES, rounds: int = _ROUNDS) -> Bandwidth:
    """Measures now. `cuda`: also from pinned memory to the first GPU; makes a CUDA context."""
    source, target = (np.ones(nbytes, np.uint8) for _ in range(2))
    copies, touches = [], []
    for _ in range(rounds):
        start = now()
        np.copyto(target, source)
        copies.append(now() - start)
        fresh = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        start = now()
        fresh[:: mmap.PAGESIZE] = 1
        touches.append(now() - start)
        del fresh  # unmapped here, not while the next round is timed
    return Bandwidth(
        nbytes / median(copies) / 1e9,
        nbytes / median(touches) / 1e9,
        _h2d(nbytes, rounds) if cuda else None,
    )


def _h2d(nbytes: int, rounds: int) -> float:
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    seconds = []
    for _ in range(rounds + 1):  # the first one warms up
        torch.cuda.synchronize()
        start = now()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(now() - start)
    return nbytes / median(seconds[1:]) / 1e9
