"""Any message that can be sent arrives as it was: hypothesis over nested values, items, Structs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_messages import assert_same, owned

import mmlab
from mmlab import BatchedField, FieldElem, FlatField, KwargsItem, KwargsItems, SharedField, dtypes

DTYPES = [d for d in dtypes.CODE_OF_TORCH if d not in (torch.complex32, torch.bool)]
DTYPES = [d for d in DTYPES if "bcomplex" not in str(d)]
THRESHOLDS = st.sampled_from([0, 1, 64, 256, 10_000, None])
BOOLS = st.booleans()
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def filled(nbytes: int, seed: int) -> torch.Tensor:
    return (torch.arange(nbytes) * (seed % 251 + 1) + seed).to(torch.uint8)


def make_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int, how: int) -> torch.Tensor:
    numel = int(np.prod(shape, dtype=np.int64))
    flat = filled((numel + 3) * dtype.itemsize, seed).view(dtype)
    tensor = flat[3:].view(shape) if how & 1 else flat[:numel].view(shape)
    return tensor.mT if how & 2 and tensor.ndim > 1 else tensor


def make_array(code: int, shape: tuple[int, ...], seed: int, how: int) -> np.ndarray:
    dtype = dtypes.NUMPY_OF[code]
    numel = int(np.prod(shape, dtype=np.int64))
    raw = filled(numel * dtype.itemsize, seed).numpy()
    array = (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)
    return array.T if how & 1 else array[..., ::-1] if how & 2 and array.ndim else array


TENSORS = st.builds(
    make_tensor, st.sampled_from(DTYPES), SHAPES, st.integers(0, 1000), st.integers(0, 3)
)
LARGE = st.builds(
    lambda dtype, n, seed: filled(n * 16, seed).view(dtype),
    st.sampled_from(DTYPES),
    st.integers(500, 1500),
    st.integers(0, 1000),
)
ARRAYS = st.builds(
    make_array,
    st.sampled_from(sorted(dtypes.NUMPY_OF)),
    SHAPES,
    st.integers(0, 1000),
    st.integers(0, 3),
)
INTS = st.integers(-(1 << 63), (1 << 64) - 1)
TEXT = st.text(max_size=8)
KEYS = st.one_of(TEXT, INTS, BOOLS, st.none(), st.binary(max_size=3), st.tuples(TEXT, INTS))
SCALARS = st.one_of(st.none(), BOOLS, INTS, st.floats(), TEXT, st.binary(max_size=300))
NUMPY_SCALARS = st.builds(
    lambda code, seed: make_array(code, (1,), seed, 0)[0],
    st.sampled_from(sorted(dtypes.NUMPY_OF)),
    st.integers(0, 1000),
)
SPECIAL = st.one_of(
    NUMPY_SCALARS,
    TEXT.map(np.str_),
    st.binary(max_size=3).map(np.bytes_),
    st.binary(max_size=3).map(bytearray),
    st.sampled_from(list(dtypes.CODE_OF_TORCH)),
    st.sampled_from(list(dtypes.NUMPY_OF.values())),
    st.lists(st.integers(0, 1 << 40), max_size=4).map(torch.Size),
    st.builds(slice, st.none() | INTS, st.none() | INTS, st.none() | INTS),
)
LEAVES = st.one_of(SCALARS, SPECIAL, TENSORS, LARGE, ARRAYS)


def nest(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Lists, tuples and dicts of what an item's value may hold."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(inner, max_size=5).map(tuple),
            st.dictionaries(KEYS, inner, max_size=4),
        ),
        max_leaves=10,
    )


VALUES = nest(LEAVES)
FIELDS = st.one_of(
    st.builds(BatchedField, BOOLS, st.none() | st.integers(-5, 5) | st.floats(allow_nan=False)),
    st.builds(FlatField, st.just(0), BOOLS),
    st.builds(SharedField, st.integers(0, 5), BOOLS),
)
ITEM = st.dictionaries(TEXT, st.builds(FieldElem, VALUES, FIELDS), max_size=3).map(KwargsItem)


@st.composite
def batched_items(draw: st.DrawFn) -> KwargsItems:
    """What a processor gives, or some of it, in any order and with cached items between."""
    n = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    dim = draw(st.integers(0, 1))
    rest = draw(st.integers(0, 3))
    dtype = draw(st.sampled_from(DTYPES))
    shape = (sum(sizes), rest) if dim == 0 else (rest, sum(sizes))
    outputs = {
        "batched": make_tensor(dtype, (n, *draw(SHAPES)), draw(st.integers(0, 99)), draw(BOOLS)),
        "flat": make_tensor(dtype, shape, 7, 0),
        "array": make_array(76, (n, 2), 3, 0),
        "list": draw(st.lists(VALUES, min_size=n, max_size=n)),
        "shared": draw(VALUES),
    }
    config = {
        "batched": mmlab.batched("image"),
        "flat": mmlab.flat("image", sizes, dim),
        "array": mmlab.batched("image"),
        "list": mmlab.batched("image", keep_on_cpu=True),
        "shared": mmlab.shared("image", n),
    }
    items = KwargsItems.from_processor(outputs, config)
    if draw(BOOLS):
        return items
    order = draw(st.lists(st.none() | st.integers(0, n - 1), max_size=6))
    picked = [None if i is None else items["image"][i] for i in order]
    return KwargsItems({"image": picked, "again": items["image"]})


ITEMS = batched_items() | st.dictionaries(
    st.sampled_from(["image", "audio"]), st.lists(st.none() | ITEM, max_size=4), max_size=2
).map(KwargsItems)
# outside items: what decodes without a type as what it was
PLAIN = st.recursive(
    st.one_of(
        SCALARS,
        SPECIAL.filter(lambda v: not isinstance(v, (torch.Size, bytearray))),
        TENSORS,
        ARRAYS,
        LARGE,
    ),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


class Struct(msgspec.Struct):
    mm: KwargsItems | None
    item: KwargsItem
    tensor: torch.Tensor
    arrays: list[np.ndarray]
    pair: tuple[int, str]
    size: torch.Size
    where: slice | None
    plain: object = None


@dataclasses.dataclass
class Data:
    struct: Struct | None
    tensors: dict[str, torch.Tensor]
    number: np.generic


STRUCTS = st.builds(
    Struct,
    mm=st.none() | ITEMS,
    item=ITEM,
    tensor=TENSORS | LARGE,
    arrays=st.lists(ARRAYS, max_size=3),
    pair=st.tuples(INTS, TEXT),
    size=st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    where=st.none() | st.builds(slice, INTS),
    plain=PLAIN,
)
DATA = st.builds(
    Data,
    struct=st.none() | STRUCTS,
    tensors=st.dictionaries(TEXT, TENSORS, max_size=3),
    number=NUMPY_SCALARS,
)


def trip(obj: object, threshold: int | None, copy: bool, type_: object = None) -> object:
    frames = mmlab.Encoder(threshold).encode(obj)
    received = [bytearray(frame) for frame in owned(frames)]
    got = mmlab.Decoder(type_, copy=copy).decode(received)
    if copy:  # nothing may still depend on the frames
        for frame in received:
            frame[:] = b"\xee" * len(frame)
    return got


def check(make: Callable[[bool], object], want: object) -> None:
    for copy in (False, True):
        assert_same_message(make(copy), want)


def assert_same_message(got: object, want: object) -> None:
    if isinstance(want, (KwargsItem, KwargsItems)):
        assert type(got) is type(want) and got == want
    elif isinstance(want, msgspec.Struct):
        assert type(got) is type(want)
        for name in want.__struct_fields__:
            assert_same_message(getattr(got, name), getattr(want, name))
    elif dataclasses.is_dataclass(want):
        assert type(got) is type(want)
        for field in dataclasses.fields(want):
            assert_same_message(getattr(got, field.name), getattr(want, field.name))
    else:
        assert_same(got, want)


@given(VALUES, THRESHOLDS, BOOLS)
@settings(max_examples=120)
def test_values_of_items(value: object, threshold: int | None, copy: bool) -> None:
    item = KwargsItem({"x": FieldElem(value, BatchedField())})
    got = trip(item, threshold, copy)
    assert_same(got["x"].data, value)  # type: ignore[index]


@given(ITEMS, THRESHOLDS, BOOLS)
@settings(max_examples=120)
def test_items(items: KwargsItems, threshold: int | None, copy: bool) -> None:
    got = trip(items, threshold, copy)
    assert isinstance(got, KwargsItems) and got == items
    for modality, entries in items.items():
        assert [e if e is None else list(e) for e in got[modality]] == [
            e if e is None else list(e) for e in entries
        ]
        for a, b in zip(got[modality], entries, strict=True):
            for key in b or ():
                assert a[key].field == b[key].field  # type: ignore[index]
                assert_same(a[key].data, b[key].data, key)  # type: ignore[index]


@given(PLAIN, THRESHOLDS, BOOLS)
@settings(max_examples=120)
def test_plain_messages(obj: object, threshold: int | None, copy: bool) -> None:
    assert_same(trip(obj, threshold, copy), obj)


@given(STRUCTS, THRESHOLDS, BOOLS)
@settings(max_examples=50)
def test_structs_with_their_type(obj: Struct, threshold: int | None, copy: bool) -> None:
    assert_same_message(trip(obj, threshold, copy, Struct), obj)


@given(DATA, THRESHOLDS, BOOLS)
@settings(max_examples=50)
def test_dataclasses_with_their_type(obj: Data, threshold: int | None, copy: bool) -> None:
    assert_same_message(trip(obj, threshold, copy, Data), obj)


@given(st.lists(TENSORS | LARGE | ARRAYS, max_size=12), THRESHOLDS)
@settings(max_examples=80)
def test_many_tensors_with_aliases(tensors: list[object], threshold: int | None) -> None:
    message = [*tensors, *tensors[::2], *(t[:1] for t in tensors if t.ndim)]  # type: ignore[attr-defined, index]
    got = trip(message, threshold, False)
    assert_same(got, message)
    for i, j in zip(range(0, len(tensors), 2), range(len(tensors), len(message)), strict=False):
        assert got[i] is got[j]  # type: ignore[index]


@given(st.data())
@settings(max_examples=60)
def test_reduce_after_a_trip_is_reduce_before_it(data: st.DataObject) -> None:
    items = data.draw(batched_items())
    for modality in items:
        one = KwargsItems({modality: items[modality]})
        try:
            want = one.reduce()
        except mmlab.BatchError:
            continue
        got = trip(one, 64, False)
        assert_same(got.reduce(), want)  # type: ignore[attr-defined]
