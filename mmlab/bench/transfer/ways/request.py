"""A whole request of mmlab's: token ids and perhaps images, from its encoder to its batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.bench.transfer.packets import Case, Line
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender
from mmlab.errors import WireError
from mmlab.fields import KwargsItems, batched
from mmlab.pipeline.messages import Kind, Request
from mmlab.wire import Decoder, Encoder


def tokens_of(case: Case) -> list[int]:
    """Ids as a tokenizer's with 262 144 entries."""
    return [(i * 7919 + 2) % 262_144 for i in range(case.tokens)]


class EncodeRequest(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._encoder = Encoder()
        self._number = 0

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        super().prepare(case, sources)
        self._tokens = tokens_of(case)

    def build(self, batch: torch.Tensor) -> Request:
        self._number += 1
        items = None
        if len(batch):
            items = KwargsItems.from_processor({KEY: batch}, {KEY: batched("image")})
        return Request(list(self._tokens), 16, items)

    def expected(self, batch: torch.Tensor) -> object:
        return batch if len(batch) else self._tokens

    def send(self, message: object) -> None:
        self.push(self._encoder.encode(message, Kind.REQUEST, self._number))


class DecodeRequest(PlainReceiver):
    def __init__(self) -> None:
        self.decoder = Decoder(Request, max_nbytes=1 << 34)
        self.tokens: list[int] = []

    def prepare(self, case: Case, line: Line) -> None:
        self.tokens = tokens_of(case)

    def batch(self, frames: Sequence[memoryview]) -> object:
        return result(self.decoder.decode(frames), self.tokens)


def result(request: object, tokens: list[int]) -> object:
    """The batch of a request, or its token ids where it has none."""
    assert isinstance(request, Request)
    if len(request.token_ids) != len(tokens):
        raise WireError(f"request: got {len(request.token_ids)} token ids, wanted {len(tokens)}")
    return request.token_ids if request.mm is None else request.mm.reduce()[KEY]


SENDER, RECEIVER = EncodeRequest, DecodeRequest
