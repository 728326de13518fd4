"""What became of the requests, counted where it happens, and what went wrong.

Both sides of a sum are counted in different places: that a request was accepted where `submit`
returns, that it ended in the future's callback. Only then do equal sums say something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from mmlab.bench.soak.draw import Ask

MOST_FAULTS = 20  # that are kept word by word, and told


class Counts(msgspec.Struct):
    """Requests. submitted = accepted + refused + timed_out; accepted = answered + cancelled."""

    submitted: int = 0
    accepted: int = 0
    refused: int = 0  # as they had to be
    timed_out: int = 0  # found no room in the short time they had
    answered: int = 0  # with the checksum of what was sent
    cancelled: int = 0
    cancels_granted: int = 0  # cancel() said that no reply will come
    cancels_late: int = 0  # cancel() said that the reply was there
    payload_nbytes: int = 0  # of answered requests


class Tally:
    """Thread-safe. `on_fault` is called with the first faults."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._on_fault = on_fault
        self.faults: list[str] = []
        self.num_faults = 0
        self.closing = False  # it was broken off: what is under way then ends with the pipeline

    def count(self, **more: int) -> None:
        """Add to the counts of these names."""
        with self._lock:
            for name, value in more.items():
                setattr(self._counts, name, getattr(self._counts, name) + value)

    def counts(self) -> Counts:
        """As they are now."""
        with self._lock:
            return msgspec.structs.replace(self._counts)

    def fault(self, text: str, ask: Ask | None = None) -> None:
        """Something that must not be; about a request: how to send that one again."""
        if ask is not None:
            text = f"request {ask.name} of seed {ask.seed} ({ask.kind}, {ask.nbytes} B): {text}"
        with self._lock:
            self.num_faults += 1
            if len(self.faults) >= MOST_FAULTS:
                return
            self.faults.append(text)
        self._on_fault(text)
