"""Timing of operations of microseconds on a shared machine.

All operations of a case are timed in every round, in an order drawn anew, in blocks short enough
to fall between two interruptions; a ratio is taken within a round, where both sides met the same
machine. Medians over rounds, with bootstrap 95 % intervals.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import numpy as np

from mmlab.bench.wire.cases import OWN, Case

BLOCK_S = 2e-4  # a block of calls is about this long, or one call
ROUNDS = 40
MIN_ROUNDS = 5

Row = dict[str, str | int | float | None]


def measure(case: Case, *, seconds: float = 2.0, seed: int = 0) -> list[Row]:
    """One row for each operation of `case`; times in microseconds. Ends after about `seconds`."""
    draw = random.Random(seed)
    calls = {key: _calls(op) for key, op in case.ops.items()}
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in case.ops}
    end = time.perf_counter() + seconds
    for round_ in range(ROUNDS):
        if round_ >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for key in draw.sample(list(case.ops), len(case.ops)):
            op, n = case.ops[key], calls[key]
            begun = time.perf_counter()
            for _ in range(n):
                op()
            samples[key].append((time.perf_counter() - begun) / n * 1e6)
    return [_row(case, who, what, samples) for who, what in case.ops]


def _calls(op: object) -> int:
    """Calls in a block, from the fastest of a few: a first call can be many times slower."""
    assert callable(op)
    fastest = BLOCK_S
    for _ in range(3):
        begun = time.perf_counter()
        op()
        fastest = min(fastest, time.perf_counter() - begun)
    return max(1, int(BLOCK_S / max(fastest, 1e-9)))


def _row(case: Case, who: str, what: str, samples: Mapping[tuple[str, str], list[float]]) -> Row:
    times = np.array(samples[who, what])
    low, high = median_interval(times)
    row: Row = {
        "case": case.name,
        "tensors": case.tensors,
        "tensor_nbytes": case.tensor_nbytes,
        "who": who,
        "what": what,
        "rounds": len(times),
        "median_us": float(np.median(times)),
        "low_us": low,
        "high_us": high,
        "min_us": float(times.min()),
        "header_nbytes": case.header_nbytes[who],
        "payload_nbytes": case.payload_nbytes[who],
        "frames": case.frames[who],
        "ratio": None,  # mmlab's time over this one's
        "ratio_low": None,
        "ratio_high": None,
    }
    if who != OWN:
        ratios = np.array(samples[OWN, what]) / times
        row["ratio"] = float(np.median(ratios))
        row["ratio_low"], row["ratio_high"] = median_interval(ratios)
    return row


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    from scipy import stats

    if len(values) < 2 or np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    result = stats.bootstrap(
        (values,), np.median, n_resamples=500, method="percentile", rng=np.random.default_rng(0)
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
