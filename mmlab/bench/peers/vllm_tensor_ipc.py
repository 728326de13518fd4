"""An installed vLLM's `torch_shm`: its tensor sender and receiver, on a `multiprocessing.Queue`.

vLLM makes the queue before it spawns its engine. Here both processes exist already: each has a
queue of its own, joined by one pipe, and uses one end. A queue's feeder thread comes along.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from mmlab.bench.peers.vllm_wire import PeerItems, VllmWire
from mmlab.wire import Buffer


class TensorIpc:
    """Encoder and decoder whose tensors go through a queue. The process's authentication key must
    be the other's (`torch.multiprocessing` fetches descriptors with it)."""

    def __init__(self) -> None:
        self._wire = VllmWire()
        self._module = importlib.import_module("vllm.v1.engine.tensor_ipc")
        self._codec: Any = None
        self.version = self._wire.version

    @property
    def open(self) -> bool:
        """Whether `write` or `read` was called."""
        return self._codec is not None

    def write(self, end: Connection) -> None:
        """Tensors go into this end of a pipe."""
        sender = self._module.TensorIpcSender(_queue(writer=end))
        self._codec = self._wire.encoder(consumer=sender)

    def read(self, end: Connection) -> None:
        """Tensors come out of this end of a pipe."""
        receiver = self._module.TensorIpcReceiver(_queue(reader=end))
        self._codec = self._wire.decoder("items", receiver)

    def separate(self, key: str, parts: Sequence[Any]) -> PeerItems:
        return self._wire.separate(key, parts)

    def encode(self, items: PeerItems) -> Sequence[Buffer]:
        frames: Sequence[Buffer] = self._codec.encode(items)
        if len(frames) > 1:  # vLLM only warns, and sends the tensor in a frame
            raise RuntimeError("vLLM's tensor sender failed, its log says why")
        return frames

    def decode(self, frames: Sequence[Buffer]) -> Any:
        return self._codec.decode(frames)


def _queue(*, reader: Connection | None = None, writer: Connection | None = None) -> Any:
    """One end. "fork": its semaphores lose their names at once, and no tracker is started."""
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    if reader is not None:
        queue._reader.close()
        queue._reader = reader
        queue._sem = context.Semaphore(0)  # `get` releases what `put` took, in the other process
    if writer is not None:
        queue._writer.close()
        queue._writer = writer
    queue._reset()
    return queue
