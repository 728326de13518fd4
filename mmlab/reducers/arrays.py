"""The reducers' rules for numpy arrays: the same batches in fresh memory, byte order kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmlab.errors import BatchError
from mmlab.reducers.limits import check_padding, check_shape


def stack_arrays(
    key: str, arrays: Sequence[np.ndarray], pad: float | int | bool | None
) -> np.ndarray | list[np.ndarray]:
    """Equal shapes: their stack. Mixed shapes: a list in order, or one array padded with `pad`."""
    dtype = _one_dtype(key, arrays)
    if all(a.shape == arrays[0].shape for a in arrays):
        check_shape(key, shape := (len(arrays), *arrays[0].shape), dtype.itemsize)
        out = np.empty(shape, dtype)
        for i, a in enumerate(arrays):
            out[i] = a
        return out
    if pad is None:
        return list(arrays)
    try:
        filler = np.array(pad, dtype)
    except (ValueError, OverflowError):
        filler = None
    if filler is None or (dtype.kind in "biu" and filler != pad):
        raise BatchError(f"{key}: pad={pad!r} is no value of {dtype}: choose one that is")
    shape = (len(arrays), *_largest(key, arrays))
    check_padding(key, shape, dtype.itemsize, [a.nbytes for a in arrays])
    out = np.full(shape, filler, dtype)
    for i, a in enumerate(arrays):
        place: tuple[int | slice, ...] = (i, *(slice(0, extent) for extent in a.shape))
        out[place] = a
    return out


def join_arrays(key: str, arrays: Sequence[np.ndarray], dim: int) -> np.ndarray:
    """Their concatenation along `dim`; zero-padded where other dimensions differ."""
    dtype = _one_dtype(key, arrays)
    shape = _largest(key, arrays)
    shape[dim] = sum(a.shape[dim] for a in arrays)
    check_padding(key, shape, dtype.itemsize, [a.nbytes for a in arrays])
    out = np.zeros(shape, dtype)
    at = 0
    for a in arrays:
        place = [slice(0, extent) for extent in a.shape]
        place[dim] = slice(at, at + a.shape[dim])
        out[tuple(place)] = a
        at += a.shape[dim]
    return out


def _largest(key: str, arrays: Sequence[np.ndarray]) -> list[int]:
    if len({a.ndim for a in arrays}) > 1:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise BatchError(f"{key}: elems have different numbers of dimensions: {shapes}")
    return [max(extents) for extents in zip(*(a.shape for a in arrays), strict=True)]


def _one_dtype(key: str, arrays: Sequence[np.ndarray]) -> np.dtype[np.generic]:
    dtype: np.dtype[np.generic] = arrays[0].dtype
    for i, a in enumerate(arrays):
        if a.dtype != dtype:
            raise BatchError(
                f"{key}: elem {i} is numpy {a.dtype.str}, elem 0 is {dtype.str}: "
                "a batch has one dtype"
            )
    return dtype
