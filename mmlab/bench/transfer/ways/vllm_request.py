"""A whole request of an installed vLLM's, from its encoder to the batch of its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmlab.bench.peers.vllm_request import VllmRequests
from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.ways.base import KEY, Outlet, PlainReceiver, Sender
from mmlab.bench.transfer.ways.request import tokens_of


class EncodeVllm(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._requests = VllmRequests()
        self.version = self._requests.version
        self._number = 0

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        super().prepare(case, sources)
        self._tokens = tokens_of(case)

    def build(self, batch: torch.Tensor) -> Any:
        self._number += 1
        return self._requests.build(KEY, batch, self._tokens, self._number)

    def expected(self, batch: torch.Tensor) -> object:
        return batch if len(batch) else self._tokens

    def send(self, message: Any) -> None:
        self.push(self._requests.dumps(message))


class DecodeVllm(PlainReceiver):
    def __init__(self) -> None:
        self._requests = VllmRequests()

    def batch(self, frames: Sequence[memoryview]) -> object:
        request = self._requests.loads(frames)
        if not request.mm_features:
            return list(request.prompt_token_ids)
        return self._requests.batch(request)[KEY]


SENDER, RECEIVER = EncodeVllm, DecodeVllm
