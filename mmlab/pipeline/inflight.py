"""What is under way: a budget in bytes, and the futures that wait for replies.

Memory between the two processes is bounded by the budget and by nothing else: sockets have no
message limit. Bytes are taken before a request is encoded and returned when the engine has ended
it. A cancelled request returns them at once, so that cancelling makes room, but its frames may
still lie in a socket: those bytes are watched until the engine confirms, and may never exceed one
more budget.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from mmlab.errors import BackpressureTimeout, UsageError
from mmlab.pipeline.messages import Reply

MAX_REQUESTS = 65_536  # under way at once; fewer than the replies that the transport can hold


class ByteBudget:
    """At most `limit` bytes taken at once, of one request at most `most` (None: `limit`). First
    come, first served: a large request is not overtaken for ever by small ones."""

    def __init__(self, limit: int, most: int | None = None) -> None:
        self.limit = limit
        self.most = limit if most is None else most
        self.taken = 0
        self.abandoned = 0
        self.count = 0
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._error: Callable[[], Exception] | None = None

    @property
    def waiting(self) -> int:
        """How many submitters stand in line."""
        return len(self._line)

    def acquire(self, nbytes: int, timeout: float | None) -> None:
        """Take `nbytes`, waiting up to `timeout` seconds (None: without end, 0: not at all).

        UsageError if they can never fit, BackpressureTimeout if they do not fit in time.
        """
        if nbytes > self.limit:
            raise UsageError(
                f"request of {nbytes} payload bytes, the pipeline's budget is {self.limit} bytes: "
                "raise max_inflight_nbytes or send fewer or smaller items"
            )
        if nbytes > self.most:
            raise UsageError(
                f"request of {nbytes} payload bytes, the engine takes {self.most} bytes at most "
                "(its owner's max_inflight_nbytes): send fewer or smaller items"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        me = object()
        with self._changed:
            self._line.append(me)
            try:
                while not (self._line[0] is me and self._fits(nbytes)):
                    self.check()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise BackpressureTimeout(
                            f"request of {nbytes} payload bytes: {self.taken + self.abandoned} of "
                            f"{self.limit} bytes are in flight ({self.count} requests, "
                            f"{len(self._line) - 1} waiting) and did not get free within "
                            f"{timeout} s; wait for replies or raise max_inflight_nbytes"
                        )
                    self._changed.wait(left)
                self.check()
                self.taken += nbytes
                self.count += 1
            finally:
                self._line.remove(me)
                self._changed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return (
            self.taken + nbytes <= self.limit
            and self.taken + self.abandoned + nbytes <= 2 * self.limit
            and self.count < MAX_REQUESTS
        )

    def check(self) -> None:
        """Raises what `close` was given, once it was."""
        if self._error is not None:
            raise self._error()

    def release(self, nbytes: int, *, abandoned: bool = False) -> None:
        """Give bytes back: of a live request, or of an abandoned one that is now really gone."""
        with self._changed:
            if abandoned:
                self.abandoned -= nbytes
            else:
                self.taken -= nbytes
            self.count -= 1
            self._changed.notify_all()

    def abandon(self, nbytes: int) -> None:
        """The request was cancelled: room for others, though its bytes are still somewhere."""
        with self._changed:
            self.taken -= nbytes
            self.abandoned += nbytes
            self._changed.notify_all()

    def close(self, error: Callable[[], Exception]) -> None:
        """End every wait, and every later `acquire`, with `error()`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()


class ReplyFuture(Future[Reply]):
    """The future of one request. `cancel` also lets the engine drop it.

    It keeps `owner` alive, so that a pipeline is not closed by the garbage collector while somebody
    waits for its reply.
    """

    def __init__(self, request_id: int, abort: Callable[[int], bool], owner: object) -> None:
        super().__init__()
        self.request_id = request_id
        self._abort = abort
        self._owner = owner

    def cancel(self) -> bool:
        """True if no reply will come; its bytes in flight are free again."""
        if not super().cancel():
            return False
        if self._abort(self.request_id):
            self.set_running_or_notify_cancel()  # tells those who wait by `as_completed`
        return True


@dataclass(slots=True)
class Pending:
    """A request whose reply has not come. `timings` so far, in seconds; `begun_ns`: its submit."""

    future: ReplyFuture
    nbytes: int
    begun_ns: int
    timings: dict[str, float] = field(default_factory=dict)
    started_ns: int = 0
    wire_nbytes: int = 0
    num_frames: int = 0
    cancelled: bool = False

    def settle(self, result: Reply | Exception) -> None:
        """End the future, unless it was cancelled; for whoever took this out of `InFlight`."""
        if self.cancelled or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class InFlight:
    """Request id -> `Pending`. Whoever takes an entry out, and nobody else, ends its future.

    `ended` is told each id that is taken out.
    """

    def __init__(self, budget: ByteBudget, ended: Callable[[int], None] | None = None) -> None:
        self.budget = budget
        self._ended = ended
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._error: Callable[[], Exception] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request_id: int, pending: Pending) -> None:
        """Raises instead where everything has already been failed."""
        with self._lock:
            if self._error is not None:
                raise self._error()
            self._pending[request_id] = pending

    def take(self, request_id: int) -> Pending | None:
        """Take the entry out and return its bytes; None for an id that is not under way."""
        with self._lock:
            pending = self._pending.pop(request_id, None)
            if pending is not None:
                self.budget.release(pending.nbytes, abandoned=pending.cancelled)
        if pending is not None and self._ended is not None:
            self._ended(request_id)
        return pending

    def cancel(self, request_id: int) -> bool:
        """Mark as cancelled; True the first time, while it is under way. The entry stays."""
        with self._lock:
            pending = self._pending.get(request_id)
            if pending is None or pending.cancelled:
                return False
            pending.cancelled = True
            self.budget.abandon(pending.nbytes)
            return True

    def fail_all(self, error: Callable[[], Exception]) -> int:
        """End every future, and refuse every later `add`, with `error()`; how many there were."""
        with self._lock:
            self._error = error
        self.budget.close(error)
        count = 0
        # One by one: a callback may raise KeyboardInterrupt, and the others wait for a later call.
        for request_id in list(self._pending):
            if (pending := self.take(request_id)) is not None:
                pending.settle(error())
                count += 1
        return count
