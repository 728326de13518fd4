"""An installed vLLM's request, from its frontend's encoder to its engine's decoder."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from mmlab.bench.peers.vllm_wire import VllmWire
from mmlab.wire import Buffer

IMAGE_TOKENS = 256  # an image's place in the prompt


def features_of(inputs: Any, key: str, batch: torch.Tensor, name: str) -> list[Any]:
    """vLLM's features of a batch of images; `inputs`: its module `vllm.multimodal.inputs`."""
    config = {key: inputs.MultiModalFieldConfig.batched("image")}
    items = inputs.MultiModalKwargsItems.from_hf_inputs({key: batch}, config)["image"]
    return [
        inputs.MultiModalFeatureSpec(
            data=item,
            modality="image",
            identifier=f"{name}-{i}",
            mm_position=inputs.PlaceholderRange(offset=i * IMAGE_TOKENS, length=IMAGE_TOKENS),
            mm_hash=f"{name}-{i}",
        )
        for i, item in enumerate(items)
    ]


class VllmRequests:
    """Requests to frames and back, as its client and its engine do it."""

    def __init__(self) -> None:
        self._wire = VllmWire()
        self.version = self._wire.version
        self._inputs = importlib.import_module("vllm.multimodal.inputs")
        engine = importlib.import_module("vllm.v1.engine")
        self._kind = engine.EngineCoreRequest
        self._add = engine.EngineCoreRequestType.ADD.value
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams
        self._encoder = self._wire.encoder()
        self._decoder = self._wire.decoder(self._kind)

    def build(self, key: str, batch: torch.Tensor, tokens: Sequence[int], number: int) -> Any:
        features = features_of(self._inputs, key, batch, str(number)) if len(batch) else None
        return self._kind(
            request_id=f"request-{number}",
            prompt_token_ids=list(tokens),
            mm_features=features,
            sampling_params=self._sampling(max_tokens=16),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def dumps(self, request: Any) -> list[Buffer]:
        return [self._add, *self._encoder.encode(request)]

    def loads(self, frames: Sequence[memoryview]) -> Any:
        """The request."""
        return self._decoder.decode(frames[1:])

    def batch(self, request: Any) -> Any:
        """Its items, put together as for the model."""
        items = {"image": [feature.data for feature in request.mm_features]}
        return self._inputs.MultiModalKwargsItems(items).get_data()
