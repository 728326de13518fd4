"""One reducer for each field: elems of one key in, a `Reduction` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
import torch

from mmlab.errors import BatchError
from mmlab.fields.column import Column
from mmlab.fields.equal import same_value
from mmlab.fields.kinds import BatchedField, FlatField, SharedField
from mmlab.reducers.memory import joined_view, stacked_view
from mmlab.reducers.reduction import Reduction, of_tensor, to_write


class Span(NamedTuple):
    """Items `start` to `stop` of a column."""

    column: Column
    start: int
    stop: int


def reduce_batched(key: str, spans: Sequence[Span]) -> Reduction:
    """Equal shapes: their stack. Mixed shapes: a list in order, or a padded tensor (`pad=`)."""
    field = spans[0].column.field
    assert isinstance(field, BatchedField)
    if all(span.column.parts is None for span in spans):
        wholes = [column.span(a, b) for column, a, b in spans]
        if len(wholes) == 1:
            return _ready(key, wholes[0], field.keep_on_cpu)
        if _tensors(wholes) and _one_dtype(key, wholes):
            if all(w.shape[1:] == wholes[0].shape[1:] for w in wholes):
                return _concatenation(key, wholes, 0, field.keep_on_cpu)
        elif _arrays(wholes) and all(
            w.shape[1:] == wholes[0].shape[1:] and w.dtype == wholes[0].dtype for w in wholes
        ):
            return Reduction(None, np.concatenate(wholes))
    elems = [elem for column, a, b in spans for elem in column.elems(a, b)]
    if not elems:
        return Reduction(None, [])
    if _arrays(elems):
        if all(e.shape == elems[0].shape and e.dtype == elems[0].dtype for e in elems):
            return Reduction(None, np.stack(elems))
        return Reduction(None, elems)
    if not _tensors(elems):
        return Reduction(None, elems)
    _one_dtype(key, elems)
    return _stack(key, elems, field)


def _stack(key: str, elems: list[torch.Tensor], field: BatchedField) -> Reduction:
    first = elems[0]
    if all(e.shape == first.shape for e in elems):
        if len(elems) == 1:
            return of_tensor(key, first.unsqueeze(0), field.keep_on_cpu)
        view = stacked_view(elems)
        if view is not None:
            return of_tensor(key, view, field.keep_on_cpu)
        shape = (len(elems), *first.shape)
        return to_write(
            key, shape, first.dtype, field.keep_on_cpu, lambda out: _stack_into(elems, out)
        )
    if field.pad is None:
        return Reduction(None, elems)
    if any(e.ndim != first.ndim for e in elems):
        shapes = ", ".join(str(tuple(e.shape)) for e in elems)
        raise BatchError(f"{key}: cannot pad elems of different dimensions to one shape: {shapes}")
    shape = (len(elems), *(max(extents) for extents in zip(*(e.shape for e in elems), strict=True)))
    pad = field.pad

    def write(out: torch.Tensor) -> None:
        out.fill_(pad)
        for i, e in enumerate(elems):
            place: list[int | slice] = [i, *(slice(0, extent) for extent in e.shape)]
            out[tuple(place)].copy_(e.detach())

    return to_write(key, shape, first.dtype, field.keep_on_cpu, write)


def _stack_into(elems: list[torch.Tensor], out: torch.Tensor) -> None:
    torch.stack([e.detach() if e.requires_grad else e for e in elems], out=out)


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
    if len(wholes) == 1:
        return _ready(key, wholes[0], field.keep_on_cpu)
    if _tensors(wholes) and _one_dtype(key, wholes):
        ndims = {w.ndim for w in wholes}
        if len(ndims) != 1:
            raise BatchError(
                f"{key}: flat elems have {sorted(ndims)} dimensions, wanted one number"
            )
        dim = field.dim % wholes[0].ndim
        if all(_rest(w.shape, dim) == _rest(wholes[0].shape, dim) for w in wholes):
            return _concatenation(key, wholes, dim, field.keep_on_cpu)
        return _padded(key, wholes, dim, field.keep_on_cpu)
    if _arrays(wholes):
        return Reduction(None, np.concatenate(wholes, axis=field.dim))
    if all(isinstance(w, (list, tuple)) for w in wholes):
        return Reduction(None, [part for w in wholes for part in w])  # type: ignore[attr-defined]
    kinds = sorted({type(w).__name__ for w in wholes})
    raise BatchError(f"{key}: flat elems are {', '.join(kinds)}: wanted all tensors or all lists")


def _padded(key: str, wholes: list[torch.Tensor], dim: int, keep_on_cpu: bool) -> Reduction:
    shape = [max(extents) for extents in zip(*(w.shape for w in wholes), strict=True)]
    shape[dim] = sum(w.shape[dim] for w in wholes)

    def write(out: torch.Tensor) -> None:
        out.zero_()
        at = 0
        for w in wholes:
            place = [slice(0, extent) for extent in w.shape]
            place[dim] = slice(at, at + w.shape[dim])
            out[tuple(place)].copy_(w.detach())
            at += w.shape[dim]

    return to_write(key, tuple(shape), wholes[0].dtype, keep_on_cpu, write)


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
    if isinstance(value, torch.Tensor):
        return of_tensor(key, value, keep_on_cpu)
    return Reduction(None, value)


def _concatenation(key: str, wholes: list[torch.Tensor], dim: int, keep_on_cpu: bool) -> Reduction:
    view = joined_view(wholes, dim)
    if view is not None:
        return of_tensor(key, view, keep_on_cpu)
    shape = list(wholes[0].shape)
    shape[dim] = sum(w.shape[dim] for w in wholes)
    parts = [w.detach() if w.requires_grad else w for w in wholes]
    return to_write(
        key,
        tuple(shape),
        parts[0].dtype,
        keep_on_cpu,
        lambda out: None if out.numel() == 0 else _cat_into(parts, dim, out),
    )


def _cat_into(parts: list[torch.Tensor], dim: int, out: torch.Tensor) -> None:
    torch.cat(parts, dim, out=out)


def _rest(shape: torch.Size, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _tensors(values: list[object]) -> TypeGuard[list[torch.Tensor]]:
    return all(isinstance(v, torch.Tensor) for v in values)


def _arrays(values: list[object]) -> TypeGuard[list[np.ndarray]]:
    return all(isinstance(v, np.ndarray) for v in values)


def _one_dtype(key: str, tensors: list[torch.Tensor]) -> bool:
    dtype = tensors[0].dtype
    for i, t in enumerate(tensors):
        if t.dtype != dtype:
            raise BatchError(
                f"{key}: elem {i} is {t.dtype}, elem 0 is {dtype}: a batch has one dtype"
            )
    return True
