"""What a run measures, and about how long that takes on two cores."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.payload import nbytes_of, sources_of
from mmlab.bench.transfer.ways import WAYS, Way, left_out

TOKENS = 100  # of a request
_START_S, _PEER_START_S = 4.0, 15.0  # of a pair: torch, or vLLM, is imported twice
_MESSAGES, _STREAMED = 15, 26  # of a slow way, in the fewest rounds: warm, checked, timed, read
_PREPARE_S = 1.0  # sources of a case are written, in each pair


def cases(images: Sequence[int], dtypes: Sequence[str], image_size: int) -> list[Case]:
    """All messages, each dtype from its smallest on."""
    plan = [Case(n, dtype, image_size, 1) for dtype in dtypes for n in sorted(set(images))]
    return [msgspec.structs.replace(case, sources=sources_of(nbytes_of(case))) for case in plan]


def requests(dtypes: Sequence[str], image_size: int) -> list[Case]:
    """A request of text only, and one with an image, of the first dtype."""
    plan = [Case(n, dtypes[0], image_size, 1, tokens=TOKENS) for n in (0, 1)]
    return [msgspec.structs.replace(case, sources=sources_of(nbytes_of(case))) for case in plan]


def estimate_s(
    plan: Sequence[Case],
    sustained: Sequence[int],
    ways: Sequence[Way],
    seconds: float,
    full: bool,
) -> float:
    """About how long it takes."""
    pairs = {way.pair: way.peer for way in ways}
    total = sum(_PEER_START_S if peer else _START_S for peer in pairs.values())
    for case in plan:
        nbytes = nbytes_of(case)
        mine = [w for w in ways if w.takes(case) and not left_out(w, case, nbytes, full)]
        once = sum(w.s_per_gb * _dragged(w, case) for w in mine) * nbytes / 1e9 + 1e-3 * len(mine)
        total += max(seconds, _MESSAGES * once) + _PREPARE_S * len(pairs)
        if case.images in sustained and not case.tokens:
            total += max(seconds, _STREAMED * once)
    return total


def _dragged(way: Way, case: Case) -> int:
    return max(1, case.images) if way is WAYS["pickle"] else 1


def duration_text(seconds: float) -> str:
    """`40 s`, `6 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
