"""A frontend thread of the soak: asks without end, and stops where it is told to.

It parks when all that it sent has ended and it holds nothing any more, so that what a reading then
finds belongs to the pipeline.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from mmlab.bench.soak.draw import PATIENCE_S, REFUSED, Ask, draw
from mmlab.bench.soak.items import Maker
from mmlab.bench.soak.tally import Tally
from mmlab.bench.soak.ticket import Aborter, Ticket
from mmlab.errors import (
    BackpressureTimeout,
    EncodeError,
    EngineError,
    TransportError,
    UsageError,
)
from mmlab.fields import KwargsItems
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items

KEPT: Final = 8  # items and replies that a thread holds on to
KEPT_NBYTES: Final = 2_000_000  # of one of these: what is held in the arena is others' room


class Gate:
    """Where threads park together. `over` ends them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.over = False
        self._closed = False
        self._parked = 0
        self._changed = threading.Condition()

    @property
    def closed(self) -> bool:
        return self._closed or self.over

    def close(self, timeout: float) -> bool:
        """Whether all threads are parked in time."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._parked == self.threads, timeout)

    def open(self, *, over: bool = False) -> None:
        """Let them go on, or end."""
        with self._changed:
            self._closed, self.over = False, self.over or over
            self._changed.notify_all()

    def park(self) -> None:
        """From a thread: until the gate opens."""
        with self._changed:
            self._parked += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._closed or self.over)
            self._parked -= 1


class Client(threading.Thread):
    """Thread number `number`; started by its owner, ended by the gate."""

    def __init__(
        self,
        number: int,
        seed: int,
        pipe: Pipeline,
        maker: Maker,
        tally: Tally,
        gate: Gate,
        aborter: Aborter,
    ) -> None:
        super().__init__(name=f"soak-{number}", daemon=True)
        self.number = number
        self._seed = seed
        self._pipe = pipe
        self._maker = maker
        self._tally = tally
        self._gate = gate
        self._aborter = aborter
        self._open = 0
        self._changed = threading.Condition()
        self._kept: deque[tuple[KwargsItems | None, Ticket]] = deque(maxlen=KEPT)

    def run(self) -> None:
        ask: Ask | None = None
        number = 0
        try:
            while not self._gate.over:
                if self._gate.closed:
                    self._kept.clear()
                    if not self._wait(0):
                        self._tally.fault(f"thread {self.number}: {self._open} requests hang")
                    self._gate.park()
                    continue
                ask = draw(self._seed, self.number, number)
                self.ask(ask)
                number += 1
        except EngineError as error:  # of the engine as a whole: no request is to blame
            if not self._gate.over:
                self._tally.fault(f"thread {self.number}: {error}")
            self._gate.open(over=True)
        except Exception as error:
            self._tally.fault(f"thread {self.number}: {type(error).__name__}: {error}", ask)
            self._gate.open(over=True)
        finally:
            self._kept.clear()

    def ask(self, ask: Ask) -> None:
        """Send one request, or two of the same items, and do with it what was drawn."""
        if ask.pause_s:
            time.sleep(ask.pause_s)
        if not self._wait(ask.window - 1):
            self._tally.fault(f"no reply to any of {self._open} requests", ask)
        items = self._maker.items(ask)
        wanted = 0 if ask.kind in REFUSED else checksum_items(items)
        for _ in range(ask.repeats):
            ticket = self._submit(ask, items, wanted)
            if ticket is None:
                continue
            if ask.abort == "at once":
                ticket.cancel()
            elif ask.abort == "soon":
                self._aborter.add(ticket, ask.abort_after_s)
            elif ask.abort == "after":
                self._cancel_after(ticket)
            if ask.keep:
                self._kept.append((items if ask.nbytes < KEPT_NBYTES else None, ticket))

    def _submit(self, ask: Ask, items: KwargsItems | None, wanted: int) -> Ticket | None:
        self._tally.count(submitted=1)
        try:
            future = self._pipe.submit_items(items, [1, 2, ask.number], timeout=ask.timeout)
        except (UsageError, EncodeError) as error:
            self._tally.count(refused=1)
            if ask.kind not in REFUSED:
                self._tally.fault(f"refused: {error}", ask)
            return None
        except BackpressureTimeout as error:
            self._tally.count(timed_out=1)
            if ask.timeout >= PATIENCE_S:
                self._tally.fault(f"no room for {ask.timeout:g} s: {error}", ask)
            return None
        except TransportError as error:
            raise EngineError(f"the pipeline has ended: {error}") from error
        self._tally.count(accepted=1)
        if ask.kind in REFUSED:
            self._tally.fault("accepted, had to be refused", ask)
        with self._changed:
            self._open += 1
        return Ticket(ask, future, wanted, self._tally, self._has_ended)

    def _cancel_after(self, ticket: Ticket) -> None:
        try:
            ticket.future.result(PATIENCE_S)
        except Exception:
            return  # the ticket judges that
        if ticket.cancel():
            self._tally.fault("cancelled after its reply had come", ticket.ask)

    def _has_ended(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def _wait(self, most: int) -> bool:
        """Until no more than so many are under way; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open <= most or self._gate.over, PATIENCE_S)
