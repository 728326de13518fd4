"""The thread that takes replies and ends futures with them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from mmlab.arena import Returned
from mmlab.errors import BatchError, EncodeError, EngineError, WireError
from mmlab.pipeline.inflight import InFlight, Pending
from mmlab.pipeline.messages import STAGES, EngineReply, ErrorReply, Kind, Reply
from mmlab.transports import Message
from mmlab.transports.base import ReplyReceiver
from mmlab.wire import Decoder, read_envelope

# What an error of the engine becomes here; everything else is an EngineError.
_SAME_HERE: dict[str, Callable[[str], Exception]] = {
    error.__name__: error for error in (BatchError, EncodeError, WireError)
}
JOIN_S = 5.0
TakeBack = Callable[[Sequence[Returned]], None]

log = logging.getLogger("mmlab.pipeline")


class Replies:
    """Runs until `close`. `decode_text` turns a reply's tokens into its text; `take_back` gets the
    leases that the engine returns."""

    def __init__(
        self,
        receiver: ReplyReceiver,
        inflight: InFlight,
        decode_text: Callable[[Sequence[int]], str],
        take_back: TakeBack | None = None,
    ) -> None:
        self._receiver = receiver
        self._inflight = inflight
        self._decode_text = decode_text
        self._take_back = take_back
        self._reply = Decoder(EngineReply)
        self._error = Decoder(ErrorReply)
        self._returned = Decoder(list[Returned])
        self._closed = False
        self.unexpected = 0  # messages that belong to no request under way, or cannot be read
        self.rejected = 0  # messages that the engine could not read, as it last said
        self._thread = threading.Thread(target=self._run, name="mmlab-replies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; from itself (a future's callback) it ends after the callback."""
        self._closed = True
        self._receiver.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._closed:
            message = self._receiver.receive()
            if message is None:
                continue
            try:
                self._handle(message)
            except Exception as error:  # a reply that cannot be read must not end the thread
                self.unexpected += 1
                log.warning("reply dropped: %s", error)

    def _handle(self, message: Message) -> None:
        envelope = read_envelope(message.frames[0])
        if envelope.kind == Kind.HELLO:
            return
        if envelope.kind == Kind.RETURNED and self._take_back is not None:
            returned = self._returned.decode(message.frames)
            assert isinstance(returned, list)
            self._take_back(returned)
            return
        body: object = None
        if envelope.kind == Kind.REPLY:
            body = self._reply.decode(message.frames)
        elif envelope.kind == Kind.ERROR:
            body = self._error.decode(message.frames)
        elif envelope.kind != Kind.ABORTED:
            raise WireError(f"message of kind {envelope.kind} to a frontend")
        if isinstance(body, EngineReply | ErrorReply):
            self.rejected = body.rejected
        pending = self._inflight.take(envelope.request_id)
        if pending is None:
            self.unexpected += 1
        elif isinstance(body, EngineReply):
            pending.settle(self._result(envelope.request_id, pending, body, message.received_ns))
        elif isinstance(body, ErrorReply):
            pending.settle(_exception(envelope.request_id, body))

    def _result(
        self, request_id: int, pending: Pending, reply: EngineReply, received_ns: int
    ) -> Reply | Exception:
        timings = dict.fromkeys(STAGES, 0.0) | pending.timings | reply.timings
        timings["transport"] = (reply.received_ns - pending.started_ns) / 1e9
        timings["total"] = (received_ns - pending.begun_ns) / 1e9
        try:
            text = self._decode_text(reply.token_ids)
        except Exception as error:
            return error
        return Reply(
            request_id=request_id,
            token_ids=reply.token_ids,
            text=text,
            checksum=reply.checksum,
            timings=timings,
            payload_nbytes=pending.nbytes,
            wire_nbytes=pending.wire_nbytes,
            num_frames=pending.num_frames,
            pinned=reply.pinned,
            device=reply.device,
            batch_requests=reply.batch_requests,
        )


def _exception(request_id: int, reply: ErrorReply) -> Exception:
    """The engine's error, as an error of this process; the engine's traceback is its note."""
    make = _SAME_HERE.get(reply.error, EngineError)
    said = reply.message if make is not EngineError else f"{reply.error}: {reply.message}"
    error = make(f"request {request_id:#x} failed in the engine ({reply.stage}): {said}")
    if reply.trace:
        error.add_note(f"traceback in the engine:\n{reply.trace}")
    return error
