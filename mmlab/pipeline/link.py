"""Everything that a pipeline holds: directory, engine, sockets, requests under way.

It knows nothing of prompts and images. `Pipeline` owns it; threads and futures refer to it and not
to the pipeline, so that a forgotten pipeline can be collected, which closes its link.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mmlab.arena import Arena, Lease
from mmlab.errors import EngineError, TransportError
from mmlab.pipeline.attached import AttachedEngine
from mmlab.pipeline.directory import PrivateDirectory
from mmlab.pipeline.inflight import ByteBudget, InFlight, Pending, ReplyFuture
from mmlab.pipeline.making import Room, check_process
from mmlab.pipeline.messages import (
    COUNTER_BITS,
    EngineConfig,
    Kind,
    Ready,
    Request,
    Welcome,
    frontend_of,
)
from mmlab.pipeline.outgoing import Outgoing, make_outgoing
from mmlab.pipeline.process import EngineProcess
from mmlab.pipeline.replies import Replies
from mmlab.transports import open_transport, pieces
from mmlab.transports.base import RequestSender
from mmlab.transports.interrupts import uninterrupted
from mmlab.transports.limits import require_descriptors
from mmlab.wire import Encoder

PIPELINE_DESCRIPTORS = 24  # of a frontend while it starts: 19, and some for its replies
GREETING_S = 0.02  # how often a greeting is repeated until the engine answers it


class EngineHandle(Protocol):
    """What a link asks of its engine: one that it started, or one that it has joined."""

    number: int  # this frontend's, at that engine
    pid: int

    @property
    def exit_code(self) -> int | None: ...
    def output(self) -> str: ...
    def wait_ready(self, timeout: float) -> Ready: ...
    def stop(self, *, patient: bool = True) -> None: ...


class Link:
    """An engine and the way to it: started by `config`, or (`welcome`) the one that runs at that
    address and has said what it is. `connect` waits until it is ready."""

    process: EngineHandle

    def __init__(
        self, config: EngineConfig, start_timeout: float, welcome: Welcome | None = None
    ) -> None:
        self._pid = os.getpid()
        self._start_timeout = start_timeout
        self._deadline = time.monotonic() + start_timeout
        self._lock = threading.Lock()
        self._closed = False  # from the begin of `close` on
        self._left = True  # until nothing is left to close
        self._closer: threading.Thread | None = None
        self._encoder = Encoder()
        self._sender: RequestSender | None = None
        self._replies: Replies | None = None
        most = config.max_nbytes if welcome is None else welcome.config.max_nbytes
        self.budget = ByteBudget(config.max_nbytes, most)
        self.inflight = InFlight(self.budget, self._request_ended)
        require_descriptors(PIPELINE_DESCRIPTORS, "a pipeline")
        self._transport = open_transport(config.transport)
        self._directory: PrivateDirectory | None = None
        self._outgoing: Outgoing | None = None
        try:
            if welcome is None:
                self._directory = PrivateDirectory()
                config = msgspec.structs.replace(config, directory=str(self._directory.path))
            self._outgoing = make_outgoing(config, private=self._transport.private)
            fd = None if self.arena is None else self.arena.fileno()
            if welcome is None:
                config = msgspec.structs.replace(config, authkey=self._outgoing.authkey)
                self.process = EngineProcess(config, self._engine_ended, fd)
            else:
                self.process = AttachedEngine(
                    welcome, config.max_nbytes, self._deadline, self._engine_ended, fd
                )
            self._me = self.process.number << COUNTER_BITS
            self._ids = itertools.count(self._me + 1)
        except BaseException:
            if hasattr(self, "process"):
                self.process.stop(patient=False)
            self._close_files()
            raise

    def connect(self, decode_text: Callable[[Sequence[int]], str]) -> Ready:
        """Wait for the engine and greet it; EngineError if it is not ready in time."""
        ready = self.process.wait_ready(max(0.0, self._deadline - time.monotonic()))
        sender: RequestSender = self._transport.connect_requests(ready.requests_endpoint)
        if pieces.wanted(self._transport.name, ready.malloc_tuned):
            sender = pieces.PieceSender(sender)
        receiver = self._transport.connect_replies(ready.replies_endpoint, frontend_of(self._me))
        # A reply to a frontend that the engine's socket has not met yet would be lost: the greeting
        # is repeated until its answer shows that both ways stand.
        while True:
            sender.send(self._encoder.encode(None, kind=Kind.HELLO, request_id=self._me))
            if receiver.receive(GREETING_S) is not None:
                break
            self.budget.check()
            if time.monotonic() > self._deadline:
                raise EngineError(
                    f"engine (pid {self.process.pid}) was ready, but did not answer within "
                    f"{self._start_timeout} s"
                )
        self._sender = sender
        assert self._outgoing is not None
        take_back = self._outgoing.take_back
        with uninterrupted():  # the thread that it starts is its to end
            self._replies = Replies(receiver, self.inflight, decode_text, take_back)
        return ready

    @property
    def arena(self) -> Arena | None:
        return None if self._outgoing is None else self._outgoing.arena

    def room(self, timeout: float | None) -> Room:
        """Room for a request that is still to be made, to be passed to `submit` within it."""
        check_process(self._pid)
        return Room(self.budget, self.arena, timeout)

    def submit(
        self,
        request: Request,
        *,
        nbytes: int,
        timeout: float | None,
        begun_ns: int,
        timings: dict[str, float],
        owner: object,
        room: Room | None = None,
    ) -> ReplyFuture:
        """Send from this thread. All that can be wrong with the request is raised, nothing sent."""
        deadline = None if timeout is None else time.monotonic() + timeout
        check_process(self._pid)
        assert self._outgoing is not None
        assert self._sender is not None
        taken = room is not None and room.nbytes > 0
        if not taken:
            self.budget.acquire(nbytes, timeout)
        request_id = next(self._ids)
        future = ReplyFuture(request_id, self._abort, owner)
        pending = Pending(future, nbytes, begun_ns, timings)
        lease: Lease | None = None
        try:
            begun = time.monotonic()
            left = None if deadline is None else max(0.0, deadline - begun)
            frames, lease = self._outgoing.dumps(request, request_id, nbytes, left)
            timings["encode"] = time.monotonic() - begun
            pending.num_frames = len(frames)
            pending.wire_nbytes = sum(memoryview(frame).nbytes for frame in frames)
            self.inflight.add(request_id, pending)
            if room is not None:
                room.hand_over()
        except BaseException as error:
            if not taken:
                self.budget.release(nbytes)
            self._request_ended(request_id)
            if lease is not None:
                lease.release()
            if isinstance(error, TransportError):
                self.budget.check()  # the arena closes when the engine has ended: say that
            raise
        try:
            with self._outgoing.lending(lease):
                pending.started_ns = time.monotonic_ns()  # the reply may come before send returns
                self._sender.send(frames)
        except BaseException as error:
            self.inflight.take(request_id)
            if isinstance(error, TransportError):
                self.budget.check()
            raise
        return future

    def _request_ended(self, request_id: int) -> None:
        if self._outgoing is not None:
            self._outgoing.release(request_id)

    def _abort(self, request_id: int) -> bool:
        """The caller has cancelled; True if the request was still under way."""
        if not self.inflight.cancel(request_id):
            return False
        with contextlib.suppress(TransportError):
            if self._sender is not None:
                frames = self._encoder.encode(None, kind=Kind.ABORT, request_id=request_id)
                self._sender.send(frames)
        return True

    def stats(self) -> dict[str, float]:
        """Counters; see `Pipeline.stats`."""
        replies, sender = self._replies, self._sender
        return {
            "requests_inflight": len(self.inflight),
            "nbytes_inflight": self.budget.taken,
            "nbytes_abandoned": self.budget.abandoned,
            "nbytes_budget": self.budget.limit,
            "waiting": self.budget.waiting,
            "frames_unreleased": 0 if sender is None else sender.unreleased(),
            "unexpected_replies": 0 if replies is None else replies.unexpected,
            "engine_rejected": 0 if replies is None else replies.rejected,
            **({} if self._outgoing is None else self._outgoing.stats()),
        }

    def _engine_ended(self, error: EngineError) -> None:
        """From the thread that watches the engine."""
        if not self._closed:
            text, code = str(error), error.exit_code
            self._fail_all(lambda: EngineError(text, code))

    def _fail_all(self, error: Callable[[], EngineError]) -> None:
        """End every wait and every future with it."""
        self.budget.close(error)
        if self._outgoing is not None:
            self._outgoing.close()  # before any callback of a future: it may wait for room there
        self.inflight.fail_all(error)

    def close(self) -> None:
        """End everything, in order and in bounded time. Idempotent; nothing in a forked child.

        Where Ctrl-C interrupts it, the engine is killed and the rest is closed before it is raised;
        where that is interrupted too, the next call goes on.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._left or self._closer not in (None, threading.current_thread()):
                return
            self._closer = threading.current_thread()
        self._closed = True
        try:
            try:
                self._end_all(patient=True)
            except BaseException:
                self._end_all(patient=False)
                raise
        finally:
            self._closer = None

    def _end_all(self, *, patient: bool) -> None:
        """Every step may be repeated."""
        self._fail_all(lambda: EngineError("the pipeline has been closed"))
        self.process.stop(patient=patient)
        if self._replies is not None:
            self._replies.close()
        self._close_files()
        self._left = False

    def _close_files(self) -> None:
        try:
            if self._outgoing is not None:
                self._outgoing.close()
            self._transport.close()
        finally:
            if self._directory is not None:
                self._directory.close()
