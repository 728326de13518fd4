"""The arena: one copy into shared memory; the batch is a view of it in the other process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

import torch

from mmlab.arena import (
    Arena,
    ArenaReader,
    ArenaSink,
    Returned,
    receive_descriptor,
    send_descriptor,
    unpack,
)
from mmlab.bench.transfer.packets import Case, Line, Return
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways.base import KEY, Outlet, Sender
from mmlab.errors import TransportError
from mmlab.fields import KwargsItems
from mmlab.wire import Decoder, Encoder

SLACK_NBYTES = 1 << 20
TIMEOUT_S = 10.0


class IntoArena(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._encoder = Encoder()
        self._arena: Arena | None = None

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        self.arena = Arena.create(2 * nbytes_of(case) + SLACK_NBYTES)
        self.batches = sources

    @property
    def arena(self) -> Arena:
        assert self._arena is not None
        return self._arena

    @arena.setter
    def arena(self, arena: Arena) -> None:
        self._arena = arena
        send_descriptor(self.outlet.line.sock, arena.fileno())

    def send(self, message: object) -> None:
        sink = ArenaSink(self.arena, timeout=TIMEOUT_S)
        frames = self._encoder.encode(message, sink=sink)
        assert sink.lease is not None
        sink.lease.expect(1)
        self.push(frames)
        sink.lease.release()

    def returned(self, end: Return) -> None:
        if not self.arena.give_back(Returned(end.arena, end.generation, end.lease)):
            raise TransportError(f"arena: lease {end.lease} was returned and not expected")

    def drop(self) -> None:
        super().drop()
        if self._arena is not None:
            self._arena.close()
            self._arena = None


class FromArena:
    def __init__(self) -> None:
        self._decoder = Decoder(KwargsItems, max_nbytes=1 << 34)
        self._reader: ArenaReader | None = None
        self._ended: deque[Returned] = deque()

    def prepare(self, case: Case, line: Line) -> None:
        fd = receive_descriptor(line.sock)
        try:
            self._reader = ArenaReader(fd, self._ended.append)
        finally:
            os.close(fd)

    def batch(self, frames: Sequence[memoryview]) -> object:
        assert self._reader is not None
        views = self._reader.view(unpack(frames[1]))
        items = self._decoder.decode([frames[0], *views])
        assert isinstance(items, KwargsItems)
        return items.reduce()[KEY]

    def returns(self) -> list[Return]:
        ends = [self._ended.popleft() for _ in range(len(self._ended))]
        return [Return(end.arena, end.generation, end.lease) for end in ends]

    def drop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


SENDER, RECEIVER = IntoArena, FromArena
