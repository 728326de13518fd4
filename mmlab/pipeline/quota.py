"""What one frontend may have waiting in the engine: bounded there, whatever the frontend does.

A frontend keeps to its own budget, and a cancelled request makes room before the engine has dropped
it: so up to two budgets of payload can wait here, and headers beside them. Whoever sends more is
not such a frontend, or a broken one: its requests are refused, and cost the others no memory.
"""

from __future__ import annotations

from typing import Final

from mmlab.errors import TransportError
from mmlab.pipeline.inflight import MAX_REQUESTS

SLACK: Final = 128 << 20  # bytes beside payload: 2 KiB of header for each of MAX_REQUESTS


class Quota:
    """Of one frontend; under the inbox's lock. `budget` None: only requests are counted."""

    def __init__(self, frontend: int, budget: int | None, slack: int = SLACK) -> None:
        self._frontend = frontend
        self._limit = None if budget is None else 2 * budget + slack
        self.nbytes = 0
        self.count = 0

    def take(self, nbytes: int) -> None:
        """One more request waits. TransportError, with both numbers, where it may not."""
        if self._limit is not None and self.nbytes + nbytes > self._limit:
            raise TransportError(
                f"frontend {self._frontend}: a request of {nbytes} bytes is refused, "
                f"{self.nbytes} bytes of it wait in the engine already and {self._limit} bytes "
                "may (twice its budget, and headers): wait for replies before sending more"
            )
        if self.count >= 2 * MAX_REQUESTS:
            raise TransportError(
                f"frontend {self._frontend}: a request is refused, {self.count} of its requests "
                f"wait in the engine already and {2 * MAX_REQUESTS} may: wait for replies before "
                "sending more"
            )
        self.nbytes += nbytes
        self.count += 1

    def give_back(self, nbytes: int) -> None:
        """A request does not wait any more."""
        self.nbytes -= nbytes
        self.count -= 1
