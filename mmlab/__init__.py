"""mmlab: a laboratory for how multimodal inputs travel from a serving frontend to the GPU."""

from __future__ import annotations

from mmlab.arena import Arena
from mmlab.errors import (
    BackpressureTimeout,
    BatchError,
    EncodeError,
    EngineError,
    MMLabError,
    TransportError,
    UsageError,
    WireError,
)
from mmlab.fields import (
    BatchedField,
    FieldConfig,
    FieldElem,
    FlatField,
    KwargsItem,
    KwargsItems,
    SharedField,
    batched,
    flat,
    shared,
)
from mmlab.pipeline import Pipeline, Reply
from mmlab.reducers import Batch, group
from mmlab.staging import PinnedBatcher, PinnedPool
from mmlab.strategies import Strategy, strategies
from mmlab.wire import Decoder, Encoder

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "BackpressureTimeout",
    "Batch",
    "BatchError",
    "BatchedField",
    "Decoder",
    "EncodeError",
    "Encoder",
    "EngineError",
    "FieldConfig",
    "FieldElem",
    "FlatField",
    "KwargsItem",
    "KwargsItems",
    "MMLabError",
    "PinnedBatcher",
    "PinnedPool",
    "Pipeline",
    "Reply",
    "SharedField",
    "Strategy",
    "TransportError",
    "UsageError",
    "WireError",
    "batched",
    "flat",
    "group",
    "shared",
    "strategies",
]
