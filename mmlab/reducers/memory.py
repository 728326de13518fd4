"""Does a batch exist already? Tensors that lie side by side in one storage are found by address."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def stacked_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """(n, *shape) over `n` equal, dense, neighbouring views of one storage, else None."""
    first = tensors[0]
    if first.layout is not torch.strided or not first.is_contiguous() or not _plain(first):
        return None
    dtype, shape, step = first.dtype, first.shape, first.numel()
    at = first.storage_offset()
    itemsize = dtype.itemsize
    base = first.data_ptr() - at * itemsize
    if step == 0:
        return None
    for t in tensors:
        if (
            t.storage_offset() != at
            or t.dtype != dtype
            or t.shape != shape
            or not t.is_contiguous()
            or t.data_ptr() != base + at * itemsize
            or not _plain(t)
        ):
            return None
        at += step
    return _strided(first, (len(tensors), *shape), (step, *first.stride()))


def joined_view(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor | None:
    """The concatenation along `dim` of neighbouring views of one storage, else None.

    The tensors must have equal strides and follow each other along `dim`, as the pieces of one
    tensor that was cut along it do; the result is then that tensor, whatever its strides.
    """
    first = tensors[0]
    if first.layout is not torch.strided:
        return None
    ndim = first.ndim
    if not -ndim <= dim < ndim:
        return None
    dim %= ndim
    dtype, stride = first.dtype, first.stride()
    rest = first.shape[:dim] + first.shape[dim + 1 :]
    at = first.storage_offset()
    itemsize = dtype.itemsize
    base = first.data_ptr() - at * itemsize
    total = 0
    for t in tensors:
        shape = t.shape
        if (
            t.dtype != dtype
            or t.ndim != ndim
            or shape[:dim] + shape[dim + 1 :] != rest
            or not _plain(t)
        ):
            return None
        extent = shape[dim]
        if extent == 0:
            continue  # contributes nothing, wherever it lies
        if total == 0:
            at = t.storage_offset()
            if t.data_ptr() - at * itemsize != base:
                return None
            stride, first = t.stride(), t
        elif (
            t.stride() != stride or t.storage_offset() != at or t.data_ptr() != base + at * itemsize
        ):
            return None
        total += extent
        at += extent * stride[dim]
    if total == 0:
        return None
    return _strided(first, (*rest[:dim], total, *rest[dim:]), stride)


def _plain(t: torch.Tensor) -> bool:
    """Whether the memory holds the value: no conjugate or negative that is yet to be applied."""
    return not (t.requires_grad or t.is_neg() or t.is_conj())


def _strided(
    first: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor | None:
    try:
        return first.as_strided(shape, stride, first.storage_offset())
    except RuntimeError:  # equal base addresses, but this storage ends earlier: not one storage
        return None
