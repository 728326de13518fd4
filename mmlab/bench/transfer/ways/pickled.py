"""Items pickled the way vLLM did it before #16432: every view drags the whole batch along.

A message of n images has n times the payload. Each of its bytes is copied six times (torch writes
the storage into a buffer, pickle copies that into its own, the socket twice, pickle out of the
frame, torch out of pickle's bytes), and `stack` copies the payload itself once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmlab.bench.peers.pickle import dumps_items, loads_items
from mmlab.bench.transfer.ways.base import KEY, PlainReceiver, Sender
from mmlab.fields import KwargsItems


class Pickled(Sender):
    def send(self, message: object) -> None:
        assert isinstance(message, KwargsItems)
        self.push([dumps_items(message)])


class Unpickle(PlainReceiver):
    def batch(self, frames: Sequence[memoryview]) -> object:
        return loads_items(frames[0]).reduce()[KEY]


SENDER, RECEIVER = Pickled, Unpickle
