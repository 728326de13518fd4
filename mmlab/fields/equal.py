"""Equality of values by type, dtype, shape and bytes, as sharing one value for many items needs."""

from __future__ import annotations

import numpy as np
import torch


def same_value(a: object, b: object) -> bool:
    """True if `a` and `b` would be the same on the wire. NaN equals NaN, 0.0 is not -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.data_ptr() == b.data_ptr() and a.stride() == b.stride():
            return True
        a, b = a.detach().contiguous(), b.detach().contiguous()
        return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return bool(a == b)
