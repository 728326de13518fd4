"""Padding: elems of different shapes written into one tensor, each into its own corner."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.dtypes import copyable, empty
from mmlab.errors import BatchError

Place = tuple[int | slice, ...]


def common_shape(key: str, tensors: Sequence[torch.Tensor]) -> list[int]:
    """The largest extent in every dimension. BatchError if their numbers of dimensions differ."""
    if len({t.ndim for t in tensors}) > 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise BatchError(f"{key}: cannot pad elems of different dimensions to one shape: {shapes}")
    return [max(extents) for extents in zip(*(t.shape for t in tensors), strict=True)]


def check_pad(key: str, pad: float | int | bool, dtype: torch.dtype) -> None:
    """BatchError if `dtype` cannot hold `pad` (a rounded float is held)."""
    if pad == 0:
        return  # zeroing works for every dtype
    try:
        # two elements: torch fills one in another way, which lets more values pass
        kept = empty((2,), dtype).fill_(pad)[0].item()
        held = dtype.is_floating_point or dtype.is_complex or kept == pad
    except (RuntimeError, TypeError, OverflowError):
        held = False
    if not held:
        raise BatchError(f"{key}: pad={pad!r} is no value of {dtype}: choose one that is")


def write_padded(
    out: torch.Tensor, tensors: Sequence[torch.Tensor], places: Sequence[Place], pad: float = 0
) -> None:
    """Fill `out` with `pad` and write each tensor to its place."""
    if pad == 0:
        copyable(out).zero_()  # an empty tensor of any other dtype has no kernel for it
    else:
        out.fill_(pad)
    out = copyable(out)
    for tensor, place in zip(tensors, places, strict=True):
        out[place].copy_(copyable(tensor.detach()))
