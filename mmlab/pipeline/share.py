"""Which part of a staged batch belongs to which request.

A batch may hold items of several requests, and may be padded to the largest of them. A `Share` is
one request's stretch of it: as the model takes it (`kwargs`), padded no further than to its own
largest, and item by item as it was sent (`items`). Neither depends on the neighbors in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from mmlab.fields import BatchedField, Entry, Field, FlatField
from mmlab.staging import StagedBatch


@dataclass(slots=True)
class _Cut:
    """How the elems of one key lie in the batch. Shapes are None for what is no tensor or array."""

    field: Field
    shapes: list[tuple[int, ...] | None]
    offsets: list[int]  # flat fields: where item i starts along the dim


@dataclass(slots=True)
class Share:
    """Items `start` to `stop` of a staged batch; all of them belong to one request."""

    modality: str
    kwargs: dict[str, object]  # key -> this request's part of the batch
    _cuts: dict[str, _Cut]
    _count: int

    def items(self) -> Iterator[dict[str, object]]:
        """key -> value of each item, in the shape it was sent in."""
        for index in range(self._count):
            yield {key: _elem(self.kwargs[key], cut, index) for key, cut in self._cuts.items()}


def shares(
    batches: Sequence[StagedBatch], pairs: Sequence[tuple[str, Entry]], owners: Sequence[int]
) -> list[list[Share]]:
    """For each request its shares, in item order. `owners[i]` is the request of `pairs[i]`."""
    found: list[list[Share]] = [[] for _ in range(max(owners, default=-1) + 1)]
    for batch in batches:
        cuts = {key: _cut(key, batch, pairs) for key in batch.kwargs}
        start = 0
        for stop in range(1, len(batch.indices) + 1):
            owner = owners[batch.indices[start]]
            if stop < len(batch.indices) and owners[batch.indices[stop]] == owner:
                continue
            found[owner].append(_share(batch, cuts, start, stop))
            start = stop
    return found


def _cut(key: str, batch: StagedBatch, pairs: Sequence[tuple[str, Entry]]) -> _Cut:
    shapes: list[tuple[int, ...] | None] = []
    extents: list[int] = []
    field: Field | None = None
    for index in batch.indices:
        item = pairs[index][1]
        assert item is not None
        elem = item[key]
        field, data = elem.field, elem.data
        shape = tuple(data.shape) if isinstance(data, torch.Tensor | np.ndarray) else None
        shapes.append(shape)
        if isinstance(field, FlatField):
            extents.append(len(data) if shape is None else shape[field.dim])  # type: ignore[arg-type]
    assert field is not None
    return _Cut(field, shapes, [0, *accumulate(extents)])


def _share(batch: StagedBatch, cuts: dict[str, _Cut], start: int, stop: int) -> Share:
    kwargs: dict[str, object] = {}
    mine: dict[str, _Cut] = {}
    for key, cut in cuts.items():
        value = batch.kwargs[key]
        offsets = cut.offsets[start : stop + 1] or [0]
        if isinstance(cut.field, BatchedField):
            mine_only = value[start:stop]  # type: ignore[index]
            kwargs[key] = _without_padding(mine_only, cut.shapes[start:stop])
        elif isinstance(cut.field, FlatField):
            kwargs[key] = _slice(value, cut.field.dim, offsets[0], offsets[-1])
        else:
            kwargs[key] = value
        mine[key] = _Cut(cut.field, cut.shapes[start:stop], [at - offsets[0] for at in offsets])
    return Share(batch.modality, kwargs, mine, stop - start)


def _without_padding(value: object, shapes: Sequence[tuple[int, ...] | None]) -> object:
    """Cut off what only larger items of other requests have made necessary."""
    if not isinstance(value, torch.Tensor) or not shapes or None in shapes:
        return value
    most = tuple(map(max, zip(*shapes, strict=True)))
    if most == tuple(value.shape[1:]):
        return value
    return value[(slice(None), *(slice(0, extent) for extent in most))]


def _elem(value: object, cut: _Cut, index: int) -> object:
    if isinstance(cut.field, BatchedField):
        value = value[index]  # type: ignore[index]
    elif isinstance(cut.field, FlatField):
        value = _slice(value, cut.field.dim, cut.offsets[index], cut.offsets[index + 1])
    shape = cut.shapes[index]
    if shape is None or not isinstance(value, torch.Tensor | np.ndarray):
        return value
    return value[tuple(slice(0, extent) for extent in shape)] if shape else value


def _slice(value: object, dim: int, start: int, stop: int) -> object:
    if isinstance(value, torch.Tensor):
        return value.narrow(dim, start, stop - start)
    if isinstance(value, np.ndarray):
        return value[(slice(None),) * (dim % value.ndim) + (slice(start, stop),)]
    return value[start:stop]  # type: ignore[index]
