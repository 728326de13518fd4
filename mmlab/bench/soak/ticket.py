"""One accepted request, from its future to its end; and the thread that cancels at odd moments."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from mmlab.bench.soak.draw import Ask
from mmlab.bench.soak.tally import Tally
from mmlab.errors import EngineError
from mmlab.pipeline.messages import Reply


class Ticket:
    """Judges the end of a future in its callback. `ended` is called once it is counted.

    It knows the checksum and not the items: those belong to the pipeline from `submit` on.
    """

    def __init__(
        self,
        ask: Ask,
        future: Future[Reply],
        wanted: int,
        tally: Tally,
        ended: Callable[[], None],
    ) -> None:
        self.ask = ask
        self.future = future
        self._wanted = wanted
        self._tally = tally
        self._ended = ended
        self._ends = itertools.count(1)
        future.add_done_callback(self._judge)

    def cancel(self) -> bool:
        """True if it was granted; counted."""
        granted = self.future.cancel()
        if granted:
            self._tally.count(cancels_granted=1)
        else:
            self._tally.count(cancels_late=1)
        return granted

    def _judge(self, future: Future[Reply]) -> None:
        if (n := next(self._ends)) > 1:
            self._tally.fault(f"ended {n} times", self.ask)
        elif future.cancelled():
            self._tally.count(cancelled=1)
        elif (error := future.exception()) is not None:
            if self._tally.closing and isinstance(error, EngineError):
                return
            self._tally.fault(f"failed: {type(error).__name__}: {error}", self.ask)
        else:
            reply = future.result()
            if reply.checksum != self._wanted:
                self._tally.fault(
                    f"reply {reply.request_id:#x} has checksum {reply.checksum:#x}, sent was "
                    f"{self._wanted:#x}",
                    self.ask,
                )
            else:
                self._tally.count(answered=1, payload_nbytes=reply.payload_nbytes)
        self._ended()


class Aborter:
    """Cancels tickets at set times, in a thread of its own. A context manager."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Ticket]] = []
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="soak-aborts", daemon=True)

    def __enter__(self) -> Aborter:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def add(self, ticket: Ticket, after_s: float) -> None:
        """Cancel it then."""
        with self._changed:
            entry = (time.monotonic() + after_s, next(self._serial), ticket)
            heapq.heappush(self._due, entry)
            self._changed.notify()

    def idle(self) -> bool:
        """Whether nothing is left to cancel."""
        with self._changed:
            return not self._due

    def _run(self) -> None:
        while (ticket := self._next()) is not None:
            ticket.cancel()
            del ticket  # not until the next one comes

    def _next(self) -> Ticket | None:
        with self._changed:
            while not self._over:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)
        return None
