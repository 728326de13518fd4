"""Flat fields: concatenation along any dim, without a copy where the pieces are neighbours."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import mmlab
from mmlab import BatchError, FieldElem, FlatField, KwargsItem, KwargsItems
from mmlab.dtypes import CODE_OF_TORCH, copyable


def batch_of(values: list[object], dim: int = 0) -> mmlab.Batch:
    pairs = [("image", KwargsItem({"x": FieldElem(value, FlatField(dim))})) for value in values]
    (batch,) = mmlab.group(pairs)
    return batch


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_pieces_of_one_tensor_join_to_that_memory_along_any_dim(dim: int) -> None:
    whole = torch.arange(6 * 6 * 6.0).reshape(6, 6, 6)
    pieces = [whole.narrow(dim, 0, 2), whole.narrow(dim, 2, 0), whole.narrow(dim, 2, 4)]
    batch = batch_of(list(pieces), dim)
    plan = batch.plan("x")
    assert plan is not None and plan.copies == 0 and plan.shape == (6, 6, 6)
    joined = batch.reduce()["x"]
    assert joined.data_ptr() == whole.data_ptr() and torch.equal(joined, whole)


def test_pieces_in_another_order_are_copied_in_that_order() -> None:
    whole = torch.arange(6.0)
    batch = batch_of([whole[3:], whole[:3]])
    assert batch.plan("x").copies == 1  # type: ignore[union-attr]
    assert batch.reduce()["x"].tolist() == [3, 4, 5, 0, 1, 2]


def test_pieces_with_a_gap_between_them_are_copied() -> None:
    whole = torch.arange(6.0)
    batch = batch_of([whole[:2], whole[3:]])
    assert batch.plan("x").copies == 1  # type: ignore[union-attr]
    assert batch.reduce()["x"].tolist() == [0, 1, 3, 4, 5]


def test_equal_addresses_in_different_storages_are_not_one_tensor() -> None:
    array = np.arange(10, dtype=np.float32)
    head, tail = torch.from_numpy(array[:4]), torch.from_numpy(array[4:])
    assert torch.equal(batch_of([head, tail]).reduce()["x"], torch.arange(10.0))
    again = torch.from_numpy(array)  # begins where `head` begins, but its storage is longer
    assert torch.equal(
        batch_of([head, again[4:]]).reduce()["x"],
        torch.arange(10.0),
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_every_dtype_joins_exactly(dim: int) -> None:
    for dtype in CODE_OF_TORCH:
        check_join(dtype, dim)


def check_join(dtype: torch.dtype, dim: int) -> None:
    ends = 2 if dtype is torch.bool else 256
    rows = [
        torch.randint(0, ends, (6 * n * dtype.itemsize,), dtype=torch.uint8).view(dtype)
        for n in (1, 3, 2)
    ]
    elems = [row.view(-1, 6) if dim == 0 else row.view(6, -1) for row in rows]
    out = batch_of(list(elems), dim).reduce()["x"]
    want = torch.cat([copyable(e).contiguous() for e in elems], dim)
    assert out.dtype == dtype
    assert torch.equal(copyable(out).view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dim", [0, -1])
def test_other_dims_that_differ_are_zero_padded(dim: int) -> None:
    """Audio of different lengths: one padded tensor, not a crash."""
    a, b = torch.ones(2, 3, 4), torch.full((1, 5, 4) if dim == 0 else (2, 5, 1), 2.0)
    batch = batch_of([a, b], dim)
    out = batch.reduce()["x"]
    plan = batch.plan("x")
    assert plan is not None and plan.copies == 1 and plan.shape == tuple(out.shape)
    if dim == 0:
        assert out.shape == (3, 5, 4)
        assert torch.equal(out[:2, :3], a) and torch.equal(out[2:], b)
        assert not out[:2, 3:].any()
    else:
        assert out.shape == (2, 5, 5)
        assert torch.equal(out[:, :3, :4], a) and torch.equal(out[:, :, 4:], b)
        assert not out[:, 3:, :4].any()


def test_ragged_sub_byte_dtypes_are_padded_too() -> None:
    a = torch.ones(2, 3, dtype=torch.uint8).view(torch.uint2)
    b = torch.ones(1, 4, dtype=torch.uint8).view(torch.uint2)
    out = batch_of([a, b]).reduce()["x"]
    assert out.dtype == torch.uint2
    assert out.view(torch.uint8).tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_lists_are_joined_as_lists() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    assert batch_of([[a], [], [b, 3]]).reduce()["x"] == [a, b, 3]
    pairs = [("image", KwargsItem({"x": FieldElem(part, FlatField())})) for part in ([1], [2, 3])]
    assert next(mmlab.group(pairs)).reduce()["x"] == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["<f4", ">i2"])
def test_arrays_join_and_are_padded_like_tensors(dtype: str) -> None:
    a, b = np.ones((2, 3), dtype), np.full((1, 4), 2, dtype)
    out = batch_of([a, b]).reduce()["x"]
    assert out.dtype == np.dtype(dtype)
    assert out.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [2, 2, 2, 2]]
    out = batch_of([a, a], dim=-1).reduce()["x"]
    assert out.shape == (2, 6) and out.dtype == np.dtype(dtype)


BAD = [
    ([torch.zeros(2), torch.zeros(2, 2)], 0, r"image\.x: .*dimensions"),
    ([np.zeros(2), np.zeros((2, 2))], 0, r"image\.x: .*dimensions"),
    ([torch.zeros(2), torch.zeros(2)], 5, r"image\.x: flat along dim 5, an elem has 1 dim"),
    ([torch.zeros(2)], -2, r"image\.x: flat along dim -2"),
    ([torch.zeros(())], 0, r"image\.x: flat along dim 0, an elem has 0 dim"),
    ([np.zeros(2), np.zeros(2)], 1, r"image\.x: flat along dim 1"),
    ([[1], [2]], 1, r"image\.x: flat along dim 1"),
]


@pytest.mark.parametrize(("values", "dim", "message"), BAD)
def test_what_cannot_be_joined_is_refused_by_name(
    values: list[object], dim: int, message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        batch_of(values, dim).reduce()


def test_kinds_that_do_not_join_are_named() -> None:
    items = KwargsItems.from_processor({"x": [1, 2]}, {"x": mmlab.batched("image")})
    assert items.reduce()["x"] == [1, 2]
    with pytest.raises(BatchError, match=r"image\.x: flat elems are int: wanted all tensors"):
        batch_of([1, 2]).reduce()


def test_mixed_dtypes_are_refused_by_name() -> None:
    from mmlab.fields.column import Block, Column, Run

    column = Column(FlatField(), 2, parts=[torch.zeros(1), torch.zeros(1, dtype=torch.float64)])
    batch = mmlab.Batch("image", [Run(Block(2, {"x": column}), 0, 2)], [0, 1])
    with pytest.raises(BatchError, match=r"image\.x: elem 1 is torch.float64, elem 0 is"):
        batch.reduce()


@pytest.mark.parametrize(
    "counts",
    [
        {"a": [4], "b": [1], "c": [3, 2]},
        {"a": [[4]], "b": torch.tensor([1]), "c": [torch.tensor(3), [2]]},
        {"a": np.array([4]), "b": [[1]], "c": torch.tensor([3, 2])},
    ],
    ids=["ints", "lists", "tensors"],
)
def test_crops_of_shuffled_requests_stay_with_their_owner(counts: dict[str, object]) -> None:
    """Pan and scan: image A has 1 + 3 crops, B 1 + 0, C two images of 1 + 2 and 1 + 1."""
    owner = {"a": 1.0, "b": 2.0, "c": 3.0}
    total = {"a": 4, "b": 1, "c": 5}
    requests = {
        name: KwargsItems.from_processor(
            {"crops": torch.full((total[name], 3, 8, 8), owner[name])},
            {"crops": mmlab.flat("image", counts[name])},  # type: ignore[arg-type]
        )
        for name in owner
    }
    pairs = [(name, pair) for name, items in requests.items() for pair in items.pairs()]
    random.shuffle(pairs)
    (batch,) = mmlab.group([pair for _, pair in pairs])
    crops = batch.reduce()["crops"]
    assert crops.shape == (10, 3, 8, 8)
    got: dict[str, list[float]] = {"a": [], "b": [], "c": []}
    at = 0
    for name, (_, item) in pairs:
        n = item["crops"].data.shape[0]  # type: ignore[index]
        assert torch.equal(crops[at : at + n], item["crops"].data)  # type: ignore[index]
        got[name] += crops[at : at + n, 0, 0, 0].tolist()
        at += n
    assert got == {"a": [1.0] * 4, "b": [2.0], "c": [3.0] * 5}


@pytest.mark.parametrize("zero", [0, [0], torch.tensor(0), torch.tensor([0]), np.int64(0)])
def test_an_image_without_crops_takes_none_of_its_neighbours(zero: object) -> None:
    items = KwargsItems.from_processor(
        {"crops": torch.arange(5.0)},
        {"crops": mmlab.flat("image", [3, zero, 2])},  # type: ignore[list-item]
    )
    assert [e["crops"].data.tolist() for e in items["image"]] == [[0, 1, 2], [], [3, 4]]


def test_crop_counts_that_do_not_match_name_the_item() -> None:
    with pytest.raises(BatchError, match=r"image\.crops: .*sum to 5.*has 4 \(off at item 1\)"):
        KwargsItems.from_processor(
            {"crops": torch.zeros(4, 3)}, {"crops": mmlab.flat("image", [3, 2])}
        )
