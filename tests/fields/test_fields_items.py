"""Items: mappings and sequences that are made when asked for, joined again without a copy."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pytest
import torch

import mmlab
from mmlab import (
    BatchedField,
    BatchError,
    FieldElem,
    FlatField,
    KwargsItem,
    KwargsItems,
    SharedField,
)


def one(**values: object) -> KwargsItem:
    return KwargsItem({key: FieldElem(value, BatchedField()) for key, value in values.items()})


def split(n: int = 4) -> tuple[torch.Tensor, KwargsItems]:
    whole = torch.arange(n * 6.0).reshape(n, 2, 3)
    return whole, KwargsItems.from_processor({"x": whole}, {"x": mmlab.batched("image")})


def test_an_item_is_a_mapping_of_elems() -> None:
    tensor = torch.zeros(2)
    item = one(a=tensor, b=3)
    assert list(item) == ["a", "b"] and len(item) == 2 and "a" in item and "c" not in item
    assert item["a"].data is tensor and item["b"].data == 3
    assert dict(item.items())["b"].field == BatchedField()
    with pytest.raises(KeyError):
        item["c"]


def test_items_of_a_modality_are_a_sequence() -> None:
    whole, items = split()
    entries = items["image"]
    assert len(entries) == 4
    assert torch.equal(entries[-1]["x"].data, whole[3])
    assert [e["x"].data.data_ptr() for e in entries[1:3]] == [w.data_ptr() for w in whole[1:3]]
    assert [e["x"].data.data_ptr() for e in reversed(entries)] == [
        w.data_ptr() for w in reversed(list(whole))
    ]
    for outside in (4, -5):
        with pytest.raises(IndexError, match="of 4"):
            entries[outside]


def test_equality_is_by_bytes_fields_and_places_of_none() -> None:
    a = KwargsItems({"image": [one(x=torch.tensor([float("nan"), 0.0])), None]})
    b = KwargsItems({"image": [one(x=torch.tensor([float("nan"), 0.0])), None]})
    assert a == b
    assert a != KwargsItems({"image": [None, one(x=torch.tensor([float("nan"), 0.0]))]})
    assert a != KwargsItems({"image": [one(x=torch.tensor([float("nan"), -0.0])), None]})
    assert a != KwargsItems({"audio": list(a["image"])})
    kept = KwargsItem({"x": FieldElem(a["image"][0]["x"].data, BatchedField(keep_on_cpu=True))})
    assert a != KwargsItems({"image": [kept, None]})


def test_pairs_are_all_items_in_order() -> None:
    items = KwargsItems({"image": [one(x=1), None], "audio": [one(y=2)]})
    assert [(m, e and e["x" if m == "image" else "y"].data) for m, e in items.pairs()] == [
        ("image", 1),
        ("image", None),
        ("audio", 2),
    ]


@pytest.mark.parametrize("take", [slice(0, 4), slice(1, 3), slice(2, 3)])
def test_neighbours_put_together_again_are_a_view_of_the_batch(take: slice) -> None:
    whole, items = split()
    again = KwargsItems({"image": items["image"][take]})
    reduced = again.reduce()["x"]
    assert reduced.data_ptr() == whole[take].data_ptr()
    assert torch.equal(reduced, whole[take])


def test_all_neighbours_put_together_again_are_the_very_tensor() -> None:
    whole, items = split()
    assert KwargsItems({"image": list(items["image"])}).reduce()["x"] is whole
    assert KwargsItems(items).reduce()["x"] is whole


def test_shuffled_items_reduce_in_their_new_order() -> None:
    whole, items = split()
    order = [2, 0, 3, 1]
    again = KwargsItems({"image": [items["image"][i] for i in order]})
    assert torch.equal(again.reduce()["x"], whole[order])


def test_items_built_one_by_one_over_neighbouring_memory_reduce_without_a_copy() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    items = KwargsItems({"image": [one(x=row) for row in whole]})
    assert items.reduce()["x"].data_ptr() == whole.data_ptr()


def test_shared_values_are_counted_for_the_items_that_share_them() -> None:
    value = torch.arange(4.0)
    items = KwargsItems(
        {"image": [KwargsItem({"s": FieldElem(value, SharedField(1))}) for _ in range(3)]}
    )
    assert items["image"][0]["s"].field.batch_size == 3
    assert items.reduce()["s"] is value


@pytest.mark.parametrize("pattern", ["x", "n", "nx", "xn", "nn", "xnx", "nxxn", "nnxnnxxn"])
def test_none_entries_keep_their_places(pattern: str) -> None:
    wanted = [None if c == "n" else one(x=torch.tensor(float(i))) for i, c in enumerate(pattern)]
    items = KwargsItems({"image": wanted})
    assert len(items["image"]) == len(pattern)
    assert list(items["image"]) == wanted
    assert [items["image"][i] for i in range(len(pattern))] == wanted
    want = [float(i) for i, c in enumerate(pattern) if c == "x"]
    reduced = items.reduce()
    assert reduced == {} if not want else reduced["x"].tolist() == want


def test_nbytes_counts_shared_memory_once() -> None:
    big = torch.zeros(1000)
    outputs = {"a": big.reshape(10, 100), "b": big.reshape(10, 100), "s": big, "n": [1] * 10}
    config = {
        "a": mmlab.batched("image"),
        "b": mmlab.batched("image"),
        "s": mmlab.shared("image", 10),
        "n": mmlab.batched("image"),
    }
    assert KwargsItems.from_processor(outputs, config).nbytes == 4000
    parts = KwargsItems({"image": [one(x=[big[:10], np.zeros(3)]), one(x=[big[:10], big[10:20]])]})
    assert parts.nbytes == 40 + 24 + 40


def test_nbytes_of_a_slice_is_its_own() -> None:
    _, items = split()
    assert KwargsItems({"image": items["image"][1:3]}).nbytes == 2 * 6 * 4


BAD_ITEMS = [
    (lambda: KwargsItem({1: FieldElem(1, BatchedField())}), r"item key: got 1"),
    (lambda: KwargsItem({"x": torch.zeros(1)}), r"item\['x'\]: got tensor"),
    (lambda: KwargsItem({"x": FieldElem(1, None)}), r"item\['x'\]: got FieldElem"),
    (lambda: KwargsItem({"x": FieldElem(1, mmlab.batched("image"))}), r"item\['x'\]"),
    (lambda: KwargsItem(None), r"item: got NoneType, wanted a mapping key -> FieldElem"),
    (lambda: KwargsItem([1]), r"item: got list, wanted a mapping"),
    (lambda: KwargsItems(None), r"items: got NoneType, wanted a mapping modality -> items"),
    (lambda: KwargsItems([one(x=1)]), r"items: got list, wanted a mapping.*\{'image': \[item\]\}"),
    (lambda: KwargsItems({"image": None}), r"image: got NoneType, wanted a list of KwargsItems"),
    (lambda: KwargsItems({"image": 5}), r"image: got int, wanted a list"),
    (lambda: KwargsItems({"image": one(x=1)}), r"image: got KwargsItem, wanted a list.*\[item\]"),
    (lambda: KwargsItems({"image": (n for n in [1])}), r"image\[0\]: got int"),
    (lambda: KwargsItems({"image": repeat(None)}), r"image: 65537 items, at most"),
    (lambda: KwargsItems({"": []}), r"modality: got ''"),
    (lambda: KwargsItems({"image": [one(x=1), {"x": 1}]}), r"image\[1\]: got dict"),
    (lambda: KwargsItems({"image": [None] * 65537}), r"image: 65537 items, at most 65536"),
]


@pytest.mark.parametrize(("make", "message"), BAD_ITEMS, ids=[m[:30] for _, m in BAD_ITEMS])
def test_bad_items_are_refused_by_name(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BatchError, match=message):
        make()


def test_items_may_come_from_a_generator() -> None:
    items = KwargsItems({"image": (one(x=n) for n in range(3))})
    assert len(items["image"]) == 3 and items.reduce()["x"] == [0, 1, 2]


def test_a_field_with_more_than_its_class_declares_is_refused_not_cut() -> None:
    class Scaled(BatchedField, frozen=True, tag=1, array_like=True):
        scale: float = 2.0

    with pytest.raises(BatchError, match=r"item\['x'\]: got .*scale=2"):
        KwargsItem({"x": FieldElem(torch.zeros(1), Scaled())})


def test_items_that_cannot_form_one_batch_say_which_key_and_why() -> None:
    two = [one(x=torch.zeros(2)), one(x=torch.zeros(2, dtype=torch.float64))]
    with pytest.raises(BatchError, match=r"image: 'x' is torch.float32 .* torch.float64"):
        KwargsItems({"image": two}).reduce()
    with pytest.raises(BatchError, match=r"image: key 'y' is on some items only"):
        KwargsItems({"image": [one(x=1), one(x=1, y=2)]}).reduce()
    flat = KwargsItem({"x": FieldElem(torch.zeros(2), FlatField())})
    with pytest.raises(BatchError, match=r"image: 'x' .*BatchedField.*FlatField"):
        KwargsItems({"image": [one(x=torch.zeros(2)), flat]}).reduce()
    shared = [KwargsItem({"s": FieldElem(n, SharedField())}) for n in (1, 2)]
    with pytest.raises(BatchError, match=r"image: a shared value differs"):
        KwargsItems({"image": shared}).reduce()
    with pytest.raises(BatchError, match=r"audio\.x: another modality has this key"):
        KwargsItems({"image": [one(x=1)], "audio": [one(x=1)]}).reduce()


def test_reprs_show_shapes_and_not_the_data() -> None:
    items = KwargsItems({"image": [one(x=torch.zeros(2, 3))]})
    assert repr(items) == "KwargsItems({'image': 1})"
    assert "torch.float32 (2, 3)" in repr(items["image"][0])
