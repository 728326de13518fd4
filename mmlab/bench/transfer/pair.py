"""The controller's end of a pair of processes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self, TypeVar

import msgspec

from mmlab.bench.transfer import footprint, process
from mmlab.bench.transfer.footprint import Footprint
from mmlab.bench.transfer.packets import (
    PATIENCE_S,
    START_S,
    Case,
    Done,
    Line,
    Packet,
    Ready,
    Stream,
    Timed,
    Trim,
    Turn,
    WayFailed,
)
from mmlab.bench.transfer.ways import Way
from mmlab.bench.transfer.ways.shm import SHM
from mmlab.errors import MMLabError
from mmlab.pipeline.directory import PrivateDirectory

_HOLD_S = 0.02  # so that some readings of memory see the batch
_READ_MESSAGES = 3
T = TypeVar("T")


class Pair:
    """A sender and its receiver, with the ways that live in them. A context manager.

    They start in the background: `wait` before anything else. What goes wrong in a way ends both
    processes; `attempt` starts them anew, without that way until the next case.
    """

    def __init__(self, ways: Sequence[Way], threads: int) -> None:
        self._all = list(ways)
        self._threads = threads
        self._case: Case | None = None
        self.failed: dict[str, str] = {}  # way -> why
        self._again: set[str] = set()  # were tried again
        self._hopeless: set[str] = set()  # and failed again
        self.ready = Ready([], [], False)
        self.tuned = any(way.tuned for way in ways)
        self._start()

    @property
    def ways(self) -> list[str]:
        """All that have not failed."""
        return [way.name for way in self._all if way.name not in self.failed]

    def _start(self) -> None:
        names = self.ways
        self._line, theirs = Line.pair(f"sender of {', '.join(names)}")
        with ExitStack() as undo:
            undo.callback(theirs.close)
            directory = PrivateDirectory()
            undo.callback(directory.close)
            segments = ""
            if any(way.module == "segments" for way in self._all):
                lent = PrivateDirectory([SHM])
                undo.callback(lent.close)
                segments = str(lent.path)
            places = [str(directory.path), segments]
            arguments = [str(self._threads), str(int(self.tuned)), *names]
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, a, b:
                for module, fds, mine in (
                    ("sender", [theirs.fileno(), a.fileno()], places),
                    ("receiver", [b.fileno()], places[:1]),
                ):
                    started = process.spawn(
                        f"mmlab.bench.transfer.{module}", fds, [*mine, *arguments]
                    )
                    undo.callback(process.end, started)
            undo.callback(self._line.close)  # first of all: it tells them to end
            self._undo = undo.pop_all()

    def wait(self) -> Ready:
        """Until both have started, without the ways that cannot."""
        while self.ways:
            try:
                self._line.patient(START_S)
                self.ready = self._line.hear(Ready)
                self._line.patient(PATIENCE_S)
                break
            except WayFailed as error:
                self._leave_out(error.way, error)
        return self.ready

    def prepare(self, case: Case) -> None:
        """Get ready for a case. What failed in the case before is tried again, but only once."""
        self._case = case
        self._hopeless |= self._again & self.failed.keys()
        again = self.failed.keys() - self._hopeless
        if again:
            self._again |= again
            self.failed = {way: why for way, why in self.failed.items() if way not in again}
            self._undo.close()
            self._start()
            self.wait()
        self._prepare(case)

    def attempt(self, way: str, do: Callable[[], T]) -> T | None:
        """What `do` returns; None where the way fails, which is noted, and the others are ready."""
        try:
            return do()
        except MMLabError as error:
            self._leave_out(way, error)
            self.wait()
            if self._case is not None:
                self._prepare(self._case)
            return None

    def turn(self, way: str, messages: int, hold_s: float = 0.0) -> Timed:
        """One checked message, then `messages` timed ones."""
        self._line.tell(Turn(way, messages, hold_s))
        return self._line.hear(Timed)

    def stream(self, way: str, messages: int) -> Timed:
        """One checked message, then `messages` with two in flight, timed together."""
        self._line.tell(Stream(way, messages))
        return self._line.hear(Timed)

    def memory(self, way: str) -> Footprint | None:
        """Of a few messages: peak of PSS over idle, and peak of shared memory, with no other way's
        memory there; None where it cannot be read."""
        keeping = [way.name for way in self._all if way.keeps and way.name in self.ways]
        apart = bool(keeping) and keeping != [way]
        if apart and self._case is not None:
            self._do(msgspec.structs.replace(self._case, only=way))
        self._do(Trim())
        base = footprint.read(self.ready.pids)
        with footprint.Peak(self.ready.pids) as peak:
            self.turn(way, _READ_MESSAGES, _HOLD_S)
        if apart and self._case is not None:
            self._do(self._case)
        found = peak.found
        if base is None or found is None:
            return None
        return Footprint(max(0, found.pss - base.pss), found.shared)

    def _prepare(self, case: Case) -> None:
        while self.ways:
            try:
                self._do(case)
                return
            except WayFailed as error:
                self._leave_out(error.way, error)
                self.wait()

    def _leave_out(self, way: str, error: MMLabError) -> None:
        """Start anew without it. The error is raised where it is no way's of this pair."""
        if way not in self.ways:
            raise error
        self.failed[way] = str(error)
        self._undo.close()
        if self.ways:
            self._start()

    def _do(self, command: Packet) -> None:
        self._line.tell(command)
        self._line.hear(Done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
