"""Whether a case fits into memory, asked before anything starts: the kernel's answer is SIGKILL.

Upper bounds, not measurements: every pair of processes has its sources, ways with memory of their
own keep it, and of all others one has its turn at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways import Way
from mmlab.errors import UsageError
from mmlab.measure.capacity import available_nbytes, gib_text

_PROCESS_NBYTES = 160 << 20  # what a process has of its own once torch is loaded
_PEER_NBYTES = 500 << 20  # the same with vLLM


def needed_nbytes(case: Case, ways: Sequence[Way]) -> int:
    """Memory that all processes may take together at their peak."""
    payload = nbytes_of(case)
    pairs = {way.pair: way.peer for way in ways}
    payloads = case.sources * len(pairs)
    payloads += sum(way.payloads for way in ways if way.tuned or way.keeps)
    payloads += max((way.payloads for way in ways if not (way.tuned or way.keeps)), default=0)
    payloads += case.sources * sum(way.module == "in_place" for way in ways)
    processes = sum(2 * (_PEER_NBYTES if peer else _PROCESS_NBYTES) for peer in pairs.values())
    return payloads * payload + processes + _PROCESS_NBYTES


def check(cases: Sequence[Case], ways: Sequence[Way]) -> None:
    """UsageError, with both numbers, for the largest case where it does not fit."""
    needed, case = max(((needed_nbytes(c, ways), c) for c in cases), key=lambda found: found[0])
    free = available_nbytes()
    if needed > free:
        raise UsageError(
            f"{case.images} images {case.dtype} of {gib_text(nbytes_of(case))} by {len(ways)} ways "
            f"may take {gib_text(needed)}, available are {gib_text(free)}: choose fewer --images, "
            "or fewer --ways"
        )
