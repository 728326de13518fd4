"""An installed vLLM's encoder with everything inside the message, as with zero-copy switched off.

Copies: out of the tensor into a bytes object, by msgspec into the message, two of the socket, out
of the message into a tensor (its decoder clones what lies there), and `stack`.
"""

from __future__ import annotations

from mmlab.bench.transfer.ways.base import Outlet
from mmlab.bench.transfer.ways.vllm import VllmReceiver, VllmSender


class VllmInline(VllmSender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._encoder = self._wire.encoder(inline=True)


SENDER, RECEIVER = VllmInline, VllmReceiver
