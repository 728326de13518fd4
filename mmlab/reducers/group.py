"""Which items can share a batch, across the requests that are waiting.

Order is kept: a batch is a stretch of consecutive items of one modality. `None` entries (cached
on the other side) carry no data: they are passed over and break no stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping

import torch

from mmlab.errors import BatchError
from mmlab.fields.column import Block, Run, runs_of
from mmlab.fields.items import Entry, KwargsItem, KwargsItems
from mmlab.fields.join import compatible
from mmlab.fields.kinds import Field
from mmlab.reducers.reduce import REDUCERS, Span
from mmlab.reducers.reduction import Plan, Reduction


class Batch:
    """Consecutive items of one modality that share a batch; `indices`: places in the pairs."""

    __slots__ = ("_reductions", "indices", "modality", "runs")

    def __init__(self, modality: str, runs: list[Run], indices: list[int]) -> None:
        self.modality = modality
        self.runs = runs
        self.indices = indices
        self._reductions: dict[str, Reduction] = {}

    @property
    def num_items(self) -> int:
        return len(self.indices)

    def keys(self) -> KeysView[str]:
        return self.runs[0].block.columns.keys()

    def field(self, key: str) -> Field:
        """The field of `key`; a shared field's batch_size is that of the first item's request."""
        self._check_key(key)
        return self.runs[0].block.columns[key].field

    def _check_key(self, key: object) -> None:
        if not isinstance(key, str) or key not in self.keys():
            known = ", ".join(map(repr, self.keys())) or "(none)"
            raise BatchError(
                f"{self.modality}: no key {key!r} in this batch, wanted one of {known}"
            )

    def reduction(self, key: str) -> Reduction:
        """How the batch of `key` comes about; computed once. BatchError names the key."""
        found = self._reductions.get(key) if isinstance(key, str) else None
        if found is None:
            self._check_key(key)
            spans = [Span(run.block.columns[key], run.start, run.stop) for run in self.runs]
            found = REDUCERS[type(spans[0].column.field)](f"{self.modality}.{key}", spans)
            self._reductions[key] = found
        return found

    def plan(self, key: str) -> Plan | None:
        """Shape, dtype, bytes and copies of the batch of `key`; None if it is no single tensor."""
        return self.reduction(key).plan

    def reduce_key(self, key: str, out: torch.Tensor | None = None) -> object:
        """The batched value of `key`, written into `out` where one is given."""
        return self.reduction(key).run(out)

    def reduce(self) -> dict[str, object]:
        """The batched kwargs: key -> nested tensors."""
        return {key: self.reduction(key).run() for key in self.keys()}

    def __repr__(self) -> str:
        return f"Batch({self.modality!r}, {self.num_items} items, keys {list(self.keys())})"


def group(pairs: Iterable[tuple[str, Entry]]) -> Iterator[Batch]:
    """[(modality, item), ...] -> the largest batches of consecutive items, order kept.

    A batch ends where the modality, the keys, a field, a dtype or a shared value changes.
    Raises BatchError for what is no pair: at once where `pairs` is none, else when it is reached.
    """
    if isinstance(pairs, Mapping) or not isinstance(pairs, Iterable):
        raise BatchError(
            f"pairs: got {type(pairs).__name__}, wanted (modality, item) pairs: items.pairs()"
        )
    return _batches(pairs)


def _batches(pairs: Iterable[tuple[str, Entry]]) -> Iterator[Batch]:
    modality = ""
    places: list[tuple[Block, int]] = []
    indices: list[int] = []
    for at, pair in enumerate(pairs):
        try:
            kind, item = pair
        except (TypeError, ValueError):
            raise BatchError(
                f"pairs[{at}]: got {type(pair).__name__}, wanted a pair (modality, item) "
                "as items.pairs() gives them"
            ) from None
        if not isinstance(kind, str) or not kind:
            raise BatchError(
                f"pairs[{at}]: modality is {kind!r}, wanted a name such as 'image', "
                "as items.pairs() gives them"
            )
        if item is None:
            continue
        if not isinstance(item, KwargsItem):
            raise BatchError(f"pairs[{at}]: got {type(item).__name__}, wanted a KwargsItem or None")
        if places and (kind != modality or not compatible(places[-1], item.place)):
            yield Batch(modality, list(runs_of(places)), indices)
            places, indices = [], []
        modality = kind
        places.append(item.place)
        indices.append(at)
    if places:
        yield Batch(modality, list(runs_of(places)), indices)


def reduce_items(items: KwargsItems) -> dict[str, object]:
    """`KwargsItems.reduce`: one batch for each modality, all keys in one mapping."""
    kwargs: dict[str, object] = {}
    for modality, entries in items.items():
        blocks = [b for b in entries.blocks if not isinstance(b, int) and b.size]
        if not blocks:
            continue
        if len(blocks) == 1:
            for key, column in blocks[0].columns.items():
                if key in kwargs:
                    raise BatchError(f"{modality}.{key}: another modality has this key too")
                if column.parts is None:  # the batch it came as
                    kwargs[key] = column.whole
                else:
                    span = Span(column, 0, column.size)
                    reducer = REDUCERS[type(column.field)]
                    kwargs[key] = reducer(f"{modality}.{key}", [span]).run()
            continue
        for i, block in enumerate(blocks[1:], 1):
            if not compatible((blocks[0], 0), (block, 0)):
                raise BatchError(f"{modality}: {_difference(blocks[0], block, i)}")
        batch = Batch(
            modality,
            [Run(block, 0, block.size) for block in blocks],
            list(range(sum(block.size for block in blocks))),
        )
        for key in batch.runs[0].block.columns:
            if key in kwargs:
                raise BatchError(f"{modality}.{key}: another modality has this key too")
            kwargs[key] = batch.reduce_key(key)
    return kwargs


def _difference(a: Block, b: Block, run: int) -> str:
    for key in {**a.signature(0), **b.signature(0)}:
        mine, other = a.signature(0).get(key), b.signature(0).get(key)
        if mine is None or other is None:
            return f"key {key!r} is on some items only; use mmlab.group() for several batches"
        if mine != other:
            return (
                f"{key!r} is {mine.dtype} with {mine.field}, then {other.dtype} with {other.field}"
            )
    return (
        f"a shared value differs between items (run {run}); use mmlab.group() for several batches"
    )
