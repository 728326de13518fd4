"""The engine's ear: a thread that receives, so that nothing waits for a long prefill to be heard.

It only reads envelopes; bodies are decoded by the thread that works. It stamps the time a request
arrived, answers greetings and aborts at once, and survives whatever is sent: what it cannot read it
logs and counts, and answers where the id can be read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mmlab.errors import WireError
from mmlab.pipeline.messages import Kind
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
        self._stopped = False
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

    def take(self, *, wait: bool) -> tuple[int, Message] | None:
        """The next request, now active; None if there is none (`wait=False`) or after `stop`."""
        with self._changed:
            while not self._waiting and not self._stopped and wait:
                self._changed.wait()
            if self._stopped or not self._waiting:
                return None
            request_id = next(iter(self._waiting))
            self._active.add(request_id)
            return request_id, self._waiting.pop(request_id)

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
        if envelope.kind == Kind.REQUEST:
            with self._changed:
                if request_id in self._waiting or request_id in self._active:
                    raise WireError(f"request {request_id} is under way already")
                if message.error is None:
                    self._waiting[request_id] = message
                    self._changed.notify_all()
            if message.error is not None:
                self.reject(message.error, request_id)
        elif envelope.kind == Kind.HELLO:
            self._answer(request_id, Kind.HELLO, None)
        elif envelope.kind == Kind.ABORT:
            self._abort(request_id)
        else:
            self.reject(WireError(f"message of kind {envelope.kind} to an engine"), request_id)

    def _abort(self, request_id: int) -> None:
        with self._changed:
            dropped = self._waiting.pop(request_id, None) is not None
            if request_id in self._active:
                self._aborted.add(request_id)
        if dropped:
            self._answer(request_id, Kind.ABORTED, None)
