"""Equality of values by type, dtype, shape and bytes, as sharing one value for many items needs."""

from __future__ import annotations

from struct import pack

import numpy as np
import torch

from mmlab.dtypes import as_bytes, copyable


def same_value(a: object, b: object) -> bool:
    """True if `a` and `b` would be the same on the wire. NaN equals NaN, 0.0 is not -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if not (_readable(a) and _readable(b)):
            return False
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return _place(a) == _place(b) or torch.equal(_bytes(a), _bytes(b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():  # NaN is a key that is not found again
            return same_value(list(a.items()), list(b.items()))
        return all(same_value(v, b[k]) for k, v in a.items())
    if isinstance(a, slice) and isinstance(b, slice):
        return same_value((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, np.generic) and isinstance(b, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float):
        return pack("<d", a) == pack("<d", b)
    return bool(a == b)


def _readable(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes are its value: what the wire carries, in short."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return as_bytes(copyable(tensor.detach().resolve_conj().resolve_neg()).contiguous())
