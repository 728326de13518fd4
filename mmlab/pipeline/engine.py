"""The engine: takes requests from its inbox, serves them in batches, sends replies.

A batch is what has arrived, up to a budget of items and one of bytes. Whatever a request makes go
wrong ends that request only; what would end the engine ends its process, so that frontends learn it
from the process table and not from silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from mmlab.arena import Returned
from mmlab.errors import TransportError
from mmlab.pipeline.inbox import MAX_LOGGED, Inbox
from mmlab.pipeline.messages import (
    COUNTER_BITS,
    OWNER,
    EngineConfig,
    EngineReply,
    ErrorReply,
    Kind,
    frontend_of,
)
from mmlab.pipeline.serializers import INSECURE, Serializer
from mmlab.pipeline.worker import Work, Worker, error_reply
from mmlab.transports import Message
from mmlab.transports.base import ReplySender, RequestReceiver
from mmlab.wire import Encoder

log = logging.getLogger("mmlab.engine")


def returning(replies: ReplySender, frontend: int) -> Callable[[Sequence[Returned]], bool]:
    """How that frontend gets leases of its arena back; False where it takes nothing now."""
    request_id = frontend << COUNTER_BITS
    encoder = Encoder()

    def give_back(ended: Sequence[Returned]) -> bool:
        frames = encoder.encode(ended, kind=Kind.RETURNED, request_id=request_id)
        return replies.send(frontend_of(request_id), frames)

    return give_back


class Engine:
    """Ties receiver, serializer, worker and reply sender together; owns none of them."""

    def __init__(
        self,
        config: EngineConfig,
        receiver: RequestReceiver,
        replies: ReplySender,
        serializer: Serializer,
        worker: Worker,
        before_reply: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._replies = replies
        self._serializer = serializer
        self._worker = worker
        self._before_reply = before_reply
        self._encoder = Encoder()
        self._inbox = Inbox(receiver, self._answer)
        self._carry: Work | None = None  # decoded already, but too much for the last batch
        self._unsent = 0  # replies that nobody took
        self._open: set[int] = set()  # requests of the batch in hand that have no answer yet
        self.admit(OWNER, config.max_nbytes)

    def run(self) -> None:
        """Serve until `stop`."""
        self._inbox.start()
        try:
            while batch := self._next_batch():
                self._serve(batch)
                batch.clear()  # nothing of the last requests is kept while waiting for the next
        finally:
            self._inbox.stop()
            self._inbox.join()

    def stop(self) -> None:
        """From any thread: end after the batch in hand."""
        self._inbox.stop()

    def admit(self, frontend: int, max_nbytes: int) -> None:
        """From any thread: serve that frontend too, with so many payload bytes in flight."""
        # A pickled request is many times its payload; a peer that may send one is trusted.
        trusted = self._config.serializer in INSECURE
        self._inbox.admit(frontend, None if trusted else max_nbytes)

    def drop(self, frontend: int) -> None:
        """From any thread: it is gone, with all its requests; the others notice nothing."""
        self._inbox.drop(frontend)

    def _serve(self, batch: list[Work]) -> None:
        self._open = {work.request_id for work in batch}
        try:
            self._worker.serve(batch, self._is_wanted, self._finish)
        except Exception as error:
            log.exception("batch of %d requests failed", len(batch))
            for work in batch:
                if work.request_id in self._open:
                    self._finish(work, error_reply("engine", error))
        for request_id in self._open:
            self._inbox.done(request_id)
            self._answer(request_id, Kind.ABORTED)

    def _next_batch(self) -> list[Work]:
        """What has arrived, at least one request; empty after `stop`."""
        items_left, nbytes_left = self._config.max_batch_items, self._config.max_batch_nbytes
        batch: list[Work] = []
        while True:
            work, self._carry = self._carry, None
            if work is None:
                if batch and self._inbox.next_nbytes() > nbytes_left:
                    return batch
                taken = self._inbox.take(wait=not batch)
                if taken is None:
                    return batch
                work = self._decode(*taken)
                del taken
            if work is not None:
                if batch and work.num_items > items_left:
                    self._carry = work
                    return batch
                items_left -= work.num_items
                nbytes_left -= work.nbytes
                batch.append(work)

    def _decode(self, request_id: int, message: Message) -> Work | None:
        begun = time.perf_counter()
        try:
            request = self._serializer.loads(message.frames)
        except Exception as error:
            self._inbox.done(request_id)
            self._inbox.reject(error, request_id)
            return None
        finally:
            message.frames.clear()  # the thread that received the message may hold it a bit longer
        seconds = time.perf_counter() - begun
        timings = {"decode": seconds}
        return Work(request_id, request, message.received_ns, message.nbytes, timings)

    def _is_wanted(self, work: Work) -> bool:
        return self._inbox.is_wanted(work.request_id)

    def _finish(self, work: Work, reply: EngineReply | ErrorReply) -> None:
        kind = Kind.REPLY if isinstance(reply, EngineReply) else Kind.ERROR
        self._send(work.request_id, kind, reply)
        self._open.discard(work.request_id)
        self._inbox.done(work.request_id)

    def _answer(self, request_id: int, kind: Kind, error: Exception | None = None) -> None:
        """A reply without a result; from either thread."""
        stage = "queue" if isinstance(error, TransportError) else "decode"
        self._send(request_id, kind, None if error is None else error_reply(stage, error))

    def _send(self, request_id: int, kind: Kind, body: EngineReply | ErrorReply | None) -> None:
        if not self._inbox.knows(request_id >> COUNTER_BITS):
            return  # it has left meanwhile
        if body is not None:
            body.rejected = self._inbox.rejected
        frames = self._encoder.encode(body, kind=kind, request_id=request_id)
        if self._before_reply is not None:
            self._before_reply()
        sent = self._replies.send(frontend_of(request_id), frames)
        if not sent and kind != Kind.HELLO:  # greetings are repeated until the links stand
            self._unsent += 1
            if self._unsent <= MAX_LOGGED:
                log.warning("%s of request %#x was not taken", kind.name, request_id)
