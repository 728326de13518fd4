"""The peer of the wire: the encoder and decoder of an installed vLLM, on a CPU.

Needs vLLM and what it imports (`make peer`). Nothing here stands in for it: where vLLM is missing
there is no peer, and tables have no column for it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import warnings
from collections.abc import Sequence
from typing import Protocol, cast

import torch

from mmlab.wire import Buffer


class PeerItems(Protocol):
    """vLLM's MultiModalKwargsItems."""

    def get_data(self) -> object: ...


class _Codec(Protocol):
    def encode(self, obj: object) -> Sequence[Buffer]: ...
    def decode(self, bufs: Sequence[Buffer]) -> object: ...


def available() -> bool:
    """True if an installed vLLM can be found."""
    return importlib.util.find_spec("vllm") is not None


class VllmWire:
    """vLLM's MsgpackEncoder and MsgpackDecoder, and its items for the same outputs and fields."""

    def __init__(self) -> None:
        logging.getLogger("vllm").setLevel(logging.ERROR)
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # torch logs what vLLM still imports under old names
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._serial = importlib.import_module("vllm.v1.serial_utils")
                self._inputs = importlib.import_module("vllm.multimodal.inputs")
        finally:
            logging.disable(before)
        self.version = importlib.metadata.version("vllm")

    def encoder(self, inline: bool = False, consumer: object = None) -> _Codec:
        """A new encoder; `inline`: everything inside the message, as with zero-copy disabled;
        `consumer`: who takes tensors by another way (vLLM's `TensorIpcSender`)."""
        threshold = (1 << 62) if inline else 256
        encoder = self._serial.MsgpackEncoder(threshold, oob_tensor_consumer=consumer)
        return cast(_Codec, encoder)

    def decoder(self, kind: object = None, provider: object = None) -> _Codec:
        """A new decoder for `kind`: a type, "items" (its own kwargs items), or nothing.
        `provider`: who has the tensors that a consumer took (vLLM's `TensorIpcReceiver`)."""
        if kind == "items":
            kind = self._inputs.MultiModalKwargsItems
        return cast(_Codec, self._serial.MsgpackDecoder(kind, oob_tensor_provider=provider))

    def batched(self, key: str, data: torch.Tensor) -> PeerItems:
        """Items of one batched key."""
        return self._items(key, data, self._inputs.MultiModalFieldConfig.batched("image"))

    def separate(self, key: str, parts: Sequence[torch.Tensor]) -> PeerItems:
        """Items of one batched key, each with a tensor of its own."""
        inputs, field = self._inputs, self._inputs.MultiModalBatchedField()
        items = [
            inputs.MultiModalKwargsItem({key: inputs.MultiModalFieldElem(data=part, field=field)})
            for part in parts
        ]
        return cast(PeerItems, inputs.MultiModalKwargsItems({"image": items}))

    def flat(self, key: str, data: torch.Tensor, sizes: Sequence[int]) -> PeerItems:
        """Items of one flat key."""
        config = self._inputs.MultiModalFieldConfig.flat_from_sizes("image", torch.tensor(sizes))
        return self._items(key, data, config)

    def shared(self, key: str, data: torch.Tensor, count: int) -> PeerItems:
        """Items of one shared key."""
        return self._items(key, data, self._inputs.MultiModalFieldConfig.shared("image", count))

    def _items(self, key: str, data: torch.Tensor, config: object) -> PeerItems:
        kind = self._inputs.MultiModalKwargsItems
        return cast(PeerItems, kind.from_hf_inputs({key: data}, {key: config}))
