"""The controller's end of a pair of processes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from mmlab.bench.transfer import process
from mmlab.bench.transfer.packets import Case, Done, Line, Packet, Ready, Timed, Trim, Turn
from mmlab.bench.transfer.ways import Way
from mmlab.measure.memory import PssSampler, read_pss
from mmlab.pipeline.directory import PrivateDirectory

_EVERY_S = 0.001  # readings of memory, as far as the kernel is as fast
_HOLD_S = 0.02  # so that some of them see the batch
_READ_MESSAGES = 3


class Pair:
    """A sender and its receiver, with the ways that live in them. A context manager.

    They start in the background: `wait` before anything else.
    """

    def __init__(self, ways: Sequence[Way], threads: int) -> None:
        self.ways = [way.name for way in ways]
        self.tuned = any(way.tuned for way in ways)
        self._line, theirs = Line.pair(f"sender of {', '.join(self.ways)}")
        with ExitStack() as undo:
            directory = PrivateDirectory()
            undo.callback(directory.close)
            arguments = [str(threads), str(int(self.tuned)), *self.ways]
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, a, b:
                sender = process.spawn(
                    "mmlab.bench.transfer.sender", [theirs.fileno(), a.fileno()], arguments
                )
                undo.callback(process.end, sender)
                receiver = process.spawn(
                    "mmlab.bench.transfer.receiver",
                    [b.fileno()],
                    [str(directory.path), *arguments],
                )
                undo.callback(process.end, receiver)
            undo.callback(self._line.close)  # first of all: it tells them to end
            self._undo = undo.pop_all()

    def wait(self) -> Ready:
        """Until both have started."""
        self.ready = self._line.hear(Ready)
        return self.ready

    def prepare(self, case: Case) -> None:
        self._do(case)

    def turn(self, way: str, messages: int, hold_s: float = 0.0) -> Timed:
        """One checked message, then `messages` timed ones."""
        self._line.tell(Turn(way, messages, hold_s))
        return self._line.hear(Timed)

    def extra_nbytes(self, way: str) -> int | None:
        """Peak PSS of both over idle during a few messages; None where it cannot be read."""
        self._do(Trim())
        pids = dict(zip(("sender", "receiver"), self.ready.pids, strict=True))
        base = [read_pss(pid) for pid in pids.values()]
        with PssSampler(pids, interval_s=_EVERY_S) as sampler:
            self.turn(way, _READ_MESSAGES, _HOLD_S)
            sampler.mark("end")
        peak = sampler.peak_sum()
        known = [nbytes for nbytes in base if nbytes is not None]
        return None if peak is None or len(known) < len(base) else max(0, peak - sum(known))

    def _do(self, command: Packet) -> None:
        self._line.tell(command)
        self._line.hear(Done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
