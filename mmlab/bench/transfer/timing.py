"""The rounds of a case: every way has its turn in each, in an order drawn anew.

A ratio is taken within a round, where both ways met the same machine. Medians over rounds, with
bootstrap 95 % intervals. Memory is read afterwards, in turns of their own. A way that fails is a
row with its error, and the others go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from mmlab.bench.transfer.footprint import Footprint
from mmlab.bench.transfer.packets import Case, Timed
from mmlab.bench.transfer.pair import Pair
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways import LIMIT, PEER, REQUEST, WAYS, copies, left_out
from mmlab.bench.wire.timing import median_interval

WARM_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 1, 5, 40
_TURN_NBYTES = 300 << 20  # a turn moves about as much payload,
_TURN_MESSAGES = 5  # or as many messages,
_TURN_S = 0.5  # or takes as long, but is never less than one message

Row = dict[str, str | int | float | None]
T = TypeVar("T")
Turns = list[tuple[Pair, str]]


@dataclass
class Samples:
    """Of one way: a value a round, and the sums over all timed messages."""

    seconds: list[float] = field(default_factory=list)  # of a message: median of the round's
    messages: int = 0
    cpu_s: float = 0.0
    sender_faults: int = 0
    receiver_faults: int = 0

    def add(self, seconds: float, messages: int, timed: Timed) -> None:
        self.seconds.append(seconds)
        self.messages += messages
        self.cpu_s += timed.sender.cpu_s + timed.receiver.cpu_s
        self.sender_faults += timed.sender.faults
        self.receiver_faults += timed.receiver.faults


def measure(
    pairs: Sequence[Pair], case: Case, *, seconds: float, draw: random.Random, full: bool = False
) -> list[Row]:
    """One row for each way. Ends after about `seconds` and at least 5 rounds."""
    nbytes = nbytes_of(case)
    for pair in pairs:
        pair.prepare(case)
    turns, errors = turns_of(pairs, case, full)
    counts: dict[str, int] = {}
    for _ in range(WARM_ROUNDS):
        for pair, way in draw.sample(turns, len(turns)):
            timed = tried(pair, way, lambda pair=pair, way=way: pair.turn(way, 1))  # type: ignore[misc]
            if timed is not None:
                moved = nbytes if WAYS[way].copies else 0
                most = min(_TURN_MESSAGES, _TURN_NBYTES // max(1, moved))
                counts[way] = max(1, min(most, int(_TURN_S / max(timed.seconds[0], 1e-6))))

    def one(pair: Pair, way: str, into: Samples) -> None:
        timed = tried(pair, way, lambda: pair.turn(way, counts[way]))
        if timed is not None:
            into.add(float(np.median(timed.seconds)), counts[way], timed)

    samples = rounds(turns, one, seconds=seconds, draw=draw)
    memory: dict[str, Footprint | None] = {}
    for pair, way in turns if nbytes and not case.tokens else []:
        memory[way] = tried(pair, way, lambda pair=pair, way=way: pair.memory(way))  # type: ignore[misc]
    errors |= {way: error for pair in pairs for way, error in pair.failed.items()}
    return [
        _row(case, way, samples, memory.get(way), errors.get(way))
        for way in WAYS
        if way in samples or way in errors
    ]


def turns_of(pairs: Sequence[Pair], case: Case, full: bool) -> tuple[Turns, dict[str, str]]:
    """Who has a turn in a round of that case; and why others have none."""
    wanted = [(pair, way) for pair in pairs for way in pair.ways if WAYS[way].takes(case)]
    reasons = {way: left_out(WAYS[way], case, nbytes_of(case), full) for _, way in wanted}
    errors = {way: reason for way, reason in reasons.items() if reason is not None}
    return [(pair, way) for pair, way in wanted if way not in errors], errors


def tried(pair: Pair, way: str, do: Callable[[], T]) -> T | None:
    """What `do` returns; None where the way has failed, now or before."""
    return pair.attempt(way, do) if way in pair.ways else None


def rounds(
    turns: Turns,
    one: Callable[[Pair, str, Samples], None],
    *,
    seconds: float,
    draw: random.Random,
) -> dict[str, Samples]:
    """What `one` measures, at least 5 times and for about `seconds`; of the ways that have it from
    every round."""
    samples = {way: Samples() for _, way in turns}
    end, done = time.monotonic() + seconds, 0
    while done < MAX_ROUNDS and (done < MIN_ROUNDS or time.monotonic() < end):
        for pair, way in draw.sample(turns, len(turns)):
            one(pair, way, samples[way])
        done += 1
    return {way: found for way, found in samples.items() if len(found.seconds) == done}


def _row(
    case: Case,
    way: str,
    samples: Mapping[str, Samples],
    memory: Footprint | None,
    error: str | None = None,
) -> Row:
    nbytes = nbytes_of(case)
    row: Row = {**of_case(case, way), "error": error}
    row |= numbers(way, nbytes, samples if error is None else {})
    row |= {
        "extra_nbytes": None if memory is None else memory.pss,
        "extra_payloads": None if memory is None or not nbytes else memory.pss / nbytes,
        "shared_nbytes": None if memory is None else memory.shared,
        "shared_payloads": None if memory is None or not nbytes else memory.shared / nbytes,
        "copies": copies(WAYS[way], case, nbytes),
    }
    return row


def of_case(case: Case, way: str) -> Row:
    """What every row begins with."""
    return {
        "table": "requests" if case.tokens else "messages",
        "way": way.removesuffix(REQUEST),
        "images": case.images,
        "dtype": case.dtype,
        "image_size": case.image_size,
        "tokens": case.tokens,
        "payload_nbytes": nbytes_of(case),
        "sources": case.sources,
    }


def numbers(way: str, nbytes: int, samples: Mapping[str, Samples]) -> Row:
    """Time, processor and faults of a way, and its time over others'; None for what is missing."""
    mine = samples.get(way, Samples())
    times = np.array(mine.seconds)
    middle = float(np.median(times)) if len(times) else None
    low, high = median_interval(times) if len(times) else (None, None)
    megabytes = mine.messages * nbytes / 1e6
    row: Row = {
        "rounds": len(times),
        "messages": mine.messages,
        "median_s": middle,
        "low_s": low,
        "high_s": high,
        "gb_per_s": nbytes / middle / 1e9 if middle and nbytes else None,
        "cpu_s": mine.cpu_s / mine.messages if mine.messages else None,  # of both, a message
        "cpu_s_per_gb": mine.cpu_s / megabytes * 1e3 if megabytes else None,
        "sender_faults_per_mb": mine.sender_faults / megabytes if megabytes else None,
        "receiver_faults_per_mb": mine.receiver_faults / megabytes if megabytes else None,
    }
    end = REQUEST if way.endswith(REQUEST) else ""
    for name, base in (("memcpy", LIMIT), ("vllm", PEER + end)):
        keys = [f"over_{name}{suffix}" for suffix in ("", "_low", "_high")]
        values: list[float | None] = [None, None, None]
        if base in samples and len(times):
            ratios = times / np.array(samples[base].seconds)
            values = [float(np.median(ratios)), *median_interval(ratios)]
        row.update(zip(keys, values, strict=True))
    return row
