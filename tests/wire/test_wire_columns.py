"""Columns: described once, neighbours as one frame, batches back without a copy, items lazily."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from wire_messages import address, assert_same, header_nbytes, owned, payload_nbytes, trip

import mmlab
from mmlab import BatchedField, FieldElem, FlatField, KwargsItem, KwargsItems, SharedField


class CountOps(TorchDispatchMode):
    """How many operators run, views included."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def flat_request(n: int) -> KwargsItems:
    """A flat field of `n` items, as Qwen's patches are."""
    sizes = [3 + i % 5 for i in range(n)]
    return KwargsItems.from_processor(
        {"patches": torch.randn(sum(sizes), 8), "grid": torch.ones(n, 3, dtype=torch.int64)},
        {"patches": mmlab.flat("image", sizes), "grid": mmlab.batched("image", keep_on_cpu=True)},
    )


def encode(obj: object, threshold: int | None = 256) -> list[bytes | bytearray | memoryview]:
    return mmlab.Encoder(threshold).encode(obj)


@pytest.mark.parametrize("apart", [False, True], ids=["as processed", "built one by one"])
def test_the_header_grows_linearly_with_the_items(apart: bool) -> None:
    sizes = {}
    for n in (64, 1024, 4096):
        items = flat_request(n)
        if apart:
            items = KwargsItems(
                {
                    "image": [
                        KwargsItem({k: FieldElem(e.data.clone(), e.field) for k, e in item.items()})
                        for item in items["image"]
                    ]
                }
            )
        frames = encode(items, 0)
        sizes[n] = header_nbytes(frames)
        assert payload_nbytes(frames) <= items.nbytes + 64
        assert mmlab.Decoder().decode(frames) == items
    assert sizes[4096] <= 64 * 1.3 * sizes[64]
    assert sizes[1024] <= 16 * 1024


def test_large_items_that_lie_apart_cost_a_constant_each() -> None:
    def request(n: int) -> KwargsItems:
        parts = [torch.zeros(9000 // (1 + i % 2), 1) for i in range(n)]
        return KwargsItems({"image": [one(p) for p in parts]})

    small, large = (header_nbytes(encode(request(n))) for n in (16, 256))
    assert large <= 16 * 1.3 * small


def one(value: object, field: object = None) -> KwargsItem:
    return KwargsItem({"x": FieldElem(value, field or BatchedField())})  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 32])
def test_a_batch_is_one_frame_over_its_memory_and_comes_back_as_one_tensor(n: int) -> None:
    pixels = torch.randn(n, 3, 64, 64).to(torch.bfloat16)
    items = KwargsItems.from_processor({"x": pixels}, {"x": mmlab.batched("image")})
    frames = encode(items)
    assert len(frames) == 2 and header_nbytes(frames) < 200
    assert address(frames[1]) == pixels.data_ptr() and payload_nbytes(frames) == pixels.nbytes
    received = owned(frames)
    got = mmlab.Decoder().decode(received)
    assert got.reduce()["x"].data_ptr() == address(received[1])  # type: ignore[attr-defined]
    assert_same(got.reduce()["x"], pixels)  # type: ignore[attr-defined]
    elem = got["image"][n - 1]["x"].data  # type: ignore[index]
    assert elem.data_ptr() == address(received[1]) + pixels[0].nbytes * (n - 1)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_flat_column_comes_back_as_one_tensor_along_any_dim(dim: int) -> None:
    patches = torch.randn(16, 40, 16)
    sizes = [1, 0, 15] if dim != 1 else [30, 10, 0]
    items = KwargsItems.from_processor({"x": patches}, {"x": mmlab.flat("image", sizes, dim)})
    received = owned(encode(items))
    got = mmlab.Decoder().decode(received)
    whole = got.reduce()["x"]  # type: ignore[attr-defined]
    assert_same(whole, patches)
    assert whole.data_ptr() == address(received[1])
    assert got == items
    shapes = [item["x"].data.shape[dim] for item in got["image"]]  # type: ignore[index]
    assert shapes == sizes


@pytest.mark.parametrize("field", [BatchedField(), FlatField(), FlatField(1)], ids=str)
def test_neighbours_that_were_built_one_by_one_are_one_frame_and_one_batch(field: object) -> None:
    whole = torch.randn(6, 40, 50)
    flat = isinstance(field, FlatField)
    parts = whole.split([1, 2, 3], 0) if field == FlatField() else whole.split([10, 30], 1)
    parts = parts if flat else whole.unbind(0)
    items = KwargsItems({"image": [one(p, field) for p in parts]})
    frames = encode(items)
    assert len(frames) == 2 and address(frames[1]) == whole.data_ptr()
    received = owned(frames)
    got = mmlab.Decoder().decode(received)
    assert got.reduce()["x"].data_ptr() == address(received[1])  # type: ignore[attr-defined]
    assert_same(got.reduce()["x"], whole)  # type: ignore[attr-defined]


def test_large_parts_that_lie_apart_are_sent_from_where_they_lie() -> None:
    parts = [torch.full((3000,), float(i)) for i in range(4)]
    items = KwargsItems({"image": [one(p) for p in parts]})
    frames = encode(items)
    assert sorted(map(address, frames[1:])) == sorted(p.data_ptr() for p in parts)
    got = mmlab.Decoder().decode(frames)
    assert [e["x"].data.data_ptr() for e in got["image"]] == [p.data_ptr() for p in parts]  # type: ignore[index]
    assert_same(got.reduce()["x"], torch.stack(parts))  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", [BatchedField(), FlatField()], ids=str)
def test_small_parts_are_packed_into_the_batch_they_form(field: object) -> None:
    parts = [torch.full((2, 5), float(i)) for i in range(100)]
    items = KwargsItems({"image": [one(p, field) for p in parts]})
    frames = encode(items, 0)
    assert len(frames) == 2 and payload_nbytes(frames) == 4000
    received = owned(frames)
    got = mmlab.Decoder().decode(received)
    whole = got.reduce()["x"]  # type: ignore[attr-defined]
    assert whole.data_ptr() == address(received[1])
    assert_same(whole, torch.stack(parts) if field == BatchedField() else torch.cat(parts))


def test_ragged_parts_keep_their_shapes() -> None:
    for sizes in ([1, 2, 3], [5000, 1, 5000], [0, 4, 0]):
        parts = [torch.randn(n, 3) for n in sizes]
        for field in (BatchedField(), FlatField(), FlatField(1)):
            wide = [p.t().contiguous() if field == FlatField(1) else p for p in parts]
            items = KwargsItems({"image": [one(p, field) for p in wide]})
            assert trip(items) == items
            assert trip(items, None, copy=True) == items


def test_items_of_several_requests_in_one_message() -> None:
    requests = [flat_request(n) for n in (3, 1, 2)]
    assert trip(requests) == requests
    joined = KwargsItems({"image": [item for r in requests for item in r["image"]]})
    assert trip(joined) == joined
    got = trip(joined)
    assert_same(got.reduce()["patches"], joined.reduce()["patches"])  # type: ignore[attr-defined]


def test_none_entries_and_empty_modalities_are_kept() -> None:
    a, b = one(torch.ones(2)), one(torch.ones(3, dtype=torch.int8))
    for entries in ([None], [None, a], [a, None, None, b, None], [], [b, a, a]):
        items = KwargsItems({"image": entries, "audio": [None] * 3})
        got = trip(items)
        assert got == items and list(got["image"]) == entries  # type: ignore[index]
    empty = KwargsItems.from_processor({"x": torch.zeros(0, 3)}, {"x": mmlab.batched("image")})
    assert len(trip(empty)["image"]) == 0 and trip(KwargsItems({})) == KwargsItems({})  # type: ignore[index]
    assert trip(KwargsItems({"image": [KwargsItem({}), KwargsItem({})]})) == KwargsItems(
        {"image": [KwargsItem({})] * 2}
    )


def test_one_item_out_of_a_batch_costs_its_own_bytes() -> None:
    items = KwargsItems.from_processor(
        {"x": torch.randn(8, 100, 100), "s": torch.ones(3)},
        {"x": mmlab.batched("image"), "s": mmlab.shared("image", 8)},
    )
    frames = encode(items["image"][5], 0)
    assert payload_nbytes(frames) <= 40_000 + 128
    assert mmlab.Decoder().decode(frames) == items["image"][5]
    some = KwargsItems({"image": items["image"][2:4]})
    assert payload_nbytes(encode(some)) == 80_000
    assert trip(some) == some


def test_decoding_and_reducing_make_no_item_before_it_is_asked_for() -> None:
    counts = []
    for n in (4, 4096):
        frames = owned(encode(flat_request(n)))
        with CountOps() as ops:
            got = mmlab.Decoder().decode(frames)
            got.reduce()  # type: ignore[attr-defined]
        counts.append(ops.count)
        with CountOps() as ops:
            _ = got["image"][1]["patches"].data  # type: ignore[index]
        assert ops.count == 1
    assert max(counts) <= 4


def test_parts_that_lie_apart_are_made_one_by_one_when_asked_for() -> None:
    parts = [torch.zeros(2500 + i) for i in range(50)]
    frames = owned(encode(KwargsItems({"image": [one(p) for p in parts]})))
    gc.collect()
    before = count_tensors()
    got = mmlab.Decoder().decode(frames)
    assert count_tensors() == before
    assert got["image"][7]["x"].data.shape == (2507,)  # type: ignore[index]
    assert count_tensors() - before <= 2
    assert [b.num_items for b in mmlab.group(got.pairs())] == [50]  # type: ignore[attr-defined]
    assert count_tensors() - before <= 2


def count_tensors() -> int:
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def test_a_shared_field_is_sent_once_and_stays_one_object() -> None:
    """Sixteen items that refer to one shared tensor of 8 MB."""
    value = torch.randn(2 << 20)
    items = KwargsItems.from_processor(
        {"s": value, "x": torch.zeros(16, 1)},
        {"s": mmlab.shared("image", 16), "x": mmlab.batched("image")},
    )
    apart = KwargsItems(
        {"image": [KwargsItem({"s": FieldElem(value, SharedField())}) for _ in range(16)]}
    )
    batched = KwargsItems({"image": [one(value) for _ in range(16)]})
    for message in (items, apart, batched):
        frames = encode(message)
        assert value.nbytes <= payload_nbytes(frames) <= value.nbytes + 1024
        assert header_nbytes(frames) < 1024
        got = mmlab.Decoder().decode(frames)
        key = "x" if message is batched else "s"
        datas = [item[key].data for item in got["image"]]  # type: ignore[index]
        assert all(d.data_ptr() == datas[0].data_ptr() for d in datas)
        assert_same(datas[0], value)


def test_views_of_one_numpy_array_are_a_batch_of_numpy() -> None:
    array = np.arange(12, dtype=">f4").reshape(4, 3)
    items = KwargsItems.from_processor({"x": array}, {"x": mmlab.batched("image")})
    received = owned(encode(items, 0))
    got = mmlab.Decoder().decode(received)
    assert got.reduce()["x"].ctypes.data == address(received[1])  # type: ignore[attr-defined]
    assert_same(got.reduce()["x"], array)  # type: ignore[attr-defined]


def test_conjugate_neighbours_are_no_batch_yet() -> None:
    whole = torch.randn(4, 2000, dtype=torch.complex64)
    for n in (2000, 3):
        parts = [whole[0, :n], whole[1, :n].conj(), whole[2, :n], whole[3, :n].conj()]
        items = KwargsItems({"image": [one(p) for p in parts]})
        assert_same(trip(items).reduce()["x"], torch.stack([p.resolve_conj() for p in parts]))  # type: ignore[attr-defined]
