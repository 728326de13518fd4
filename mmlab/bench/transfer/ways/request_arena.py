"""A whole request of mmlab's with its payload in the arena; without payload it is one frame."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.arena import unpack
from mmlab.bench.transfer.packets import Case, Line
from mmlab.bench.transfer.ways.arena import FromArena, IntoArena
from mmlab.bench.transfer.ways.base import Outlet
from mmlab.bench.transfer.ways.request import EncodeRequest, result, tokens_of
from mmlab.pipeline.messages import Kind, Request
from mmlab.wire import Decoder, Encoder


class RequestIntoArena(IntoArena):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._plain = Encoder(size_threshold=None)
        self._request = EncodeRequest(outlet)

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        self._request.prepare(case, sources)
        super().prepare(case, sources)

    def build(self, batch: torch.Tensor) -> Request:
        return self._request.build(batch)

    def expected(self, batch: torch.Tensor) -> object:
        return self._request.expected(batch)

    def send(self, message: object) -> None:
        assert isinstance(message, Request)
        if message.mm is None:
            self.push(self._plain.encode(message, Kind.REQUEST, 1))
        else:
            super().send(message)


class RequestFromArena(FromArena):
    def __init__(self) -> None:
        super().__init__()
        self._decoder = Decoder(Request, max_nbytes=1 << 34)

    def prepare(self, case: Case, line: Line) -> None:
        self._tokens = tokens_of(case)
        super().prepare(case, line)

    def batch(self, frames: Sequence[memoryview]) -> object:
        views = frames[:1]
        if len(frames) > 1:
            assert self._reader is not None
            views = [frames[0], *self._reader.view(unpack(frames[1]))]
        return result(self._decoder.decode(views), self._tokens)


SENDER, RECEIVER = RequestIntoArena, RequestFromArena
