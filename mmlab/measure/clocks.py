"""One clock for every process: `time.monotonic_ns` (CLOCK_MONOTONIC on Linux).

The stages of a request happen in two processes, so that a duration from "sent" to "received" needs
a clock that both share. CLOCK_MONOTONIC counts from boot for the whole machine and never steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


def now() -> float:
    """Seconds on the clock that all processes of this machine share."""
    return time.monotonic_ns() * 1e-9


class Stopwatch:
    """Named durations in seconds; a name that is timed again adds up.

    `enabled=False` keeps the calls and drops the measuring, so that code need not branch.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.seconds: dict[str, float] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Times the block, also when it raises."""
        if not self.enabled:
            yield
            return
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(name, (time.monotonic_ns() - start) * 1e-9)

    def add(self, name: str, seconds: float) -> None:
        """A duration that was measured elsewhere."""
        if self.enabled:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def utc_stamp(moment: datetime | None = None) -> str:
    """`2026-01-31T12-03-04Z`: sorts by time and is a valid name of a folder everywhere."""
    return (moment or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def seconds_text(seconds: float) -> str:
    """`840 us`, `12.3 ms`, `2.41 s`, `1 min 05 s`: three digits that a person reads at once."""
    if seconds >= 59.95:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    if seconds >= 0.9995:  # below, three digits of ms would round to 1000
        return f"{seconds:.3g} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.0f} us"
