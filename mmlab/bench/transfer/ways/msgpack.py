"""mmlab's wire over a socket, with the payload in frames of its own. Their views are the batch."""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender
from mmlab.fields import KwargsItems
from mmlab.wire import Decoder, Encoder


class Encode(Sender):
    def __init__(self, outlet: Outlet, encoder: Encoder | None = None) -> None:
        super().__init__(outlet)
        self._encoder = encoder or Encoder()

    def send(self, message: object) -> None:
        self.push(self._encoder.encode(message))


class Decode(PlainReceiver):
    def __init__(self) -> None:
        self._decoder = Decoder(KwargsItems, max_nbytes=1 << 34)

    def batch(self, frames: Sequence[memoryview]) -> object:
        items = self._decoder.decode(frames)
        assert isinstance(items, KwargsItems)
        return items.reduce()[KEY]


SENDER, RECEIVER = Encode, Decode
