"""Entry of the engine's process: `python -m mmlab.pipeline.child FD`.

FD is its end of the control socket, by which it gets its settings, says that it is ready or why it
cannot be, and is told to stop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from pathlib import Path

import msgspec
import torch

from mmlab.errors import TransportError
from mmlab.fields import BatchedField, FieldElem, KwargsItem
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.engine import Engine, returning
from mmlab.pipeline.guests import Guests
from mmlab.pipeline.joining import DOOR, Door
from mmlab.pipeline.lifecycle import Watchdog, end_with_any_thread, keep_freed_memory
from mmlab.pipeline.messages import (
    ARENA,
    ECHO,
    OWNER,
    TORCH_SHM,
    EngineConfig,
    Failed,
    Ready,
    Welcome,
    number_of,
)
from mmlab.pipeline.serializers import INSECURE, make_serializer
from mmlab.pipeline.worker import TRACE_CHARS, Model, Worker, as_utf8
from mmlab.staging import PinnedBatcher
from mmlab.transports import open_transport, pieces
from mmlab.transports.arena import ArenaReceiver
from mmlab.transports.base import ReplySender, RequestReceiver
from mmlab.transports.limits import naming_the_limit

FRAME_SLACK = 64 << 20  # bytes that a message may have beyond its payload: header, alignment


def main(arguments: list[str]) -> int:
    """Runs an engine until it is told to stop; its exit code."""
    begun = time.perf_counter()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    end_with_any_thread()
    control = ControlSocket.from_fd(int(arguments[0]))
    config = control.receive()
    if not isinstance(config, EngineConfig):
        return 0  # the owner was gone before anything began
    try:
        # Before the watchdog, which reads all that comes later.
        arena = control.receive_descriptor() if config.transport == ARENA else None
        with naming_the_limit("start of an engine"):
            watchdog = Watchdog(control, config.owner_pid, Path(config.directory))
            serve(config, control, watchdog, begun, arena)
    except Exception as error:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr)
        failure = Failed(
            error=type(error).__name__,
            message=as_utf8(str(error)[:TRACE_CHARS]),
            trace=as_utf8(trace[-TRACE_CHARS:]),
        )
        with contextlib.suppress(TransportError):
            control.send(failure)
        return 1
    return 0


def serve(
    config: EngineConfig,
    control: ControlSocket,
    watchdog: Watchdog,
    begun: float,
    arena: int | None = None,
) -> None:
    """Build all parts, say Ready, and run the engine. `arena`: descriptor of its owner's arena."""
    start_s = {}
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    # Before the transport makes its threads.
    malloc_tuned = config.tune_malloc and keep_freed_memory()
    with PinnedBatcher(config.device, mode=config.staging) as batcher:
        pinned = _warm_up(batcher)
        start_s["staging"] = time.perf_counter() - begun
        worker = Worker(batcher, _load_model(config, batcher.device))
        start_s["model"] = time.perf_counter() - begun - start_s["staging"]
        with open_transport(config.transport) as transport:
            most = config.max_nbytes + FRAME_SLACK
            # A pickled request is many times its payload; a peer that may send one is trusted.
            limit = -1 if config.serializer in INSECURE else most
            together: pieces.PieceReceiver | None = None
            in_pieces = pieces.wanted(config.transport, malloc_tuned)
            receiver: RequestReceiver = transport.bind_requests(
                Path(config.directory), limit, pieces.MAX_QUEUED if in_pieces else 1000
            )
            if in_pieces:
                receiver = together = pieces.PieceReceiver(
                    receiver, limit, config.max_nbytes, number_of
                )
                together.admit(OWNER)
            replies = transport.bind_replies(Path(config.directory))
            borrowed: ArenaReceiver | None = None
            before_reply = None
            mapped = 0
            if arena is not None:
                receiver = borrowed = ArenaReceiver(receiver, number_of, batcher.pin)
                mapped = borrowed.join(OWNER, arena, returning(replies, OWNER))
                os.close(arena)
                before_reply = borrowed.settle
            elif config.transport == TORCH_SHM:
                from mmlab.bench.peers.torch_shm_receiver import SharedReceiver

                directory = Path(config.directory)
                receiver = SharedReceiver(receiver, directory, config.authkey)
            serializer = make_serializer(
                config.serializer,
                insecure_pickle=config.insecure_pickle,
                private=transport.private,
                max_nbytes=max(most, mapped + FRAME_SLACK),
            )
            engine = Engine(config, receiver, replies, serializer, worker, before_reply)
            guests = _guests(engine, watchdog, replies, borrowed, together)
            door = Door(Path(config.directory) / DOOR, guests)
            watchdog.on_stop(lambda: _stop(engine, door, guests))
            start_s["total"] = time.perf_counter() - begun
            ready = Ready(
                pid=os.getpid(),
                device=str(batcher.device),
                pinned=pinned,
                torch_threads=torch.get_num_threads(),
                malloc_tuned=malloc_tuned,
                requests_endpoint=receiver.endpoint,
                replies_endpoint=replies.endpoint,
                start_s=start_s,
                arena_nbytes=mapped,
                address=str(door.path),
            )
            door.open(Welcome(config=msgspec.structs.replace(config, authkey=b""), ready=ready))
            control.send(ready)
            engine.run()


def _guests(
    engine: Engine,
    watchdog: Watchdog,
    replies: ReplySender,
    borrowed: ArenaReceiver | None,
    together: pieces.PieceReceiver | None,
) -> Guests:
    """What an engine does for frontends that come and go."""

    def admit(number: int, max_nbytes: int, arena: int | None) -> int:
        size = 0
        if borrowed is not None and arena is not None:
            size = borrowed.join(number, arena, returning(replies, number))
        if together is not None:
            together.admit(number)
        engine.admit(number, max_nbytes)
        return size

    def leave(number: int) -> None:
        engine.drop(number)  # first: its messages that find no arena any more get no answer then
        if borrowed is not None:
            borrowed.leave(number)
        if together is not None:
            together.leave(number)

    return Guests(watchdog, admit, leave)


def _stop(engine: Engine, door: Door, guests: Guests) -> None:
    door.close()
    guests.close()
    engine.stop()


def _warm_up(batcher: PinnedBatcher) -> bool:
    """Stage one number, which creates the device's context; whether it went by pinned memory."""
    item = KwargsItem({"probe": FieldElem(torch.zeros(1), BatchedField())})
    staged = batcher.stage([("probe", item)]).synchronize()
    return staged.pinned


def _load_model(config: EngineConfig, device: torch.device) -> Model | None:
    if config.model == ECHO:
        return None
    from mmlab.gemma import load_engine

    return load_engine(config.model, device, config.seed)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking torch apart would cost the owner up to a second
