"""The rounds of a case: every way has its turn in each, in an order drawn anew.

A ratio is taken within a round, where both ways met the same machine. Medians over rounds, with
bootstrap 95 % intervals. Memory is read afterwards, in turns of their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.pair import Pair
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways import LIMIT, PEER, WAYS, copies
from mmlab.bench.wire.timing import median_interval

WARM_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 1, 5, 40
_TURN_NBYTES = 300 << 20  # a turn is about as much payload,
_TURN_MESSAGES = 5  # or as many messages

Row = dict[str, str | int | float | None]


@dataclass
class Samples:
    """Of one way: a value a round, and the sums over all timed messages."""

    seconds: list[float] = field(default_factory=list)  # median of the round's messages
    messages: int = 0
    cpu_s: float = 0.0
    sender_faults: int = 0
    receiver_faults: int = 0


def measure(pairs: Sequence[Pair], case: Case, *, seconds: float, draw: random.Random) -> list[Row]:
    """One row for each way. Ends after about `seconds` and at least 5 rounds."""
    nbytes = nbytes_of(case)
    count = min(_TURN_MESSAGES, max(1, _TURN_NBYTES // nbytes))
    for pair in pairs:
        pair.prepare(case)
    turns = [(pair, way) for pair in pairs for way in pair.ways]
    for _ in range(WARM_ROUNDS):
        for pair, way in draw.sample(turns, len(turns)):
            pair.turn(way, count)
    samples = {way: Samples() for _, way in turns}
    end = time.monotonic() + seconds
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.monotonic() > end:
            break
        for pair, way in draw.sample(turns, len(turns)):
            _take(samples[way], pair, way, count)
    extra = {way: pair.extra_nbytes(way) for pair, way in turns}
    return [_row(case, way, samples, extra[way]) for way in WAYS if way in samples]


def _take(into: Samples, pair: Pair, way: str, count: int) -> None:
    timed = pair.turn(way, count)
    into.seconds.append(float(np.median(timed.seconds)))
    into.messages += count
    into.cpu_s += timed.sender.cpu_s + timed.receiver.cpu_s
    into.sender_faults += timed.sender.faults
    into.receiver_faults += timed.receiver.faults


def _row(case: Case, way: str, samples: Mapping[str, Samples], extra: int | None) -> Row:
    mine, nbytes = samples[way], nbytes_of(case)
    times = np.array(mine.seconds)
    low, high = median_interval(times)
    megabytes = mine.messages * nbytes / 1e6
    row: Row = {
        "way": way,
        "images": case.images,
        "dtype": case.dtype,
        "image_size": case.image_size,
        "payload_nbytes": nbytes,
        "sources": case.sources,
        "rounds": len(times),
        "messages": mine.messages,
        "median_s": float(np.median(times)),
        "low_s": low,
        "high_s": high,
        "gb_per_s": nbytes / float(np.median(times)) / 1e9,
        "cpu_s": mine.cpu_s / mine.messages,  # of both processes, a message
        "cpu_s_per_gb": mine.cpu_s / megabytes * 1e3,
        "sender_faults_per_mb": mine.sender_faults / megabytes,
        "receiver_faults_per_mb": mine.receiver_faults / megabytes,
        "extra_nbytes": extra,
        "extra_payloads": None if extra is None else extra / nbytes,
        "copies": copies(WAYS[way], nbytes),
    }
    for name, base in (("memcpy", LIMIT), ("vllm", PEER)):
        keys = [f"over_{name}{end}" for end in ("", "_low", "_high")]
        values: list[float | None] = [None, None, None]
        if base in samples:
            ratios = times / np.array(samples[base].seconds)
            values = [float(np.median(ratios)), *median_interval(ratios)]
        row.update(zip(keys, values, strict=True))
    return row
