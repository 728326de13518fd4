"""Kwargs items of every kind: batched, flat, shared, apart, cached, of one request and of many."""

from __future__ import annotations

import random

from fuzz_values import COMMON, DTYPES, array, scalar, shape, tensor, value

import mmlab
from mmlab.fields import (
    BatchedField,
    Entry,
    Field,
    FieldConfig,
    FieldElem,
    FlatField,
    KwargsItem,
    SharedField,
)

MODALITIES = ("image", "video", "audio")


def column(rng: random.Random, modality: str, n: int) -> tuple[object, FieldConfig]:
    """What a processor would put out for one key of `n` items, and its field."""
    cpu, kind = rng.random() < 0.2, rng.randrange(10)
    dtype = rng.choice(COMMON if rng.random() < 0.7 else DTYPES)
    dims = [rng.randrange(1, 5) for _ in range(rng.randrange(3))]
    if kind < 3:
        return tensor(rng, dtype, n, *dims), mmlab.batched(modality, cpu)
    if kind == 3:
        pad = rng.choice((None, None, 0, 1, -1.5, True))
        ragged = [tensor(rng, dtype, *shape(rng)[:3]) for _ in range(n)]
        return ragged, mmlab.batched(modality, cpu, pad=pad)
    if kind == 4:
        parts = [value(rng, 2) for _ in range(n)]
        return (tuple(parts) if n % 2 else parts), mmlab.batched(modality, cpu)
    if kind == 5:
        return array(rng, n, *dims), mmlab.batched(modality, cpu)
    if kind == 6:
        return value(rng, 1), mmlab.shared(modality, n, cpu)
    sizes = [rng.randrange(4) for _ in range(n)]
    if kind == 7:
        return [scalar(rng) for _ in range(sum(sizes))], mmlab.flat(modality, sizes)
    if kind == 8:
        return array(rng, sum(sizes), *dims), mmlab.flat(modality, sizes, keep_on_cpu=cpu)
    dims.insert(dim := rng.randrange(len(dims) + 1), sum(sizes))
    dim = dim - len(dims) if rng.random() < 0.3 else dim
    return tensor(rng, dtype, *dims), mmlab.flat(modality, sizes, dim, cpu)


def from_processor(rng: random.Random) -> mmlab.KwargsItems:
    outputs, config = {}, {}
    for modality in rng.sample(MODALITIES, rng.choice((1, 1, 1, 2, 3))):
        n = rng.choice((0, 1, 1, 2, 3, 4, 5, 40))
        for i in range(rng.randrange(1, 5)):
            key = f"{modality[0]}{i}" if rng.random() < 0.8 else "ü" * (i + 1)
            if key not in config:
                outputs[key], config[key] = column(rng, modality, n)
    return mmlab.KwargsItems.from_processor(outputs, config)


def apart(rng: random.Random) -> mmlab.KwargsItems:
    """Items built one by one: some can share a batch, some cannot."""
    fields: list[Field] = [
        rng.choice((BatchedField(), BatchedField(pad=0), BatchedField(True, float("nan")))),
        FlatField(rng.choice((0, 0, -1, 1))),
        SharedField(1),
    ]
    dtype, same = rng.choice(COMMON), value(rng, 2)
    kinds = [rng.randrange(3) for _ in range(rng.randrange(1, 4))]
    entries: list[Entry] = []
    for _ in range(rng.randrange(1, 8)):
        elems = {}
        for i, kind in enumerate(kinds):
            data: object = same
            if kind < 2:
                odd = rng.random() < 0.1
                like = rng.choice(DTYPES) if odd else dtype
                data = tensor(rng, like, 2, rng.randrange(1, 4), *([1] * odd))
                data = value(rng, 2) if rng.random() < 0.05 else data
            elems[f"k{i}"] = FieldElem(data, fields[kind])
        entries.append(KwargsItem(elems) if rng.random() < 0.85 else None)
    return mmlab.KwargsItems({"image": entries})


def draw_items(rng: random.Random) -> mmlab.KwargsItems:
    """Items as a processor gives them, rearranged, sliced, or built apart."""
    if rng.random() < 0.3:
        return apart(rng)
    found = from_processor(rng)
    if rng.random() < 0.5:
        return found
    lists: dict[str, list[Entry]] = {}
    for modality, entries in found.items():
        kept: list[Entry] = list(entries)
        for _ in range(rng.randrange(3)):
            how = rng.randrange(4)
            if how == 0:
                kept.insert(rng.randrange(len(kept) + 1), None)
            elif how == 1:
                rng.shuffle(kept)
            elif how == 2:
                kept += kept[:3]
            else:
                kept = kept[1:]
        lists[modality] = kept
    return mmlab.KwargsItems(lists)
