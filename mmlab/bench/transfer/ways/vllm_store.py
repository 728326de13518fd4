"""An installed vLLM's shared-memory object store, as its multimodal cache uses it.

Copies: into the ring, out of it into the worker's memory, and `stack`. The ring has a name in
/dev/shm; Python's resource tracker, a process of its own, removes it should the sender be killed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from mmlab.bench.peers.vllm_store import StoreReader, StoreWriter
from mmlab.bench.transfer.packets import Case, Line, Ring
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender
from mmlab.bench.transfer.ways.shm import check_shm

_MESSAGES = 3  # that fit: two in flight, and the rest of a ring that is too short for another
_SLACK = 1 << 20  # headers of items


class IntoStore(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._store = StoreWriter()
        self.version = self._store.wire.version
        self._rings = 0

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        super().prepare(case, sources)
        nbytes = _MESSAGES * nbytes_of(case) + _SLACK
        check_shm(nbytes)
        self._rings += 1
        name = f"mmlab-store-{os.getpid()}-{self._rings}"
        self._store.create(name, nbytes)
        self._store.touch(write=True)
        self.outlet.line.tell(Ring(name, nbytes))

    def build(self, batch: torch.Tensor) -> object:
        return self._store.features(KEY, batch)

    def send(self, message: object) -> None:
        assert isinstance(message, list)
        self.push(self._store.dumps(message))

    def drop(self) -> None:
        super().drop()
        self._store.close()


class FromStore(PlainReceiver):
    def __init__(self) -> None:
        self._store = StoreReader()

    def prepare(self, case: Case, line: Line) -> None:
        ring = line.hear(Ring)
        self._store.attach(ring.name, ring.nbytes)
        self._store.touch(write=False)

    def batch(self, frames: Sequence[memoryview]) -> object:
        return self._store.loads(frames)[KEY]

    def drop(self) -> None:
        self._store.close()


SENDER, RECEIVER = IntoStore, FromStore
