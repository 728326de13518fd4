"""What the soak's threads ask for, drawn by seed: request n of a thread is the same in every run.

What happens to it is not, since threads race for room. So each request has a generator of its own,
and a failing one can be made again from three numbers, whatever came before it.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

from mmlab.pipeline.outgoing import LITTLE

PATIENCE_S: Final = 60.0  # who waits that long for room in a pipeline of this size waits for ever
OPENING: Final = 9  # a thread's first requests; see `_opening`
LARGEST: Final = 40_000_000  # bytes of one image
_KINDS: Final = {
    "text": 10,
    "tiny": 20,
    "edge": 20,
    "thumbnails": 25,
    "photographs": 12,
    "large": 5,
    "too large": 1,
    "not sendable": 1,
}
_EDGES: Final = tuple(limit + off for limit in (256, 4096, LITTLE) for off in (-1, 0, 1))
_RANGES: Final = {
    "tiny": (0, 600),
    "thumbnails": (2_000, 1_000_000),
    "photographs": (1_000_000, 12_000_000),
    "large": (20_000_000, LARGEST),
}
REFUSED: Final = frozenset({"too large", "not sendable"})


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: what it carries, and what its sender does with it."""

    seed: int
    thread: int
    number: int
    kind: str
    nbytes: int  # of the payload, roughly; exactly for the kind `edge`
    timeout: float
    abort: str  # "", "at once", "soon" (by another thread), "after" (it was answered)
    abort_after_s: float  # for "soon"
    repeats: int  # requests that the same items go out in: as fast as they can be sent
    keep: bool  # the sender holds items and reply for a while
    pause_s: float  # before it is sent
    window: int  # requests that this thread may have under way

    @property
    def name(self) -> str:
        """`2/1234` of seed 7, as `--request` takes it."""
        return f"{self.thread}/{self.number}"


def draw(seed: int, thread: int, number: int) -> Ask:
    """Request `number` of a thread."""
    choose = generator(seed, thread, number, "ask")
    kind = choose.choices(list(_KINDS), list(_KINDS.values()))[0]
    low, high = _RANGES.get(kind, (0, 0))
    nbytes = choose.choice(_EDGES) if kind == "edge" else choose.randint(low, high)
    patience = choose.choices([PATIENCE_S, 0.0, 0.005], [85, 10, 5])[0]
    abort = choose.choices(["", "at once", "soon", "after"], [77, 10, 10, 3])[0]
    repeats = choose.choices([1, 2, 12], [90, 6, 4])[0]
    if number < OPENING:
        kind, nbytes, repeats = _opening(number)
        patience, abort = PATIENCE_S, ""
    pauses = [0.0, choose.uniform(0, 0.01), choose.uniform(0.05, 0.3)]
    return Ask(
        seed=seed,
        thread=thread,
        number=number,
        kind=kind,
        nbytes=nbytes,
        timeout=patience,
        abort=abort,
        abort_after_s=choose.uniform(0, 0.05),
        repeats=repeats,
        keep=choose.random() < 0.1,
        pause_s=choose.choices(pauses, [75, 22, 3])[0],
        window=_window(seed, thread, number),
    )


def _opening(number: int) -> tuple[str, int, int]:
    """(kind, bytes, repeats): clips that fill the budget in batches that are half padding, then a
    few of all that is large.

    The engine keeps what it frees, so that its memory is the most it has needed. That is reached
    here, before the first reading, and not by a rare batch some minutes later.
    """
    if number >= OPENING - 3:
        return "large", LARGEST, 12
    return ("clip", LARGEST, 2) if number % 2 else ("clip", LARGEST * 2 // 5, 12)


def _window(seed: int, thread: int, number: int) -> int:
    """Quiet stretches and bursts of 40 requests each; in a burst the byte budget is the limit."""
    return generator(seed, thread, number // 40, "window").choice([1, 2, 4, 64, 256])


def generator(seed: int, thread: int, number: int, what: str) -> random.Random:
    """The numbers behind one aspect of one request."""
    return random.Random(f"{seed}/{thread}/{number}/{what}")
