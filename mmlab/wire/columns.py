"""Kwargs items on the wire: a column is described once, however many items it has.

A whole batch is one reference. Parts that lie side by side in memory are sent as the batch they
form; small parts are packed into one. Only parts that are neither are listed, one reference each.
"""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import repr as brief
from typing import Final, overload

import msgspec
import numpy as np
import torch

from mmlab.errors import WireError
from mmlab.fields.column import Block, Column, Parts
from mmlab.fields.items import MAX_ITEMS, ItemList, KwargsItem, KwargsItems
from mmlab.fields.kinds import BatchedField, Field, FlatField, SharedField
from mmlab.reducers.memory import joined_view, stacked_view
from mmlab.wire.payload import PACK_LIMIT, WIDE, Payload, fits
from mmlab.wire.table import Table
from mmlab.wire.unsupported import Unsupported
from mmlab.wire.values import TENSOR, pack, unpack

WHOLE: Final = 0  # value: the batch
PARTS: Final = 1  # value: a list, one value an item
TENSORS: Final = 2  # value: a list of table entries, one tensor an item, made when asked for


class ColumnSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    key: str
    field: Field
    layout: int
    sizes: list[int] | None  # flat wholes: the extent of every item along the field's dim
    value: object


class BlockSpec(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    size: int
    columns: list[ColumnSpec]


ItemsSpec = list[tuple[str, list[int | BlockSpec]]]

_encode = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(ItemsSpec).decode
_decode_block = msgspec.msgpack.Decoder(BlockSpec).decode


def pack_items(items: KwargsItems, payload: Payload) -> bytes:
    """The body's bytes for all items of a request."""
    spec = []
    for modality, entries in items.items():
        blocks: list[int | BlockSpec] = []
        first = 0
        for block in entries.blocks:
            if isinstance(block, int):
                blocks.append(block)
                first += block
                continue
            try:
                blocks.append(_block(block, payload))
            except Unsupported as error:
                item = "" if error.item is None else f"[{first + error.item}]"
                error.path = f".{modality}{item}{error.path}"
                raise
            first += block.size
        spec.append((modality, blocks))
    if (total := sum(map(len, items.values()))) > MAX_ITEMS:
        raise Unsupported(items, f"{total} items, at most {MAX_ITEMS} in a message")
    return _encode(spec)


def pack_item(item: KwargsItem, payload: Payload) -> bytes:
    """The body's bytes for one item."""
    block, index = item.place
    return _encode(_block(block.slice(index, index + 1), payload))


def _block(block: Block, payload: Payload) -> BlockSpec:
    specs = []
    for key, column in block.columns.items():
        try:
            specs.append(_column(key, column, payload))
        except Unsupported as error:
            error.path = f".{key}{error.path}"
            raise
    return BlockSpec(block.size, specs)


def _column(key: str, column: Column, payload: Payload) -> ColumnSpec:
    field = column.field
    if column.parts is None:
        sizes = None if column.offsets is None else column.sizes
        whole = column.whole
        if type(whole) is torch.Tensor:
            return ColumnSpec(key, field, WHOLE, sizes, [TENSOR, payload.number(whole) | WIDE])
        return ColumnSpec(key, field, WHOLE, sizes, pack(whole, payload))
    tensors = [part for part in column.parts if isinstance(part, torch.Tensor)]
    if tensors and len(tensors) == len(column.parts):
        try:
            joined = _whole(field, tensors, payload)
        except Unsupported as error:
            error.item = next((i for i, t in enumerate(tensors) if t is error.value), None)
            raise
        except RuntimeError:  # one has no shape or memory: it is named when it is sent alone
            joined = None
        if joined is not None:
            sizes = [t.shape[field.dim] for t in tensors] if isinstance(field, FlatField) else None
            return ColumnSpec(key, field, WHOLE, sizes, joined)
        numbers: list[object] = []
        for i, tensor in enumerate(tensors):
            try:
                numbers.append(payload.number(tensor))
            except Unsupported as error:
                error.item = i
                raise
        return ColumnSpec(key, field, TENSORS, None, numbers)
    packed = []
    for i, part in enumerate(column.parts):
        try:
            packed.append(pack(part, payload))
        except Unsupported as error:
            error.item = i
            raise
    return ColumnSpec(key, field, PARTS, None, packed)


def _whole(field: Field, parts: list[torch.Tensor], payload: Payload) -> object | None:
    """The reference to one tensor with all parts, if they form one or are small; else None."""
    first = parts[0]
    if len(parts) == 1 or first.is_nested:
        return None
    dim = field.dim if isinstance(field, FlatField) else 0
    # large neighbours that cannot be parts of one tensor are found out without looking further
    apart = not dim and first.is_contiguous() and not _follows(first, parts[1])
    if apart and first.nbytes >= PACK_LIMIT:
        return None
    dtype, largest = first.dtype, 0
    for part in parts:
        if type(part) is not torch.Tensor or part.dtype is not dtype:
            return None
        if not part.is_cpu or part.layout is not torch.strided:
            return None
        largest = max(largest, part.nbytes)
    if isinstance(field, BatchedField):
        view = None if apart else stacked_view(parts)
        shape = first.shape
        whole_shape = (len(parts), *shape)
        joinable = largest < PACK_LIMIT and all(part.shape == shape for part in parts)
    else:
        ndim = first.ndim
        if not -ndim <= dim < ndim or any(part.ndim != ndim for part in parts):
            return None
        view = joined_view(parts, dim)
        rest = first.shape[1:]
        joinable = (
            largest < PACK_LIMIT
            and dim % ndim == 0
            and all(part.shape[1:] == rest for part in parts)
        )
        whole_shape = (sum(part.shape[0] for part in parts), *rest)
    if not fits(whole_shape, dtype.itemsize):
        return None
    if view is not None:
        return [TENSOR, payload.number(view) | WIDE]
    if not joinable or len(set(map(id, parts))) < len(parts):
        return None
    return [TENSOR, payload.number_of_parts(parts, whole_shape) | WIDE]


def _follows(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `b` begins where the dense `a` ends."""
    return b.data_ptr() == a.data_ptr() + a.nbytes


def unpack_items(raw: memoryview, table: Table) -> KwargsItems:
    """The reverse of `pack_items`: every column checked, no item built."""
    lists: dict[str, ItemList] = {}
    for modality, specs in _decode_items(raw):
        if len(specs) == 1 and type(specs[0]) is BlockSpec and modality not in lists and modality:
            lists[modality] = ItemList((_unpack_block(modality, specs[0], table),))
            continue
        counts = [s if isinstance(s, int) else s.size for s in specs]
        if modality in lists or not modality or sum(counts) > MAX_ITEMS:
            raise WireError(
                f"items: modality {modality!r} twice, empty, or with {sum(counts)} items"
            )
        if min(counts, default=1) < 1 and len(counts) > 1:
            raise WireError(f"{modality}: {min(counts)} items in one of several blocks")
        lists[modality] = ItemList(_unpack_blocks(modality, specs, table))
    # items cost a message nothing to claim, and whoever looks at each of them some time
    if len(lists) > 1 and (total := sum(map(len, lists.values()))) > MAX_ITEMS:
        raise WireError(f"items: {total} in all, at most {MAX_ITEMS}")
    return KwargsItems.of(lists)


def _unpack_blocks(modality: str, specs: list[int | BlockSpec], table: Table) -> list[Block | int]:
    blocks: list[Block | int] = []
    for i, spec in enumerate(specs):
        if isinstance(spec, int):
            if spec < 1:
                raise WireError(f"{modality}: {spec} cached items, wanted 1 or more")
            blocks.append(spec)
        else:
            blocks.append(_unpack_block(modality, spec, table))
            specs[i] = 0  # what has been read need not be kept
    return blocks


def unpack_item(raw: memoryview, table: Table) -> KwargsItem:
    """The reverse of `pack_item`."""
    block = _unpack_block("item", _decode_block(raw), table)
    if block.size != 1:
        raise WireError(f"item: a block of {block.size} items, wanted 1")
    return KwargsItem.at(block, 0)


def _unpack_block(modality: str, spec: BlockSpec, table: Table) -> Block:
    if not 0 <= spec.size <= MAX_ITEMS:
        raise WireError(f"{modality}: {spec.size} items, wanted 0 to {MAX_ITEMS}")
    columns: dict[str, Column] = {}
    for column in spec.columns:
        where = f"{modality}.{column.key}"
        if column.key in columns:
            raise WireError(f"{where}: described twice")
        columns[column.key] = _unpack_column(where, column, spec.size, table)
    return Block(spec.size, columns)


def _unpack_column(where: str, spec: ColumnSpec, size: int, table: Table) -> Column:
    field = spec.field
    if spec.layout in (PARTS, TENSORS):
        value = spec.value
        if not isinstance(value, list) or len(value) != size or spec.sizes is not None:
            raise WireError(f"{where}: wanted a list of {size} parts")
        if isinstance(field, SharedField):
            raise WireError(f"{where}: a shared field with parts")
        if spec.layout == PARTS:
            for i, part in enumerate(value):
                value[i] = unpack(part, table)
            return Column(field, size, parts=value)
        for entry in value:
            if type(entry) is not int or not table.is_tensor(entry):
                raise WireError(f"{where}: part {brief(entry)}, wanted the table entry of a tensor")
            table.hold(entry)
        return Column(field, size, parts=TensorParts(value, table))
    if spec.layout != WHOLE:
        raise WireError(f"{where}: layout {spec.layout}, wanted 0, 1 or 2")
    whole = unpack(spec.value, table)
    if isinstance(field, SharedField):
        if field.batch_size < 0 or spec.sizes is not None:
            raise WireError(f"{where}: {field} with sizes {brief(spec.sizes)}")
        return Column(field, size, whole)
    shape = _shape(where, whole)
    if isinstance(field, BatchedField):
        if shape[0] != size or spec.sizes is not None:
            raise WireError(f"{where}: a batch of {shape[0]} for {size} items")
        return Column(field, size, whole)
    sizes = spec.sizes
    if sizes is None or len(sizes) != size or any(n < 0 for n in sizes):
        raise WireError(f"{where}: sizes {brief(sizes)}, wanted {size} extents of 0 or more")
    if not -len(shape) <= field.dim < len(shape) or sum(sizes) != shape[field.dim]:
        raise WireError(f"{where}: sizes sum to {sum(sizes)}, dim {field.dim} of shape {shape}")
    return Column.flat(field, whole, sizes)


def _shape(where: str, whole: object) -> tuple[int, ...]:
    if isinstance(whole, (torch.Tensor, np.ndarray)) and whole.ndim:
        return tuple(whole.shape)
    if isinstance(whole, (list, tuple)):
        return (len(whole),)
    raise WireError(f"{where}: a {type(whole).__name__} without a batch dimension")


class TensorParts(Parts):
    """One tensor an item, by table entry: made when asked for."""

    __slots__ = ("_entries", "_table")

    def __init__(self, entries: list[int], table: Table) -> None:
        self._entries = entries
        self._table = table

    def kinds(self) -> list[object]:
        return [self._table.dtype(entry) for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, i: int) -> object: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[object]: ...
    def __getitem__(self, i: int | slice) -> object:
        if isinstance(i, slice):
            return TensorParts(self._entries[i], self._table)
        return self._table.get(self._entries[i])
