"""An installed vLLM's own encoder, decoder and stack, over the same sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from mmlab.bench.peers.vllm_wire import PeerItems, VllmWire
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender


class VllmSender(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._wire = VllmWire()
        self._encoder = self._wire.encoder()
        self.version = self._wire.version

    def build(self, batch: torch.Tensor) -> PeerItems:
        return self._wire.batched(KEY, batch)

    def send(self, message: object) -> None:
        self.push(self._encoder.encode(message))


class VllmReceiver(PlainReceiver):
    def __init__(self) -> None:
        self._decoder = VllmWire().decoder("items")

    def batch(self, frames: Sequence[memoryview]) -> object:
        items = cast(PeerItems, self._decoder.decode(frames))
        return cast("dict[str, object]", items.get_data())[KEY]


SENDER, RECEIVER = VllmSender, VllmReceiver
