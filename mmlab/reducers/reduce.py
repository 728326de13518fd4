"""One reducer for each field: elems of one key in, a `Reduction` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeGuard

import numpy as np
import torch

from mmlab.dtypes import copyable
from mmlab.errors import BatchError
from mmlab.fields.column import Column
from mmlab.fields.equal import same_value
from mmlab.fields.kinds import BatchedField, FlatField, SharedField
from mmlab.reducers.arrays import join_arrays, stack_arrays
from mmlab.reducers.limits import check_padding, check_shape
from mmlab.reducers.memory import joined_view, stacked_view
from mmlab.reducers.pad import Place, check_pad, common_shape, write_padded
from mmlab.reducers.reduction import Part, Reduction, of_tensor, to_write


class Span(NamedTuple):
    """Items `start` to `stop` of a column."""

    column: Column
    start: int
    stop: int


def reduce_batched(key: str, spans: Sequence[Span]) -> Reduction:
    """Equal shapes: their stack. Mixed shapes: a list in order, or a padded tensor (`pad=`)."""
    field = spans[0].column.field
    assert isinstance(field, BatchedField)
    if all(map(_is_whole, spans)):
        wholes = [column.span(a, b) for column, a, b in spans]
        if len(wholes) == 1:
            return _ready(key, wholes[0], field.keep_on_cpu)
        if _tensors(wholes):
            _check(key, wholes)
            if all(w.shape[1:] == wholes[0].shape[1:] for w in wholes):
                return _concatenation(key, wholes, 0, field.keep_on_cpu)
    elems = [elem for column, a, b in spans for elem in column.elems(a, b)]
    if elems and _arrays(elems):
        return Reduction(None, stack_arrays(key, elems, field.pad))
    if not elems or not _tensors(elems):
        return Reduction(None, elems)
    _check(key, elems)
    return _stack(key, elems, field)


def _is_whole(span: Span) -> bool:
    column, start, stop = span
    if column.parts is not None:
        return False
    return column.sliceable or (start, stop) == (0, column.size)


def _stack(key: str, elems: list[torch.Tensor], field: BatchedField) -> Reduction:
    first = elems[0]
    if all(e.shape == first.shape for e in elems):
        shape = (len(elems), *first.shape)
        check_shape(key, shape, first.dtype.itemsize)
        if len(elems) == 1:
            return of_tensor(key, first.unsqueeze(0), field.keep_on_cpu)
        view = stacked_view(elems)
        if view is not None:
            return of_tensor(key, view, field.keep_on_cpu)
        _check_devices(key, elems)
        return to_write(
            key,
            shape,
            first.dtype,
            field.keep_on_cpu,
            lambda out: _stack_into(elems, out),
            lambda: [((i,), _memory(elem)) for i, elem in enumerate(elems)],
        )
    if field.pad is None:
        return Reduction(None, elems)
    _check_devices(key, elems)
    pad = field.pad
    check_pad(key, pad, first.dtype)
    shape = (len(elems), *common_shape(key, elems))
    check_padding(key, shape, first.dtype.itemsize, [e.nbytes for e in elems])
    places: list[Place] = [
        (i, *(slice(0, extent) for extent in e.shape)) for i, e in enumerate(elems)
    ]
    return to_write(
        key,
        shape,
        first.dtype,
        field.keep_on_cpu,
        lambda out: write_padded(out, elems, places, pad),
    )


def _stack_into(elems: list[torch.Tensor], out: torch.Tensor) -> None:
    parts = [_memory(e) for e in elems]
    if parts[0].device == out.device:
        torch.stack(parts, out=copyable(out))
    else:
        copyable(out).copy_(torch.stack(parts))


def reduce_flat(key: str, spans: Sequence[Span]) -> Reduction:
    """The concatenation along the field's dim; zero-padded where other dimensions differ."""
    field = spans[0].column.field
    assert isinstance(field, FlatField)
    wholes: list[object] = []
    for column, a, b in spans:
        if column.parts is None:
            wholes.append(column.span(a, b))
        else:
            wholes.extend(column.elems(a, b))
    for whole in wholes:
        _check_dim(key, whole, field.dim)
    if len(wholes) == 1:
        return _ready(key, wholes[0], field.keep_on_cpu)
    if _tensors(wholes):
        _check(key, wholes)
        shape = common_shape(key, wholes)
        dim = field.dim % len(shape)
        if all(_rest(w.shape, dim) == _rest(wholes[0].shape, dim) for w in wholes):
            return _concatenation(key, wholes, dim, field.keep_on_cpu)
        return _padded(key, wholes, shape, dim, field.keep_on_cpu)
    if _arrays(wholes):
        return Reduction(None, join_arrays(key, wholes, field.dim))
    if all(isinstance(w, (list, tuple)) for w in wholes):
        return Reduction(None, [part for w in wholes for part in w])  # type: ignore[attr-defined]
    kinds = sorted({type(w).__name__ for w in wholes})
    raise BatchError(f"{key}: flat elems are {', '.join(kinds)}: wanted all tensors or all lists")


def _check_dim(key: str, whole: object, dim: int) -> None:
    ndim = whole.ndim if isinstance(whole, (torch.Tensor, np.ndarray)) else 1
    if not -ndim <= dim < ndim:
        raise BatchError(f"{key}: flat along dim {dim}, an elem has {ndim} dimensions")


def _padded(
    key: str, wholes: list[torch.Tensor], shape: list[int], dim: int, keep_on_cpu: bool
) -> Reduction:
    _check_devices(key, wholes)
    places: list[Place] = []
    at = 0
    for w in wholes:
        place = [slice(0, extent) for extent in w.shape]
        place[dim] = slice(at, at + w.shape[dim])
        places.append(tuple(place))
        at += w.shape[dim]
    shape[dim] = at
    check_padding(key, shape, wholes[0].dtype.itemsize, [w.nbytes for w in wholes])
    return to_write(
        key,
        tuple(shape),
        wholes[0].dtype,
        keep_on_cpu,
        lambda out: write_padded(out, wholes, places),
    )


def reduce_shared(key: str, spans: Sequence[Span]) -> Reduction:
    """The one value all items have in common, checked where items of several requests meet."""
    first = spans[0].column
    for column, _, _ in spans[1:]:
        if not same_value(column.whole, first.whole):
            raise BatchError(f"{key}: shared values of the items differ; they cannot share a batch")
    return _ready(key, first.whole, first.field.keep_on_cpu)


REDUCERS: dict[type, Callable[[str, Sequence[Span]], Reduction]] = {
    BatchedField: reduce_batched,
    FlatField: reduce_flat,
    SharedField: reduce_shared,
}


def _ready(key: str, value: object, keep_on_cpu: bool) -> Reduction:
    if isinstance(value, torch.Tensor) and _dense(value):
        return of_tensor(key, value, keep_on_cpu)
    return Reduction(None, value)  # handed on as it is


def _concatenation(key: str, wholes: list[torch.Tensor], dim: int, keep_on_cpu: bool) -> Reduction:
    shape = list(wholes[0].shape)
    shape[dim] = sum(w.shape[dim] for w in wholes)
    check_shape(key, shape, wholes[0].dtype.itemsize)
    view = joined_view(wholes, dim)
    if view is not None:
        return of_tensor(key, view, keep_on_cpu)
    _check_devices(key, wholes)
    return to_write(
        key,
        tuple(shape),
        wholes[0].dtype,
        keep_on_cpu,
        lambda out: None if out.numel() == 0 else _cat_into(wholes, dim, out),
        lambda: _slices(wholes, dim),
    )


def _cat_into(wholes: list[torch.Tensor], dim: int, out: torch.Tensor) -> None:
    parts = [_memory(w) for w in wholes]
    if parts[0].device == out.device:
        torch.cat(parts, dim, out=copyable(out))
    else:
        copyable(out).copy_(torch.cat(parts, dim))


def _slices(wholes: list[torch.Tensor], dim: int) -> list[Part]:
    ends = [*accumulate(w.shape[dim] for w in wholes)]
    before = (slice(None),) * dim
    return [
        ((*before, slice(end - w.shape[dim], end)), _memory(w))
        for w, end in zip(wholes, ends, strict=True)
    ]


def _memory(t: torch.Tensor) -> torch.Tensor:
    return copyable(t.detach() if t.requires_grad else t)


def _rest(shape: torch.Size, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _tensors(values: list[object]) -> TypeGuard[list[torch.Tensor]]:
    return all(isinstance(v, torch.Tensor) for v in values)


def _arrays(values: list[object]) -> TypeGuard[list[np.ndarray]]:
    return all(isinstance(v, np.ndarray) for v in values)


def _dense(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and not (t.is_quantized or t.is_nested)


def _check(key: str, tensors: list[torch.Tensor]) -> None:
    """BatchError unless the elems are of one dtype, and dense: torch crashes on some that are not.

    Elems of one dtype are all quantized or none is.
    """
    dtype = tensors[0].dtype
    if tensors[0].is_quantized:
        raise BatchError(
            f"{key}: elem 0 is a quantized tensor ({dtype}), which has a scale of its own: "
            "dequantize() it first"
        )
    for i, t in enumerate(tensors):
        if t.dtype != dtype:
            raise BatchError(
                f"{key}: elem {i} is {t.dtype}, elem 0 is {dtype}: a batch has one dtype"
            )
        if t.is_nested:
            raise BatchError(
                f"{key}: elem {i} is a nested tensor: pass a list of its parts (unbind()) "
                "or pad it first (to_padded_tensor())"
            )
        if t.layout is not torch.strided:
            raise BatchError(f"{key}: elem {i} is a {t.layout} tensor: make it dense first")


def _check_devices(key: str, tensors: list[torch.Tensor]) -> None:
    """BatchError unless the elems can be written into one tensor: one device, and values there."""
    if all(t.is_cpu for t in tensors):  # cheaper than the devices themselves
        return
    device = tensors[0].device
    if device.type == "meta":
        raise BatchError(
            f"{key}: elem 0 is a meta tensor, which has no values to batch: "
            "make it on the CPU first"
        )
    for i, t in enumerate(tensors):
        if t.device != device:
            raise BatchError(
                f"{key}: elem {i} is on {t.device}, elem 0 on {device}: "
                "a batch lies on one device, move them to the CPU first"
            )
