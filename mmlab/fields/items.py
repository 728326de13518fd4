"""Items: what one image, video or clip contributes to a request, and all of them together.

An item is a place in a block (`fields.column`): making one costs nothing, its `FieldElem`s are
cut out when they are asked for, and a reducer that meets neighbours takes the block's whole.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import overload

import numpy as np
import torch

from mmlab.errors import BatchError
from mmlab.fields.column import Block, Column, Parts, Value
from mmlab.fields.equal import same_value
from mmlab.fields.join import join
from mmlab.fields.kinds import BatchedField, Field, FieldConfig, FlatField, SharedField

_FIELDS = (BatchedField, FlatField, SharedField)  # and no subclass: its own fields would be lost

MAX_ITEMS = 1 << 16  # in a request; a message may not claim more, all modalities together


class FieldElem:
    """One value of one item. `data` may be a view of the batch, or of a frame it keeps alive."""

    __slots__ = ("data", "field")

    def __init__(self, data: Value, field: Field) -> None:
        self.data = data
        self.field = field

    def __repr__(self) -> str:
        if isinstance(self.data, (torch.Tensor, np.ndarray)):
            what = f"{self.data.dtype} {tuple(self.data.shape)}"
        else:
            what = repr(self.data)
        return f"FieldElem({what}, {self.field})"


class KwargsItem(Mapping[str, FieldElem]):
    """The processed kwargs of one input: key -> `FieldElem`."""

    __slots__ = ("_block", "_index")

    def __init__(self, elems: Mapping[str, FieldElem]) -> None:
        if not isinstance(elems, Mapping):
            raise BatchError(f"item: got {type(elems).__name__}, wanted a mapping key -> FieldElem")
        columns: dict[str, Column] = {}
        for key, elem in elems.items():
            if not isinstance(key, str):
                raise BatchError(f"item key: got {key!r}, wanted a string")
            if type(elem) is not FieldElem or type(elem.field) not in _FIELDS:
                raise BatchError(f"item[{key!r}]: got {elem!r}, wanted a FieldElem with a field")
            if isinstance(elem.field, SharedField):
                columns[key] = Column(elem.field, 1, elem.data)
            else:
                columns[key] = Column(elem.field, 1, parts=[elem.data])
        self._block = Block(1, columns)
        self._index = 0

    @classmethod
    def at(cls, block: Block, index: int) -> KwargsItem:
        """The item at `index` of `block`."""
        item = cls.__new__(cls)
        item._block = block
        item._index = index
        return item

    @property
    def place(self) -> tuple[Block, int]:
        """The block this item lies in, and its index there."""
        return self._block, self._index

    def __getitem__(self, key: str) -> FieldElem:
        column = self._block.columns[key]
        return FieldElem(column.elem(self._index), column.field)

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.columns)

    def __len__(self) -> int:
        return len(self._block.columns)

    def __contains__(self, key: object) -> bool:
        return key in self._block.columns

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KwargsItem):
            return NotImplemented
        return self.keys() == other.keys() and all(
            self[k].field == other[k].field and same_value(self[k].data, other[k].data)
            for k in self
        )

    def __repr__(self) -> str:
        return f"KwargsItem({', '.join(f'{k}={e!r}' for k, e in self.items())})"


Entry = KwargsItem | None  # None: the other side has this item in its cache


class ItemList(Sequence[Entry]):
    """The items of one modality: made when asked for, `None` where an item is cached elsewhere."""

    __slots__ = ("_size", "blocks", "foreign")

    def __init__(self, blocks: Sequence[Block | int], foreign: str | None = None) -> None:
        self.blocks = tuple(blocks)  # an int stands for that many None entries
        self.foreign = foreign  # why these items cannot be sent: one was of a subclass
        self._size = sum(b if isinstance(b, int) else b.size for b in self.blocks)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> Entry: ...
    @overload
    def __getitem__(self, i: slice) -> list[Entry]: ...
    def __getitem__(self, i: int | slice) -> Entry | list[Entry]:
        if isinstance(i, slice):
            return list(self)[i]
        at = i + self._size if i < 0 else i
        if 0 <= at < self._size:
            for block in self.blocks:
                size = block if isinstance(block, int) else block.size
                if at < size:
                    return None if isinstance(block, int) else KwargsItem.at(block, at)
                at -= size
        raise IndexError(f"item {i} of {self._size}")

    def __iter__(self) -> Iterator[Entry]:
        for block in self.blocks:
            if isinstance(block, int):
                yield from (None for _ in range(block))
            else:
                yield from (KwargsItem.at(block, i) for i in range(block.size))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (ItemList, list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self))}]"


class KwargsItems(Mapping[str, ItemList]):
    """All items of a request: modality -> items."""

    __slots__ = ("_lists",)

    def __init__(self, items: Mapping[str, Iterable[Entry]]) -> None:
        if not isinstance(items, Mapping):
            raise BatchError(
                f"items: got {type(items).__name__}, wanted a mapping modality -> items, "
                "e.g. {'image': [item]}"
            )
        self._lists: dict[str, ItemList] = {}
        for modality, entries in items.items():
            if not isinstance(modality, str) or not modality:
                raise BatchError(f"modality: got {modality!r}, wanted a name such as 'image'")
            if isinstance(entries, ItemList):
                self._lists[modality] = entries
                continue
            if isinstance(entries, Mapping) or not isinstance(entries, Iterable):
                raise BatchError(
                    f"{modality}: got {type(entries).__name__}, "
                    "wanted a list of KwargsItems and Nones, e.g. [item]"
                )
            if not isinstance(entries, Sequence):
                entries = list(islice(entries, MAX_ITEMS + 1))  # it may never end
            foreign = None
            for i, entry in enumerate(entries):
                if entry is not None and not isinstance(entry, KwargsItem):
                    raise BatchError(
                        f"{modality}[{i}]: got {type(entry).__name__}, wanted a KwargsItem or None"
                    )
                if entry is not None and type(entry) is not KwargsItem:
                    foreign = (
                        f"{modality}[{i}] is a {type(entry).__name__}, a subclass of KwargsItem: "
                        "its own fields would be lost"
                    )
            if len(entries) > MAX_ITEMS:
                raise BatchError(f"{modality}: {len(entries)} items, at most {MAX_ITEMS}")
            self._lists[modality] = ItemList(
                join(None if entry is None else entry.place for entry in entries), foreign
            )

    @classmethod
    def from_processor(
        cls, outputs: Mapping[str, Value], config: Mapping[str, FieldConfig]
    ) -> KwargsItems:
        """Split a processor's batched `outputs` (key -> nested tensors) by `config`; no copies.

        Raises BatchError naming modality, key and index where they do not fit each other.
        """
        from mmlab.fields.build import blocks_from_processor

        return cls.of({m: ItemList([b]) for m, b in blocks_from_processor(outputs, config).items()})

    @classmethod
    def of(cls, lists: Mapping[str, ItemList]) -> KwargsItems:
        """From item lists that exist already (a processor's or a message's)."""
        new = cls.__new__(cls)
        new._lists = dict(lists)
        return new

    @property
    def foreign(self) -> str | None:
        """Why these items cannot be sent, if one of them was of a subclass of KwargsItem."""
        return next((e.foreign for e in self._lists.values() if e.foreign is not None), None)

    def __getitem__(self, modality: str) -> ItemList:
        return self._lists[modality]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def items(self) -> ItemsView[str, ItemList]:
        return self._lists.items()

    def __len__(self) -> int:
        return len(self._lists)

    __hash__ = None  # type: ignore[assignment]

    def pairs(self) -> list[tuple[str, Entry]]:
        """[(modality, item), ...] in order: what `group` and the batcher take."""
        return [(modality, item) for modality, entries in self.items() for item in entries]

    @property
    def nbytes(self) -> int:
        """Payload bytes of all values; memory that several values share is counted once."""
        seen: dict[tuple[int, int], int] = {}
        for entries in self.values():
            for block in entries.blocks:
                if not isinstance(block, int):
                    for column in block.columns.values():
                        _count(column.whole if column.parts is None else column.parts, seen)
        return sum(seen.values())

    def reduce(self) -> dict[str, Value]:
        """The batched kwargs, all modalities together: key -> nested tensors.

        `None` entries are left out. Raises BatchError where the items of a modality cannot form
        one batch (fields, dtypes or shared values differ) or two modalities have the same key.
        """
        from mmlab.reducers import reduce_items

        return reduce_items(self)

    def __repr__(self) -> str:
        return f"KwargsItems({ {m: len(entries) for m, entries in self.items()} })"


def _count(value: object, seen: dict[tuple[int, int], int]) -> None:
    if isinstance(value, torch.Tensor):
        seen[value.data_ptr(), value.nbytes] = value.nbytes
    elif isinstance(value, np.ndarray):
        seen[value.__array_interface__["data"][0], value.nbytes] = value.nbytes
    elif isinstance(value, (list, tuple, Parts)):
        for part in value:
            _count(part, seen)
