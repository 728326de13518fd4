"""An installed vLLM's `ShmTensorArena`, at its best: the batch in one tensor, its stub over ipc."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.bench.peers.vllm_arena import ArenaAttached, ArenaWriter
from mmlab.bench.transfer.packets import Case, Line, Place
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender


class IntoVllmArena(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._writer = ArenaWriter()

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        super().prepare(case, sources)
        self.outlet.line.tell(Place(*self._writer.create()))
        self._writer.touch(nbytes_of(case), write=True)

    def build(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {KEY: batch}

    def send(self, message: object) -> None:
        self.push(self._writer.dumps(message))

    def drop(self) -> None:
        super().drop()
        self._writer.close()


class FromVllmArena(PlainReceiver):
    def __init__(self) -> None:
        self._reader = ArenaAttached()

    def prepare(self, case: Case, line: Line) -> None:
        place = line.hear(Place)
        self._reader.attach((place.readers, place.slot_nbytes, place.slots, place.name))
        self._reader.touch(nbytes_of(case), write=False)

    def batch(self, frames: Sequence[memoryview]) -> object:
        found = self._reader.loads(frames)
        assert isinstance(found, dict)
        return found[KEY]

    def drop(self) -> None:
        self._reader.close()


SENDER, RECEIVER = IntoVllmArena, FromVllmArena
