"""Streams of messages, two in flight: the sender builds and sends the next while the receiver has
the one before.

All that an encoder, a socket and a receiver can do at the same time they do here. Time and
processor include the building of the items from a processor's output, of every message.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.pair import Pair
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.timing import Row, Samples, numbers, of_case, rounds, tried, turns_of
from mmlab.bench.transfer.ways import WAYS

_FEWEST, _MOST = 4, 32  # messages of a stream
_STREAM_S = 0.5  # about as long, where that many messages are enough or not too many


def measure_streams(
    pairs: Sequence[Pair], case: Case, *, seconds: float, draw: random.Random, full: bool = False
) -> list[Row]:
    """One row for each way, after `measure` of the same case."""
    turns, errors = turns_of(pairs, case, full)
    counts: dict[str, int] = {}
    for pair, way in draw.sample(turns, len(turns)):
        timed = tried(pair, way, lambda pair=pair, way=way: pair.stream(way, _FEWEST))  # type: ignore[misc]
        if timed is not None:
            each = max(timed.seconds[0] / _FEWEST, 1e-6)
            counts[way] = max(_FEWEST, min(_MOST, int(_STREAM_S / each)))

    def one(pair: Pair, way: str, into: Samples) -> None:
        timed = tried(pair, way, lambda: pair.stream(way, counts[way]))
        if timed is not None:
            into.add(timed.seconds[0] / counts[way], counts[way], timed)

    samples = rounds(turns, one, seconds=seconds, draw=draw)
    errors |= {way: error for pair in pairs for way, error in pair.failed.items()}
    return [
        {
            **of_case(case, way),
            "table": "sustained",
            "error": errors.get(way),
            **numbers(way, nbytes_of(case), {} if way in errors else samples),
        }
        for way in WAYS
        if way in samples or way in errors
    ]
