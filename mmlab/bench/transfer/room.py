"""Whether a case fits into memory, asked before anything starts: the kernel's answer is SIGKILL.

Upper bounds, not measurements: every pair of processes has its sources, ways with memory of their
own keep it, and of all others one has its turn at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways import Way, left_out
from mmlab.bench.transfer.ways import payloads as payloads_of
from mmlab.errors import UsageError
from mmlab.measure.capacity import available_nbytes, gib_text

_PROCESS_NBYTES = 160 << 20  # what a process has of its own once torch is loaded
_PEER_NBYTES = 500 << 20  # the same with vLLM


def needed_nbytes(case: Case, ways: Sequence[Way], full: bool = False) -> int:
    """Memory that all processes may take together at their peak."""
    pairs = {way.pair: way.peer for way in ways}
    payloads = case.sources * len(pairs)
    nbytes = nbytes_of(case)
    mine = [w for w in ways if w.takes(case) and not left_out(w, case, nbytes, full)]
    each = [(payloads_of(way, case), way.tuned or way.keeps) for way in mine]
    payloads += sum(taken for taken, stays in each if stays)
    payloads += max((taken for taken, stays in each if not stays), default=0)
    payloads += case.sources * sum(way.module == "in_place" for way in mine)
    processes = sum(2 * (_PEER_NBYTES if peer else _PROCESS_NBYTES) for peer in pairs.values())
    return payloads * nbytes + processes + _PROCESS_NBYTES


def check(cases: Sequence[Case], ways: Sequence[Way], full: bool = False) -> None:
    """UsageError, with both numbers, for the largest case where it does not fit."""
    needs = [(needed_nbytes(case, ways, full), case) for case in cases]
    needed, case = max(needs, key=lambda found: found[0])
    count = sum(not way.request for way in ways)
    free = available_nbytes()
    if needed > free:
        raise UsageError(
            f"{case.images} images {case.dtype} of {gib_text(nbytes_of(case))} by {count} ways "
            f"may take {gib_text(needed)}, available are {gib_text(free)}: choose fewer --images, "
            "or fewer --ways"
        )
