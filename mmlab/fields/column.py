"""Columns: all elems of one key, held the way they arrived.

A processor hands over whole batches, a message brings whole batches, and a reducer wants whole
batches. So a column keeps the whole where there is one and cuts an elem out only when somebody
asks for it; only items that were built one by one are kept as separate parts. A `Block` is a run
of items that have the same keys: a small table with one column per key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from mmlab.fields.kinds import BatchedField, Field, FlatField, SharedField

Value = object  # a nested tensor: a tensor, an array, a number, or (nested) lists of these


class Signature(NamedTuple):
    """What columns must agree in before their items can share a batch."""

    field: Field
    dtype: object  # what `kind_of` says of the whole, or of one part


class Parts(Sequence[Value]):
    """Parts that need not be made to know of what kind they are."""

    __slots__ = ()

    @abstractmethod
    def kinds(self) -> list[object]:
        """What `kind_of` says of every part."""


def kind_of(value: Value) -> object:
    """The dtype of a tensor, array or numpy scalar; else the Python type."""
    dtype = getattr(value, "dtype", None)
    return type(value) if dtype is None else dtype


class Column:
    """The elems of one key for `size` items: one `whole`, or one of `parts` per item."""

    __slots__ = ("field", "offsets", "parts", "size", "whole")

    def __init__(
        self,
        field: Field,
        size: int,
        whole: Value = None,
        parts: Sequence[Value] | None = None,
        offsets: Sequence[int] | None = None,  # flat wholes: size + 1 positions along the dim
    ) -> None:
        self.field = field
        self.size = size
        self.whole = whole
        self.parts = parts
        self.offsets = offsets

    @classmethod
    def flat(cls, field: FlatField, whole: Value, sizes: Sequence[int]) -> Column:
        """A flat column of `len(sizes)` items that lie behind each other in `whole`."""
        return cls(field, len(sizes), whole, offsets=(0, *accumulate(sizes)))

    @property
    def sizes(self) -> list[int]:
        """Extents along the dim of a flat whole, one per item."""
        offsets = self.offsets or ()
        return [b - a for a, b in pairwise(offsets)]

    @property
    def sliceable(self) -> bool:
        """Whether a run of the elems is a part of the whole: not so where that is nested."""
        whole = self.whole
        return not (
            isinstance(self.field, BatchedField)
            and isinstance(whole, torch.Tensor)
            and whole.is_nested
        )

    def elem(self, i: int) -> Value:
        """The value of item `i`: a view of the whole where there is one."""
        if self.parts is not None:
            return self.parts[i]
        whole = self.whole
        if self.offsets is not None:
            return self.span(i, i + 1)
        if isinstance(self.field, BatchedField):
            return whole[i, ...] if isinstance(whole, np.ndarray) else whole[i]  # type: ignore[index]
        return whole

    def elems(self, start: int, stop: int) -> list[Value]:
        """The values of items `start` to `stop`."""
        whole = self.whole if (start, stop) == (0, self.size) else None
        if isinstance(whole, torch.Tensor) and isinstance(self.field, BatchedField):
            return list(whole.unbind(0))
        return [self.elem(i) for i in range(start, stop)]

    def span(self, start: int, stop: int) -> Value:
        """The part of the whole that items `start` to `stop` cover: the same object if all do."""
        if start == 0 and stop == self.size:
            return self.whole
        whole = self.whole
        if self.offsets is not None:
            a, b = self.offsets[start], self.offsets[stop]
            if isinstance(whole, torch.Tensor):
                return whole.narrow(self.field.dim, a, b - a)  # type: ignore[union-attr]
            if isinstance(whole, np.ndarray):
                dim = self.field.dim % whole.ndim  # type: ignore[union-attr]
                return whole[(slice(None),) * dim + (slice(a, b),)]
            return whole[a:b]  # type: ignore[index]
        if isinstance(self.field, SharedField):
            return whole
        return whole[start:stop]  # type: ignore[index]

    def slice(self, start: int, stop: int) -> Column:
        """The column of items `start` to `stop`, without copying payload."""
        if start == 0 and stop == self.size:
            return self
        size = stop - start
        if self.parts is not None:
            return Column(self.field, size, parts=self.parts[start:stop])
        if not self.sliceable:
            return Column(self.field, size, parts=self.elems(start, stop))
        offsets = self.offsets
        if offsets is not None:
            offsets = [o - offsets[start] for o in offsets[start : stop + 1]]
        return Column(self.field, size, self.span(start, stop), offsets=offsets)

    def kinds(self) -> list[object]:
        """What the elems are made of, one entry if all are of a kind, else one for each."""
        if self.parts is None:
            return [kind_of(self.whole)]
        parts = self.parts
        kinds = parts.kinds() if isinstance(parts, Parts) else [kind_of(part) for part in parts]
        return kinds if any(kind != kinds[0] for kind in kinds) else kinds[:1]

    def signatures(self) -> list[Signature]:
        """Field without its batch size, and kind of elem: one entry, or one for each elem."""
        field = self.field
        if isinstance(field, SharedField):
            field = SharedField(0, field.keep_on_cpu)
        return [Signature(field, kind) for kind in self.kinds()]


class Block:
    """A run of `size` items with the same keys; `columns` in the order of the processor's keys."""

    __slots__ = ("_signatures", "columns", "size")

    def __init__(self, size: int, columns: Mapping[str, Column]) -> None:
        self.size = size
        self.columns = dict(columns)
        self._signatures: list[dict[str, Signature]] | None = None

    @property
    def signatures(self) -> list[dict[str, Signature]]:
        """Key -> signature: one mapping if all items agree, else one for each item."""
        if self._signatures is None:
            found = {key: column.signatures() for key, column in self.columns.items()}
            rows = max((len(signatures) for signatures in found.values()), default=1)
            self._signatures = [
                {key: s[i if len(s) > 1 else 0] for key, s in found.items()} for i in range(rows)
            ]
        return self._signatures

    def signature(self, i: int) -> dict[str, Signature]:
        """Key -> signature of item `i`."""
        signatures = self.signatures
        return signatures[i if len(signatures) > 1 else 0]

    def slice(self, start: int, stop: int) -> Block:
        """Items `start` to `stop` as a block of their own, views throughout."""
        if start == 0 and stop == self.size:
            return self
        return Block(stop - start, {k: c.slice(start, stop) for k, c in self.columns.items()})


class Run(NamedTuple):
    """Items `start` to `stop` of a block."""

    block: Block
    start: int
    stop: int


def runs_of(places: Sequence[tuple[Block, int]]) -> Iterator[Run]:
    """(block, index) pairs -> as few runs of neighbours as they form."""
    block: Block | None = None
    start = stop = 0
    for other, i in places:
        if other is block and i == stop:
            stop += 1
            continue
        if block is not None:
            yield Run(block, start, stop)
        block, start, stop = other, i, i + 1
    if block is not None:
        yield Run(block, start, stop)
