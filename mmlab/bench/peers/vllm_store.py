"""An installed vLLM's shared-memory object store, with the two caches that use it, on a CPU.

The frontend's cache writes an item into a ring buffer and hands over its place; the worker's reads
it there, into memory of its own. The configuration that the caches read is stood in for: two sizes
and the number of readers. vLLM's ring has 4 GiB; here it has `nbytes`, so that it goes round soon
and its pages are warm, as after some hours of service.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mmlab.bench.peers.vllm_request import features_of
from mmlab.bench.peers.vllm_wire import VllmWire
from mmlab.wire import Buffer

OBJECT_NBYTES = 128 << 20  # the largest item, vLLM's default
_NAME = "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"


class _Store:
    def __init__(self) -> None:
        self.wire = VllmWire()
        self.module = importlib.import_module("vllm.multimodal.cache.shm")
        self.inputs = importlib.import_module("vllm.multimodal.inputs")
        self.cache: Any = None

    def touch(self, *, write: bool) -> None:
        """Have all of the ring there."""
        memory = np.frombuffer(self.cache._shm_cache.ring_buffer.shared_memory.buf, np.uint8)
        if write:  # behind the secret at its beginning
            memory[4096::4096] = 1
        else:
            memory[::4096].sum()

    def close(self) -> None:
        if self.cache is not None:
            self.cache._shm_cache.close()
            self.cache = None


class StoreWriter(_Store):
    """The frontend's side."""

    def create(self, name: str, nbytes: int) -> None:
        os.environ[_NAME] = name
        self.cache = self.module.ShmObjectStoreSenderCache(_config(nbytes))
        self.encoder = self.wire.encoder()
        self._made = 0

    def features(self, key: str, batch: torch.Tensor) -> list[Any]:
        """Items, each with a hash that no item before had."""
        self._made += 1
        return features_of(self.inputs, key, batch, str(self._made))

    def dumps(self, features: Sequence[Any]) -> Sequence[Buffer]:
        """Into the store, and the message that names their places."""
        for feature in features:
            item, _ = self.cache.get_and_update_item((feature.data, []), feature.mm_hash)
            if item is feature.data:
                raise RuntimeError(f"vLLM's store does not take {feature.mm_hash}: too large, full")
            feature.data = item
        return self.encoder.encode(features)


class StoreReader(_Store):
    """A worker's side."""

    def attach(self, name: str, nbytes: int) -> None:
        os.environ[_NAME] = name
        lock = multiprocessing.get_context("fork").Lock()
        self.cache = self.module.ShmObjectStoreReceiverCache(_config(nbytes), lock)
        serde = self.cache._shm_cache.ser_de
        for decoder in (serde.mm_decoder, serde.tensor_decoder):
            # vLLM pins what it reads wherever its platform is not known to have no GPU; where there
            # is none it clones, in the same line.
            decoder.pin_tensors = decoder.pin_tensors and torch.cuda.is_available()
        self.decoder = self.wire.decoder(list[self.inputs.MultiModalFeatureSpec])  # type: ignore[name-defined]

    def loads(self, frames: Sequence[memoryview]) -> Any:
        """Keyword arguments of the model."""
        features: Any = self.decoder.decode(frames)
        self.cache.get_and_update_features(features)
        items = {"image": [feature.data for feature in features]}
        return self.inputs.MultiModalKwargsItems(items).get_data()


def _config(nbytes: int) -> Any:
    sizes = SimpleNamespace(
        mm_processor_cache_gb=nbytes / (1 << 30),
        mm_shm_cache_max_object_size_mb=OBJECT_NBYTES >> 20,
    )
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=1),
        model_config=SimpleNamespace(get_multimodal_config=lambda: sizes),
    )
