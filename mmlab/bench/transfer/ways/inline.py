"""mmlab's wire over a socket, with the payload inside the message."""

from __future__ import annotations

from mmlab.bench.transfer.ways.base import Outlet
from mmlab.bench.transfer.ways.msgpack import Decode, Encode
from mmlab.wire import Encoder


class EncodeInline(Encode):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet, Encoder(size_threshold=None))


SENDER, RECEIVER = EncodeInline, Decode
