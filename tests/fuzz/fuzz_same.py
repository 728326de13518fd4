"""A decoded object as plain comparable tuples: by type, dtype, shape and bytes, NaN and all."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import torch
from fuzz_messages import Reply
from fuzz_walk import raw

import mmlab

Form = tuple[object, ...]


def canonical(value: object, exact: bool = False) -> Form:
    """Equal for what is the same on the wire. RecursionError if it is nested very deep.

    `exact`: as inside items, where a tuple stays a tuple and an np.float64 no float; outside,
    msgspec writes both as what they are subclasses of.
    """
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return kind, str(value.dtype), tuple(value.shape), raw(value).numpy().tobytes()
    if isinstance(value, mmlab.KwargsItems):
        return (kind, *((m, *(canonical(e) for e in entries)) for m, entries in value.items()))
    if isinstance(value, mmlab.KwargsItem):
        return (kind, *((k, repr(e.field), canonical(e.data, True)) for k, e in value.items()))
    if isinstance(value, msgspec.Struct):
        return kind, *(canonical(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, Reply):
        return kind, *map(canonical, (value.tokens, value.tensors, value.inner))
    if isinstance(value, (np.ndarray, np.generic)) and (
        exact or not isinstance(value, (float, str, bytes))
    ):
        found = value != 0 if value.dtype.kind == "b" else value
        return kind, value.dtype.str, value.shape, found.tobytes()
    if isinstance(value, slice):
        return kind, *(canonical(v, True) for v in (value.start, value.stop, value.step))
    if isinstance(value, dict):
        return (kind, *((canonical(k, exact), canonical(v, exact)) for k, v in value.items()))
    if not exact and isinstance(value, (float, str, bytes)):
        kind = next(base.__name__ for base in (float, str, bytes) if isinstance(value, base))
    if isinstance(value, (list, tuple)):
        return (kind if exact else "list", *(canonical(v, exact) for v in value))
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    if isinstance(value, bytearray):
        return kind if exact else "bytes", bytes(value)
    return kind, value
