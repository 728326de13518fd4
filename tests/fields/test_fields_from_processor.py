"""`KwargsItems.from_processor`: what is split how, that nothing is copied, and every bad input."""

from __future__ import annotations

import re
import traceback
import warnings
from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mmlab
from mmlab import BatchError, KwargsItems


class CountOps(TorchDispatchMode):
    """How many operators run, views included."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_batched_elems_are_views_of_the_processors_tensor() -> None:
    pixels = torch.arange(24.0).reshape(4, 2, 3)
    items = KwargsItems.from_processor({"x": pixels}, {"x": mmlab.batched("image")})
    assert len(items["image"]) == 4
    for i, item in enumerate(items["image"]):
        elem = item["x"]
        assert elem.data.shape == (2, 3)
        assert elem.data.data_ptr() == pixels[i].data_ptr()
        assert elem.field == mmlab.BatchedField()


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_flat_elems_are_slices_along_their_dim(dim: int) -> None:
    patches = torch.arange(6 * 6 * 6.0).reshape(6, 6, 6)
    items = KwargsItems.from_processor(
        {"x": patches}, {"x": mmlab.flat("image", sizes=[1, 0, 5], dim=dim)}
    )
    at = 0
    for item, size in zip(items["image"], (1, 0, 5), strict=True):
        want = patches.narrow(dim, at, size)
        assert torch.equal(item["x"].data, want)
        assert item["x"].data.data_ptr() == want.data_ptr() or not size
        at += size
    assert items.reduce()["x"] is patches


def test_flat_takes_slices_that_follow_each_other() -> None:
    patches = torch.arange(17.0)
    by_slices = mmlab.flat("image", slices=[slice(0, 4), slice(4, 13), slice(None, 17)])
    assert by_slices == mmlab.flat("image", sizes=[4, 9, 4])
    items = KwargsItems.from_processor({"x": patches}, {"x": by_slices})
    assert [item["x"].data.shape[0] for item in items["image"]] == [4, 9, 4]


@pytest.mark.parametrize(
    "sizes", [[4, 9], (4, 9), torch.tensor([4, 9]), np.array([4, 9], np.uint8), [[4], [9]]]
)
def test_flat_sizes_are_integers_of_any_kind(sizes: object) -> None:
    assert mmlab.flat("image", sizes).sizes == (4, 9)  # type: ignore[arg-type]


def test_flat_sizes_of_mixed_kinds_as_processors_give_them() -> None:
    sizes = [0, [0], torch.tensor(3), torch.tensor([1]), np.int64(2), np.array([5])]
    assert mmlab.flat("image", sizes).sizes == (0, 0, 3, 1, 2, 5)  # type: ignore[arg-type]


def test_shared_elems_are_the_same_object_for_all_items() -> None:
    value = torch.arange(3.0)
    items = KwargsItems.from_processor({"x": value}, {"x": mmlab.shared("image", 3)})
    assert [item["x"].data is value for item in items["image"]] == [True] * 3
    assert items.reduce()["x"] is value


def test_a_list_is_one_elem_an_item_whatever_the_shapes() -> None:
    images = [torch.zeros(2, 3), torch.zeros(4, 5)]
    items = KwargsItems.from_processor({"x": images}, {"x": mmlab.batched("image")})
    assert [item["x"].data is image for item, image in zip(items["image"], images, strict=True)]
    reduced = items.reduce()["x"]
    assert isinstance(reduced, list) and all(a is b for a, b in zip(reduced, images, strict=True))


def test_lists_of_numbers_and_nested_lists_are_kept() -> None:
    outputs = {"n": [1, 2.5, True], "nested": [[torch.zeros(1)], [], [torch.ones(2), 3]]}
    items = KwargsItems.from_processor(
        outputs, {"n": mmlab.batched("image"), "nested": mmlab.batched("image")}
    )
    assert [item["n"].data for item in items["image"]] == [1, 2.5, True]
    assert items["image"][1]["nested"].data == []
    assert items.reduce()["nested"][2][1] == 3


def test_flat_lists_are_sliced_as_lists() -> None:
    items = KwargsItems.from_processor({"x": list("abcde")}, {"x": mmlab.flat("image", [2, 3])})
    assert [item["x"].data for item in items["image"]] == [["a", "b"], ["c", "d", "e"]]


def test_numpy_arrays_are_split_as_views() -> None:
    array = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], ">i2")
    items = KwargsItems.from_processor(
        {"b": array, "f": array},
        {"b": mmlab.batched("image"), "f": mmlab.flat("image", [1, 0, 1, 1], dim=-1)},
    )
    item = items["image"][3]
    assert item["b"].data.base is array and item["f"].data.base is array
    assert item["b"].data.dtype == np.dtype(">i2")
    assert item["f"].data.tolist() == [[2], [5], [8], [11]]


def test_elems_of_a_1d_batch_stay_tensors_and_arrays() -> None:
    outputs = {"t": torch.arange(2), "a": np.arange(2)}
    items = KwargsItems.from_processor(outputs, dict.fromkeys(outputs, mmlab.batched("image")))
    assert items["image"][1]["t"].data.shape == ()
    assert type(items["image"][1]["a"].data) is np.ndarray and items["image"][1]["a"].data == 1


def test_modalities_are_apart_and_keys_keep_their_order() -> None:
    outputs = UserDict(b=torch.zeros(2), clip=torch.zeros(3), a=torch.ones(2))
    config = {
        "a": mmlab.batched("image"),
        "b": mmlab.batched("image", keep_on_cpu=True),
        "clip": mmlab.batched("audio"),
    }
    items = KwargsItems.from_processor(outputs, config)
    assert {m: len(entries) for m, entries in items.items()} == {"image": 2, "audio": 3}
    assert list(items["image"][0]) == ["b", "a"]
    assert items["image"][0]["b"].field.keep_on_cpu
    assert list(items.reduce()) == ["b", "a", "clip"]


def test_splitting_and_reducing_cost_no_operator_however_many_items() -> None:
    outputs = {"b": torch.zeros(4096, 3), "f": torch.zeros(5, 4096), "s": torch.zeros(7)}
    config = {
        "b": mmlab.batched("image"),
        "f": mmlab.flat("image", [1] * 4096, dim=1),
        "s": mmlab.shared("image", 4096),
    }
    with CountOps() as ops:
        items = KwargsItems.from_processor(outputs, config)
        reduced = items.reduce()
    assert ops.count == 0
    assert all(reduced[key] is outputs[key] for key in outputs)


def test_no_items_are_no_items() -> None:
    items = KwargsItems.from_processor({"x": torch.zeros(0, 3)}, {"x": mmlab.batched("image")})
    assert len(items["image"]) == 0 and list(mmlab.group(items.pairs())) == []
    assert dict(KwargsItems.from_processor({}, {})) == {}


T = torch.zeros(3, 4)
with warnings.catch_warnings(action="ignore"):  # that CSR is in beta
    CSR = T.to_sparse_csr()
BAD = [
    ({"x": T}, {}, r"outputs\['x'\] has no field"),
    ({}, {"x": mmlab.batched("image")}, r"config\['x'\] \(image\): no such output"),
    ({"x": T}, {"x": mmlab.BatchedField()}, r"config\['x'\]: got BatchedField"),
    ({1: T}, {1: mmlab.batched("image")}, r"outputs\[1\]: got a int"),
    (None, {}, r"outputs: got NoneType, wanted a mapping key -> value"),
    ([T], {}, r"outputs: got list, wanted a mapping"),
    ({"x": T}, None, r"config: got NoneType, wanted a mapping key -> mmlab\.batched"),
    ({"x": T}, ["x"], r"config: got list, wanted a mapping key -> mmlab\.batched"),
    (
        {"x": T.to_sparse()},
        {"x": mmlab.batched("image")},
        r"image\.x: .*_coo .*make it dense",
    ),
    ({"x": T.to_sparse()}, {"x": mmlab.flat("image", [3])}, r"image\.x: .*sparse_coo tensor"),
    ({"x": CSR}, {"x": mmlab.batched("image")}, r"image\.x: got a torch\.sparse_csr tensor"),
    ({"x": CSR}, {"x": mmlab.flat("image", [3])}, r"image\.x: .*_csr tensor.*make it dense first"),
    ({"x": 3}, {"x": mmlab.batched("image")}, r"image\.x: got int.*mmlab\.shared"),
    ({"x": "abc"}, {"x": mmlab.batched("image")}, r"image\.x: got str"),
    ({"x": None}, {"x": mmlab.flat("image", [1])}, r"image\.x: got NoneType"),
    ({"x": torch.tensor(1)}, {"x": mmlab.batched("image")}, r"image\.x: got a 0-d Tensor"),
    ({"x": np.array(1)}, {"x": mmlab.batched("image")}, r"image\.x: got a 0-d ndarray"),
    ({"x": T}, {"x": mmlab.flat("image", [1, 1])}, r"image\.x: sizes of 2 items sum to 2.* 3.*1\)"),
    ({"x": T}, {"x": mmlab.flat("image", [1, 1, 4])}, r"image\.x: .* sum to 6.* 3 .*at item 2\)"),
    ({"x": T}, {"x": mmlab.flat("image", [])}, r"image\.x: .* sum to 0"),
    ({"x": T}, {"x": mmlab.flat("image", [3], dim=2)}, r"image\.x: dim 2 of a 2-d value"),
    ({"x": [1, 2]}, {"x": mmlab.flat("image", [2], dim=1)}, r"image\.x: dim 1 of a list"),
    (
        {"x": T, "y": torch.zeros(2)},
        {"x": mmlab.batched("image"), "y": mmlab.batched("image")},
        r"image\.y has 2 items, image\.x has 3",
    ),
    (
        {"x": T, "y": 1},
        {"x": mmlab.batched("image"), "y": mmlab.shared("image", 2)},
        r"image\.y has 2 items, image\.x has 3",
    ),
    (
        {"x": torch.zeros(65537)},
        {"x": mmlab.batched("image")},
        r"image: 65537 items, at most 65536",
    ),
]


@pytest.mark.parametrize(("outputs", "config", "message"), BAD, ids=[m[:30] for _, _, m in BAD])
def test_bad_outputs_are_refused_by_name(outputs: dict, config: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(BatchError, match=message):
        KwargsItems.from_processor(outputs, config)


META = torch.ones(2, dtype=torch.int64, device="meta")
BAD_FIELDS = [
    (lambda: mmlab.flat("image", [2, -1]), r"image\[1\]: flat size is -1"),
    (lambda: mmlab.flat("image", [2, 1.5]), r"image\[1\]: flat size: got float 1\.5"),
    (lambda: mmlab.flat("image", [True]), r"image\[0\]: flat size: got bool"),
    (lambda: mmlab.flat("image", [[1, 2]]), r"image\[0\]: flat size: got list"),
    (lambda: mmlab.flat("image", torch.zeros(2, 2)), r"image\[0\]: flat size: got Tensor"),
    (lambda: mmlab.flat("image", 5), r"image: flat\(\) got 5, wanted a sequence"),
    (lambda: mmlab.flat("image", torch.tensor(5)), r"image: flat\(\) got tensor\(5\)"),
    (lambda: mmlab.flat("image", "ab"), r"image\[0\]: flat size: got str"),
    (lambda: mmlab.flat("image"), r"image: flat\(\) takes either sizes or slices"),
    (lambda: mmlab.flat("image", [1], slices=[slice(0, 1)]), r"either sizes or slices"),
    (lambda: mmlab.flat("image", [slice(0, 1)]), r"image: .*pass them as slices="),
    (lambda: mmlab.flat("image", slices=[slice(1, 2)]), r"image\[0\]: .*wanted to start at 0"),
    (lambda: mmlab.flat("image", slices=[slice(0, 2), slice(1, 3)]), r"image\[1\]: .*start at 2"),
    (lambda: mmlab.flat("image", slices=[slice(0, 2), slice(2, 1)]), r"image\[1\]: .*start at 2"),
    (lambda: mmlab.flat("image", slices=[slice(0, 4, 2)]), r"image\[0\]: .*slice\(0, 4, 2\)"),
    (lambda: mmlab.flat("image", slices=[slice(0, None)]), r"image\[0\]: .*got NoneType"),
    (lambda: mmlab.flat("image", slices=[4]), r"image\[0\]: flat slice: got 4"),
    (lambda: mmlab.flat("image", [1], dim="x"), r"image: dim: got str"),
    (lambda: mmlab.shared("image", -1), r"image: batch_size is -1"),
    (lambda: mmlab.shared("image", "2"), r"image: batch_size: got str"),
    (lambda: mmlab.batched(""), r"modality: got ''"),
    (lambda: mmlab.batched(3), r"modality: got 3"),
    (lambda: mmlab.batched("image", pad="0"), r"image: pad is '0'"),
    (lambda: mmlab.batched("image", pad=10**400), r"image: pad is an integer of 1329 bits"),
    (lambda: mmlab.batched("image", pad=10**5000), r"image: pad is an integer of 16610 bits"),
    (lambda: mmlab.batched("image", pad=2**64), r"image: pad .* wanted -2\*\*63 to 2\*\*64 - 1"),
    (lambda: mmlab.batched("image", pad=-(2**63) - 1), r"image: pad is an integer .*wanted -2"),
    (lambda: mmlab.batched("image", "yes"), r"image: keep_on_cpu is 'yes', wanted True or False"),
    (lambda: mmlab.batched("image", keep_on_cpu=1), r"image: keep_on_cpu is 1, wanted True"),
    (lambda: mmlab.flat("image", [1], 0, None), r"image: keep_on_cpu is None, wanted True"),
    (lambda: mmlab.shared("image", 1, 0), r"image: keep_on_cpu is 0, wanted True"),
    (lambda: mmlab.flat("image", META), r"image\[0\]: flat size: got Tensor .*meta.* an integer"),
    (lambda: mmlab.flat("image", [META[0]]), r"image\[0\]: flat size: got Tensor .*meta"),
    (lambda: mmlab.shared("image", META[0]), r"image: batch_size: got Tensor .*meta"),
]


@pytest.mark.parametrize(("make", "message"), BAD_FIELDS, ids=[m[:40] for _, m in BAD_FIELDS])
def test_bad_fields_are_refused_where_they_are_written(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BatchError, match=message) as caught:
        make()
    frames = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert "<lambda>" in frames and re.search(message, str(caught.value))


@pytest.mark.parametrize(
    "pad", [-(2**63), 2**64 - 1, 0, True, 1e300, float("inf"), float("nan"), None]
)
def test_numbers_of_any_dtype_may_pad(pad: float | None) -> None:
    assert mmlab.batched("image", pad=pad).field.pad is pad  # type: ignore[union-attr]


def test_meta_tensors_are_split_by_their_shapes() -> None:
    whole = torch.ones(3, 4, device="meta")
    items = KwargsItems.from_processor(
        {"b": whole, "f": whole}, {"b": mmlab.batched("image"), "f": mmlab.flat("image", [1, 0, 2])}
    )
    assert [tuple(item["f"].data.shape) for item in items["image"]] == [(1, 4), (0, 4), (2, 4)]
    assert items["image"][0]["b"].data.shape == (4,) and items.reduce()["f"] is whole


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_as_flat_by_name() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(BatchError, match=r"image\.x: got a nested tensor"):
        KwargsItems.from_processor({"x": nested}, {"x": mmlab.flat("image", [2, 3])})
