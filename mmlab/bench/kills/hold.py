"""Hold points: a method of a process of a trial is wrapped so that it stops at a stage and says so.

Only the processes that the kill matrix starts do this to themselves. The code that is wrapped knows
nothing of it, and the stop is bounded: an unkilled process goes on after `HOLD_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mmlab.bench.kills.line import Here, Line, TrialBroken

HOLD_S = 20.0
Method = Callable[..., Any]


def wrap(
    owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put `make(method)` in the place of a method (or of a module's function)."""
    setattr(owner, name, make(getattr(owner, name)))


def stop_here(path: str, stage: str) -> None:
    """Say that this thread is at the stage, and wait until the controller lets it go."""
    line = Line.to(path)
    try:
        line.tell(Here(stage))
        with suppress(TrialBroken):
            line.next(HOLD_S)
    finally:
        line.close()


class Countdown:
    """True once: at call number `calls` after `arm`. Thread-safe."""

    def __init__(self, calls: int) -> None:
        self._lock = threading.Lock()
        self._left = calls
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    def __call__(self) -> bool:
        with self._lock:
            if not self._armed:
                return False
            self._left -= 1
            return self._left == 0
