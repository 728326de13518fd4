"""Batched fields: equal shapes are one tensor, mixed shapes a list or a padded tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmlab
from mmlab import BatchedField, BatchError, FieldElem, KwargsItem, KwargsItems
from mmlab.dtypes import CODE_OF_TORCH, copyable

DTYPES = sorted(CODE_OF_TORCH, key=str)


def batch_of(values: list[object], field: BatchedField | None = None) -> mmlab.Batch:
    """One batch of items that were built apart from each other."""
    field = field or BatchedField()
    items = [("image", KwargsItem({"x": FieldElem(value, field)})) for value in values]
    (batch,) = mmlab.group(items)
    assert batch.num_items == len(values)
    return batch


def raw(tensor: torch.Tensor) -> list[int]:
    return copyable(tensor).contiguous().reshape(-1).view(torch.uint8).tolist()


def random_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    ends = 2 if dtype is torch.bool else 256
    numel = int(np.prod(shape))
    bytes_ = torch.randint(0, ends, (numel * dtype.itemsize,), dtype=torch.uint8)
    return bytes_.view(dtype).reshape(shape)


def test_equal_shapes_of_every_dtype_are_their_stack() -> None:
    for dtype in DTYPES:
        elems = [random_of(dtype, 3, 4) for _ in range(5)]
        batch = batch_of(list(elems))
        reduced = batch.reduce()["x"]
        assert reduced.shape == (5, 3, 4) and reduced.dtype == dtype
        assert raw(reduced) == [byte for elem in elems for byte in raw(elem)], dtype
        plan = batch.plan("x")
        assert plan is not None and plan.copies == 1 and plan.nbytes == reduced.nbytes


def test_declared_padding_of_every_dtype_is_zero_and_keeps_the_elems() -> None:
    for dtype in DTYPES:
        elems = [random_of(dtype, 2, 3), random_of(dtype, 1, 5), random_of(dtype, 2, 0)]
        reduced = batch_of(list(elems), BatchedField(pad=0)).reduce()["x"]
        assert reduced.shape == (3, 2, 5) and reduced.dtype == dtype
        left = copyable(reduced).clone()
        for i, elem in enumerate(elems):
            h, w = elem.shape
            assert raw(reduced[i, :h, :w]) == raw(elem), dtype
            left[i, :h, :w].zero_()
        assert not any(raw(left)), dtype


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [(torch.float32, -1.5), (torch.bfloat16, 0.1), (torch.int64, -100), (torch.bool, True)],
)
def test_other_values_pad_too(dtype: torch.dtype, pad: float) -> None:
    elems = [torch.zeros(2, dtype=dtype), torch.zeros(4, dtype=dtype)]
    reduced = batch_of(list(elems), BatchedField(pad=pad)).reduce()["x"]
    assert torch.equal(reduced[0, 2:], torch.tensor([pad, pad], dtype=dtype))
    assert not reduced[0, :2].any() and not reduced[1].any()


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        (torch.uint8, 300),
        (torch.uint8, -1),
        (torch.int64, 0.5),
        (torch.int64, float("nan")),
        (torch.bool, 2),
        (torch.uint4, 1),
    ],
)
def test_padding_that_the_dtype_cannot_hold_is_refused(dtype: torch.dtype, pad: float) -> None:
    elems = [torch.empty(2, dtype=dtype), torch.empty(4, dtype=dtype)]
    with pytest.raises(BatchError, match=rf"image\.x: pad={pad} is no value of {dtype}"):
        batch_of(list(elems), BatchedField(pad=pad)).plan("x")


def test_elems_of_different_dimensions_cannot_be_padded() -> None:
    with pytest.raises(BatchError, match=r"image\.x: .*\(2,\), \(2, 2\)"):
        batch_of([torch.zeros(2), torch.zeros(2, 2)], BatchedField(pad=0)).reduce()


def test_mixed_shapes_are_the_elems_themselves_in_order() -> None:
    elems = [torch.zeros(2, 3), torch.zeros(1, 3), torch.zeros(2, 3)]
    batch = batch_of(list(elems))
    reduced = batch.reduce()["x"]
    assert isinstance(reduced, list) and all(a is b for a, b in zip(reduced, elems, strict=True))
    assert batch.plan("x") is None


@pytest.mark.parametrize("shape", [(2520, 768), (10080, 768)])
def test_a_batch_of_one_is_a_view(shape: tuple[int, ...]) -> None:
    pixels = torch.zeros(shape)
    reduced = batch_of([pixels]).reduce()["x"]
    assert reduced.shape == (1, *shape) and reduced.data_ptr() == pixels.data_ptr()


def test_images_and_clips_of_two_requests_with_their_masks() -> None:
    """Two requests of different resolution or duration: lists, or padded with their masks."""
    plain, padded = BatchedField(), BatchedField(pad=0)

    def image(n: int) -> KwargsItem:
        return KwargsItem(
            {
                "pixel_values": FieldElem(torch.full((n, 8), float(n)), plain),
                "position_ids": FieldElem(torch.arange(n), plain),
            }
        )

    def clip(n: int) -> KwargsItem:
        return KwargsItem(
            {
                "features": FieldElem(torch.full((n, 4), float(n)), padded),
                "mask": FieldElem(torch.ones(n, dtype=torch.bool), padded),
            }
        )

    pairs = [("image", image(25)), ("image", image(100)), ("audio", clip(3)), ("audio", clip(5))]
    images, clips = mmlab.group(pairs)
    pixels = images.reduce()["pixel_values"]
    assert [tuple(p.shape) for p in pixels] == [(25, 8), (100, 8)]
    assert [len(ids) for ids in images.reduce()["position_ids"]] == [25, 100]
    reduced = clips.reduce()
    assert reduced["features"].shape == (2, 5, 4)
    assert reduced["mask"].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert torch.equal(reduced["features"][..., 0] != 0, reduced["mask"])


def test_mixed_dtypes_are_refused_by_name() -> None:
    outputs = {"x": [torch.zeros(2), torch.zeros(2, dtype=torch.float16)]}
    items = KwargsItems.from_processor(outputs, {"x": mmlab.batched("image")})
    with pytest.raises(BatchError, match=r"image\.x: elem 1 is torch.float16, elem 0 is .*float32"):
        items.reduce()
    arrays = {"x": [np.zeros(2, "<f4"), np.zeros(2, ">f4")]}
    with pytest.raises(BatchError, match=r"image\.x: elem 1 is numpy >f4, elem 0 is <f4"):
        KwargsItems.from_processor(arrays, {"x": mmlab.batched("image")}).reduce()


def test_sparse_elems_are_refused_by_name() -> None:
    with pytest.raises(BatchError, match=r"image\.x: elem 1 is a torch.sparse_coo tensor"):
        batch_of([torch.zeros(2), torch.zeros(2).to_sparse()]).reduce()


def test_a_conjugate_that_is_yet_to_be_applied_is_applied() -> None:
    whole = torch.tensor([[1 + 2j], [3 - 4j]])
    reduced = batch_of([whole[0], whole[1].conj()]).reduce()["x"]
    assert reduced.tolist() == [[1 + 2j], [3 + 4j]]
    parts = [whole[0].imag, whole.conj()[1].imag]
    assert batch_of(list(parts)).reduce()["x"].tolist() == [[2.0], [4.0]]


def test_elems_that_require_grad_are_stacked_as_plain_values() -> None:
    elems = [torch.ones(2, requires_grad=True), torch.zeros(2)]
    out = torch.empty(2, 2)
    batch_of(list(elems)).reduce_key("x", out)
    assert out.tolist() == [[1, 1], [0, 0]] and not out.requires_grad


def test_numbers_and_strings_are_lists() -> None:
    assert batch_of([1, 2]).reduce()["x"] == [1, 2]
    assert batch_of(["a", "b"]).reduce()["x"] == ["a", "b"]
    assert batch_of([None, None]).reduce()["x"] == [None, None]
    assert batch_of([[torch.zeros(1)], []]).reduce()["x"][1] == []


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i2", "?", "c16"])
def test_arrays_are_stacked_and_keep_their_byte_order(dtype: str) -> None:
    elems = [np.arange(3).astype(dtype), np.arange(3, 6).astype(dtype)]
    reduced = batch_of(list(elems)).reduce()["x"]
    assert reduced.dtype == np.dtype(dtype) and reduced.shape == (2, 3)
    assert reduced.tobytes() == b"".join(e.tobytes() for e in elems)


def test_arrays_of_mixed_shapes_are_a_list_or_padded() -> None:
    elems = [np.ones(2, ">i2"), np.ones(3, ">i2")]
    assert [len(e) for e in batch_of(list(elems)).reduce()["x"]] == [2, 3]
    padded = batch_of(list(elems), BatchedField(pad=-1)).reduce()["x"]
    assert padded.tolist() == [[1, 1, -1], [1, 1, 1]] and padded.dtype == np.dtype(">i2")
    with pytest.raises(BatchError, match=r"image\.x: pad=70000 is no value of"):
        batch_of(list(elems), BatchedField(pad=70000)).reduce()
    with pytest.raises(BatchError, match=r"image\.x: pad=0.5 is no value of"):
        batch_of(list(elems), BatchedField(pad=0.5)).reduce()
