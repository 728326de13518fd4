"""Looks at everything a decoded message holds. `Broken`: it is no valid object after all."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import torch
from fuzz_messages import Reply

import mmlab
from mmlab.dtypes import CODE_OF_NUMPY, CODE_OF_TORCH, copyable, empty
from mmlab.fields import BatchedField, Entry, Field, FieldElem, FlatField, SharedField
from mmlab.fields.items import MAX_ITEMS
from mmlab.wire import Buffer

MANY = 5000  # items that are looked at one by one
PLAIN = (type(None), bool, int, float, str, bytes, bytearray, slice, torch.dtype, np.dtype)
TIMES = (datetime.datetime,)  # msgpack's own extension -1, which msgspec reads by itself
FIELDS = (BatchedField, FlatField, SharedField)


class Broken(Exception):
    """What was decoded does not hold what it claims."""


def want(ok: object, what: str) -> None:
    if not ok:
        raise Broken(what)


def span_of(buffer: Buffer) -> tuple[int, int]:
    """First and last address + 1 of a buffer."""
    flat = np.frombuffer(buffer, np.uint8)
    start = int(flat.__array_interface__["data"][0])
    return start, start + flat.nbytes


def raw(t: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes in row-major order; any bool that is not 0 counts as 1, as in torch."""
    found = copyable(t).contiguous().reshape(-1).view(torch.uint8)
    return found != 0 if t.dtype is torch.bool else found


class Walk:
    """One walk through one decoded object.

    `owned` is what it found of memory that lies in no frame (torch's; tracemalloc sees numpy's).
    """

    def __init__(self, frames: Sequence[Buffer], read: bool) -> None:
        self.spans = [span_of(frame) for frame in frames]
        self.read = read  # every byte of every tensor, not only where it lies
        self.tensors = self.items = self.borrowed = 0
        self.many = False  # too many items to look at each of them
        self._storages: dict[int, int] = {}
        self._seen: dict[int, object] = {}
        self.batches: list[mmlab.KwargsItems] = []

    @property
    def owned(self) -> int:
        return sum(self._storages.values())

    def all(self, root: object) -> None:
        """Everything below `root`, each object once."""
        stack = [root]
        while stack:
            value = stack.pop()
            kind = type(value)
            if kind in (int, str, float, bool, type(None), bytes):
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            stack.extend(self._inside(value))

    def _inside(self, value: object) -> Iterator[object]:
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, mmlab.KwargsItems):
            yield from self._items(value)
        elif isinstance(value, mmlab.KwargsItem):
            yield from self._item(value)
        elif isinstance(value, dict):
            yield from value
            yield from value.values()
        elif isinstance(value, slice):
            yield from (value.start, value.stop, value.step)
        elif isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, msgspec.Struct):
            yield from (getattr(value, name) for name in value.__struct_fields__)
        elif isinstance(value, Reply):
            yield from (value.tokens, value.tensors, value.inner)
        elif isinstance(value, np.generic):
            want(value.dtype in CODE_OF_NUMPY or isinstance(value, (np.str_, np.bytes_)), "scalar")
        else:
            want(isinstance(value, PLAIN + TIMES), f"a {type(value).__name__} in the message")

    def _tensor(self, t: torch.Tensor) -> None:
        self.tensors += 1
        want(type(t) is torch.Tensor and t.is_cpu and t.layout is torch.strided, "kind of tensor")
        want(t.dtype in CODE_OF_TORCH, f"tensor of {t.dtype}")
        if not t.numel():
            return
        storage = t.untyped_storage()
        size, start = storage.nbytes(), storage.data_ptr()
        last = t.storage_offset() + sum(
            (n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)
        )
        want(t.storage_offset() >= 0 and (last + 1) * t.element_size() <= size, "tensor too long")
        if any(a <= start and start + size <= b for a, b in self.spans):
            self.borrowed += 1
        else:
            self._storages[start] = size
        want(t.data_ptr() % t.element_size() == 0, "tensor at an odd address")
        if self.read:
            int(raw(t).sum())

    def _array(self, a: np.ndarray) -> None:
        self.tensors += 1
        want(type(a) is np.ndarray and a.dtype in CODE_OF_NUMPY, f"array {type(a)} of {a.dtype}")
        if self.read:
            a.tobytes()

    def _items(self, items: mmlab.KwargsItems) -> Iterator[object]:
        self.batches.append(items)
        for modality, entries in items.items():
            want(type(modality) is str and modality, "modality")
            want(len(entries) <= MAX_ITEMS, f"{len(entries)} items of {modality}")
            self.many |= len(entries) > MANY
            if len(entries) > MANY:  # as many as a few bytes may claim: the first and the last
                several = [*entries[: MANY // 2], *entries[-MANY // 2 :]]
            else:
                several = list(entries)
                want(len(several) == len(entries), f"{len(several)} items, {len(entries)} claimed")
            for entry in several:
                if entry is not None:
                    yield from self._item(entry)

    def _item(self, item: Entry) -> Iterator[object]:
        want(type(item) is mmlab.KwargsItem, "item")
        assert item is not None
        self.items += 1
        for key, elem in item.items():
            want(type(key) is str and type(elem) is FieldElem, "key and elem")
            _field(elem.field)
            yield elem.data


def _field(field: Field) -> None:
    want(type(field) in FIELDS and type(field.keep_on_cpu) is bool, "field")
    if isinstance(field, FlatField):
        want(type(field.dim) is int, "dim")
    elif isinstance(field, SharedField):
        want(type(field.batch_size) is int, "batch size")


def reduce_all(items: mmlab.KwargsItems, twin: mmlab.KwargsItems | None) -> int:
    """Every way from items to batches; how many came out. BatchError is an answer, no failure.

    `twin`: the same message decoded again, as another request that waits beside this one.
    """
    made = 0
    with contextlib.suppress(mmlab.BatchError):
        made += len(items.reduce())
    repr(items)
    want(items.nbytes >= 0, "nbytes")
    if sum(map(len, items.values())) > MANY:
        return made
    pairs = items.pairs()
    for batch in mmlab.group(pairs if twin is None else pairs + twin.pairs()):
        made += sum(_batch(batch, key) for key in list(batch.keys()))
    return made


def _batch(batch: mmlab.Batch, key: str) -> int:
    """The batch of one key, fresh and written into a given tensor: as its plan says."""
    try:
        plan, value = batch.plan(key), batch.reduce_key(key)
    except mmlab.BatchError:
        return 0
    if plan is None:
        want(not isinstance(value, torch.Tensor), f"{key}: a tensor without a plan")
        return 1
    want(isinstance(value, torch.Tensor), f"{key}: a plan, and a {type(value).__name__}")
    assert isinstance(value, torch.Tensor)
    want((tuple(value.shape), value.dtype) == (plan.shape, plan.dtype), f"{key}: not as planned")
    want(value.nbytes == plan.nbytes, f"{key}: {value.nbytes} B, planned {plan.nbytes} B")
    out = empty(plan.shape, plan.dtype)
    want(batch.reduce_key(key, out) is out, f"{key}: out= is not what was returned")
    want(torch.equal(raw(out), raw(value)), f"{key}: written into out= it is another batch")
    return 1
