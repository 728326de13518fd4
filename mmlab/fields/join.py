"""Which items can share a batch, and how items that were built apart become blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmlab.fields.column import Block, Column, Run, runs_of
from mmlab.fields.equal import same_value
from mmlab.fields.kinds import SharedField

Place = tuple[Block, int]  # of an item: its block, and its index there


def join(places: Iterable[Place | None]) -> list[Block | int]:
    """Places -> blocks: neighbours of a block stay whole, items that can share a batch share one.

    A stretch of `None` (items that are cached elsewhere) becomes its length.
    """
    out: list[Block | int] = []
    same: list[Place] = []

    def flush() -> None:
        if same:
            out.append(merge_runs(list(runs_of(same))))
            same.clear()

    for place in places:
        if place is None:
            flush()
            if out and isinstance(out[-1], int):
                out[-1] += 1
            else:
                out.append(1)
            continue
        if same and not compatible(same[-1], place):
            flush()
        same.append(place)
    flush()
    return out


def compatible(a: Place, b: Place) -> bool:
    """True if two items can share a batch: keys, fields, dtypes and shared values agree."""
    (block, i), (other, j) = a, b
    if block is other:
        return len(block.signatures) == 1 or block.signature(i) == block.signature(j)
    return block.signature(i) == other.signature(j) and all(
        same_value(column.whole, other.columns[key].whole)
        for key, column in block.columns.items()
        if isinstance(column.field, SharedField)
    )


def merge_runs(runs: Sequence[Run]) -> Block:
    """One block of compatible runs: a slice of one run, or parts; no payload moves."""
    if len(runs) == 1:
        return runs[0].block.slice(runs[0].start, runs[0].stop)
    size = sum(run.stop - run.start for run in runs)
    columns: dict[str, Column] = {}
    for key, first in runs[0].block.columns.items():
        if isinstance(first.field, SharedField):
            field = SharedField(size, first.field.keep_on_cpu)
            columns[key] = Column(field, size, first.whole)
        else:
            parts = [e for r in runs for e in r.block.columns[key].elems(r.start, r.stop)]
            columns[key] = Column(first.field, size, parts=parts)
    return Block(size, columns)
