"""An installed vLLM's torch_shm: tensors move to torch's shared memory, and through a queue.

Copies: one into the shared memory, which holds a whole batch, and `stack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import cast

import torch

from mmlab.arena import receive_descriptor, send_descriptor
from mmlab.bench.peers.vllm_tensor_ipc import TensorIpc
from mmlab.bench.peers.vllm_wire import PeerItems
from mmlab.bench.transfer.packets import Case, Line
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender
from mmlab.bench.transfer.ways.shm import check_shm
from mmlab.bench.transfer.ways.torch_shm import IN_FLIGHT, alias, lend_key, take_key


class VllmShare(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._ipc = TensorIpc()
        self.version = self._ipc.version

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        check_shm(IN_FLIGHT * nbytes_of(case))
        super().prepare(case, sources)
        if not self._ipc.open:
            lend_key(self.outlet)
            reader, writer = Pipe(duplex=False)
            with reader:
                send_descriptor(self.outlet.line.sock, reader.fileno())
            self._ipc.write(writer)

    def build(self, batch: torch.Tensor) -> PeerItems:
        return self._ipc.separate(KEY, list(alias(batch)))

    def send(self, message: object) -> None:
        self.push(self._ipc.encode(cast(PeerItems, message)))


class VllmAttach(PlainReceiver):
    def __init__(self) -> None:
        self._ipc = TensorIpc()

    def prepare(self, case: Case, line: Line) -> None:
        if not self._ipc.open:
            take_key(line)
            self._ipc.read(Connection(receive_descriptor(line.sock), writable=False))

    def batch(self, frames: Sequence[memoryview]) -> object:
        return self._ipc.decode(frames).get_data()[KEY]


SENDER, RECEIVER = VllmShare, VllmAttach
