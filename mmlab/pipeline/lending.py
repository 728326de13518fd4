"""The frontend's side of the arena: payload is written there once, lent to the engine, taken back.

One lease a request. It is in use here until the message is sent, and at the engine until that has
given it back, or has died. What the caller has made in the arena itself is lent where it lies.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from mmlab.arena import Arena, ArenaSink, Lease, Returned
from mmlab.errors import TransportError
from mmlab.pipeline.messages import Kind, Request
from mmlab.pipeline.outgoing import LITTLE, Outgoing
from mmlab.pipeline.serializers import SIZE_THRESHOLD
from mmlab.transports import Buffer
from mmlab.wire import Encoder

ENGINE: Final = 0  # the engine's number among the arena's readers


def arena_nbytes(max_nbytes: int) -> int:
    """The size of a pipeline's arena: its budget, and an eighth for alignment and gaps."""
    return max_nbytes + max_nbytes // 8


class Lender(Outgoing):
    """Owns the arena of a pipeline. TransportError, with needed and free bytes: it does not fit."""

    def __init__(self, max_nbytes: int) -> None:
        self._arena = Arena(arena_nbytes(max_nbytes))
        self._plain = Encoder(size_threshold=None)
        self._encoder = Encoder(size_threshold=SIZE_THRESHOLD)
        self._lock = threading.Lock()
        self._over = False
        self._copied_nbytes = 0  # into the arena, so far

    @property
    def arena(self) -> Arena:
        return self._arena

    def dumps(
        self, request: Request, request_id: int, nbytes: int, timeout: float | None
    ) -> tuple[list[Buffer], Lease | None]:
        """Frames of a request of `nbytes` payload bytes, and the lease of what lies in the arena.

        Waits up to `timeout` seconds for room there: BackpressureTimeout. EncodeError for what
        cannot be carried, UsageError for what the whole arena does not hold.
        """
        if nbytes < LITTLE:
            return self._plain.encode(request, Kind.REQUEST, request_id), None
        sink = ArenaSink(self.arena, timeout=timeout)
        try:
            frames = self._encoder.encode(request, Kind.REQUEST, request_id, sink)
        except BaseException:
            if sink.lease is not None:
                sink.lease.release()
            raise
        with self._lock:
            self._copied_nbytes += sink.copied_nbytes
        return frames, sink.lease

    @contextlib.contextmanager
    def lending(self, lease: Lease | None) -> Iterator[None]:
        """Within it the message is sent: the engine has the lease then, unless sending fails.

        After Ctrl-C nobody knows whether it went out: then the lease is left to the engine.
        """
        if lease is None:
            yield
            return
        with lease:
            with self._lock:  # `close` forgets the engine: nothing is lent to it after that
                if self._over:
                    raise TransportError("arena: it is closed, nothing more is lent")
                lease.expect([ENGINE])
            try:
                yield
            except Exception:
                ended = Returned(self.arena.id, lease.generation, lease.number)
                self.arena.give_back(ended, ENGINE)
                raise

    def take_back(self, returned: Iterable[Returned]) -> None:
        """What the engine has no view of any more."""
        for ended in returned:
            self.arena.give_back(ended, ENGINE)

    def stats(self) -> dict[str, float]:
        """The arena's, and what was copied into it, each name with `arena_` before it."""
        found = msgspec.structs.asdict(self.arena.stats())
        found["copied_nbytes"] = self._copied_nbytes
        return {f"arena_{name}": value for name, value in found.items()}

    def close(self) -> None:
        """The engine has ended, or will: take back what it has, end all waits. Idempotent.

        Tensors that the caller holds stay valid.
        """
        with self._lock:
            self._over = True
            self.arena.forget(ENGINE)
            self.arena.close()
