"""The engine's ear: a thread that receives, so that nothing waits for a long prefill to be heard.

It only reads envelopes; bodies are decoded by the thread that works. It stamps the time a request
arrived, answers greetings and aborts at once, and survives whatever is sent: what it cannot read it
logs and counts, and answers where the id can be read. Whoever is not attached gets nothing in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mmlab.errors import MMLabError, TransportError, WireError
from mmlab.pipeline.messages import COUNTER_BITS, Kind
from mmlab.pipeline.quota import SLACK, Quota
from mmlab.transports import Message
from mmlab.transports.base import RequestReceiver
from mmlab.wire import read_envelope

MAX_LOGGED = 100  # rejected messages that are logged one by one; the rest are only counted

log = logging.getLogger("mmlab.engine")

Answer = Callable[[int, Kind, Exception | None], None]  # request id, kind, why (for ERROR)


class Inbox:
    """Requests that have arrived, in order, each with its id."""

    def __init__(self, receiver: RequestReceiver, answer: Answer) -> None:
        self._receiver = receiver
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: dict[int, Message] = {}  # in order of arrival
        self._active: set[int] = set()
        self._aborted: set[int] = set()
        self._quotas: dict[int, Quota] = {}  # of the frontends that are attached
        self._stopped = False
        self._strangers = 0
        self.rejected = 0
        self._thread = threading.Thread(target=self._run, name="mmlab-inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """From any thread: `take` returns None from now on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._receiver.interrupt()

    def join(self) -> None:
        self._thread.join()

    def admit(self, frontend: int, budget: int | None, slack: int = SLACK) -> None:
        """From any thread: its messages are taken from now on; bounds: see `Quota`."""
        with self._changed:
            self._quotas[frontend] = Quota(frontend, budget, slack)

    def drop(self, frontend: int) -> None:
        """From any thread: it is gone. Its waiting requests are dropped, its active ones aborted,
        and nothing of it gets in any more."""
        with self._changed:
            self._quotas.pop(frontend, None)
            for request_id in [n for n in self._waiting if n >> COUNTER_BITS == frontend]:
                del self._waiting[request_id]
            self._aborted.update(n for n in self._active if n >> COUNTER_BITS == frontend)

    def knows(self, frontend: int) -> bool:
        """Whether it is attached."""
        return frontend in self._quotas

    def take(self, *, wait: bool) -> tuple[int, Message] | None:
        """The next request, now active; None if there is none (`wait=False`) or after `stop`."""
        with self._changed:
            while not self._waiting and not self._stopped and wait:
                self._changed.wait()
            if self._stopped or not self._waiting:
                return None
            request_id = next(iter(self._waiting))
            self._active.add(request_id)
            return request_id, self._pop(request_id)

    def next_nbytes(self) -> int:
        """Size of the request that `take` would return, 0 if there is none."""
        with self._changed:
            return next((message.nbytes for message in self._waiting.values()), 0)

    def is_wanted(self, request_id: int) -> bool:
        """Whether an active request has not been aborted."""
        return request_id not in self._aborted

    def done(self, request_id: int) -> bool:
        """The request is no longer active; whether it was aborted meanwhile."""
        with self._changed:
            self._active.discard(request_id)
            aborted = request_id in self._aborted
            self._aborted.discard(request_id)
            return aborted

    def reject(self, error: Exception, request_id: int | None = None) -> None:
        """Log and count what cannot be read; answer it where its id is known."""
        self.rejected += 1
        if self.rejected <= MAX_LOGGED:
            log.warning("message rejected (number %d): %s", self.rejected, error)
        if request_id is not None:
            self._answer(request_id, Kind.ERROR, error)

    def _run(self) -> None:
        while not self._stopped:
            message = self._receiver.receive()
            if message is not None:
                try:
                    self._take_in(message)
                except Exception as error:
                    self.reject(error)
                del message  # its payload must not live on until the next one comes

    def _take_in(self, message: Message) -> None:
        envelope = read_envelope(message.frames[0])
        request_id = envelope.request_id
        if not self.knows(request_id >> COUNTER_BITS):
            self._turn_away(request_id, envelope.kind)
        elif envelope.kind == Kind.REQUEST:
            if (error := self._queue(request_id, message)) is not None:
                self.reject(error, request_id)
        elif envelope.kind == Kind.HELLO:
            self._answer(request_id, Kind.HELLO, None)
        elif envelope.kind == Kind.ABORT:
            self._abort(request_id)
        else:
            self.reject(WireError(f"message of kind {envelope.kind} to an engine"), request_id)

    def _queue(self, request_id: int, message: Message) -> MMLabError | None:
        """Let it wait for its turn, or say why not."""
        with self._changed:
            if request_id in self._waiting or request_id in self._active:
                raise WireError(f"request {request_id} is under way already")
            quota = self._quotas.get(request_id >> COUNTER_BITS)
            if message.error is not None or quota is None:  # None: it has left just now
                return message.error
            try:
                quota.take(message.nbytes)
            except TransportError as error:
                return error.with_traceback(None)  # its frames would keep the message
            self._waiting[request_id] = message
            self._changed.notify_all()
            return None

    def _pop(self, request_id: int) -> Message:
        message = self._waiting.pop(request_id)
        self._quotas[request_id >> COUNTER_BITS].give_back(message.nbytes)
        return message

    def _turn_away(self, request_id: int, kind: int) -> None:
        """There is nobody to answer; what a killed frontend has sent comes here too."""
        self.rejected += 1
        self._strangers += 1
        if self._strangers <= MAX_LOGGED:
            log.warning(
                "message rejected (number %d): of kind %d for request %#x, frontend %d is not "
                "attached",
                self.rejected,
                kind,
                request_id,
                request_id >> COUNTER_BITS,
            )

    def _abort(self, request_id: int) -> None:
        with self._changed:
            dropped = request_id in self._waiting
            if dropped:
                self._pop(request_id)
            if request_id in self._active:
                self._aborted.add(request_id)
        if dropped:
            self._answer(request_id, Kind.ABORTED, None)
