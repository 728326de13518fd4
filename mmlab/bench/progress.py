"""Progress of a run in lines that read as well in a log as in a terminal.

No bar and no carriage return: a line when a trial starts and ends, and one in between when it takes
long. Each says how long the run has taken, where it stands, and how long the rest may take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from mmlab.bench.events import Progress
from mmlab.measure.clocks import now, seconds_text

Log = Callable[[str], None]
_QUIET_S = 10.0  # between two lines of one trial


def to_stderr(line: str) -> None:
    """One line at once, on stderr: stdout belongs to results."""
    print(line, file=sys.stderr, flush=True)


class ProgressLog:
    """Tells `log` what a run is at. `kinds`: kind of every trial, in order, for the estimate."""

    def __init__(
        self, kinds: Sequence[str], log: Log = to_stderr, clock: Callable[[], float] = now
    ) -> None:
        self._kinds = list(kinds)
        self._log = log
        self._clock = clock
        self._begin = clock()
        self._took: list[tuple[str, float]] = []  # (kind, seconds) of finished trials
        self._order = 0
        self._name = ""
        self._started = self._said = self._begin

    def start(self, order: int, name: str) -> None:
        """Trial number `order`, counted from 0, starts."""
        self._order, self._name = order, name
        self._started = self._clock()
        self.say(f"trial {order + 1} of {len(self._kinds)}: {name}{self._left_text()}")

    def step(self, progress: Progress) -> None:
        """A step within the trial; told when nothing has been said for a while."""
        if self._clock() - self._said >= _QUIET_S:
            self.say(f"  {self._name}: {progress.text}, {progress.done} of {progress.total}")

    def end(self, status: str, reason: str = "") -> None:
        """The trial is over; only those that went well count for the estimate."""
        took = self._clock() - self._started
        if status == "ok":
            self._took.append((self._kinds[self._order], took))
            self.say(f"  {self._name}: done in {seconds_text(took)}")
        else:
            self.say(f"  {self._name}: {status}: {reason}")

    def say(self, text: str) -> None:
        """A line with the time since the run began."""
        self._said = self._clock()
        self._log(f"[{self._said - self._begin:6.1f} s] {text}")

    def left_s(self) -> float | None:
        """Seconds that the trials from the current one on may take; None before any has ended."""
        if not self._took:
            return None
        return sum(self._typical(kind) for kind in self._kinds[self._order :])

    def _typical(self, kind: str) -> float:
        same = [seconds for known, seconds in self._took if known == kind]
        known = same or [seconds for _, seconds in self._took]
        return sum(known) / len(known)

    def _left_text(self) -> str:
        left = self.left_s()
        return "" if left is None else f" (about {seconds_text(max(left, 1.0))} left)"
