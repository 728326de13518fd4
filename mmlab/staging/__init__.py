"""Staging: bounded page-locked memory, and the batcher that fills it and copies from it."""

from mmlab.staging.batcher import DEFAULT_POOL_NBYTES, MODES, PinnedBatcher
from mmlab.staging.device import Completion, Device, Event, HostDevice, Stream, resolve_device
from mmlab.staging.memory import Buffer, PinningWarning
from mmlab.staging.pool import PinnedPool, PoolStats
from mmlab.staging.staged import Staged, StagedBatch

__all__ = [
    "DEFAULT_POOL_NBYTES",
    "MODES",
    "Buffer",
    "Completion",
    "Device",
    "Event",
    "HostDevice",
    "PinnedBatcher",
    "PinnedPool",
    "PinningWarning",
    "PoolStats",
    "Staged",
    "StagedBatch",
    "Stream",
    "resolve_device",
]
