"""Everything that is not a tensor: exact inside kwargs items, by msgspec's rules elsewhere."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from wire_messages import assert_same, owned, payload_nbytes, raw, trip

import mmlab
from mmlab import BatchedField, FieldElem, KwargsItem, KwargsItems, SharedField

VALUES: dict[str, object] = {
    "none": None,
    "true": True,
    "false": False,
    "ints": [0, -1, 127, 128, -(1 << 63), (1 << 64) - 1],
    "floats": [0.0, -0.0, float("inf"), 5e-324],
    "text": ["", "a", "äöü 漢字 🎈", "x" * 70_000],
    "bytes": [b"", b"\x00\xff", bytes(70_000)],
    "bytearray": bytearray(b"abc"),
    "tuple": ((1, 2), (3, 4)),
    "empty": [[], [[]], (), ((),), {}, [{}], "", b"", bytearray()],
    "size": torch.Size([2, 3]),
    "sizes": [torch.Size([]), (torch.Size([1 << 40]), 1)],
    "slices": [slice(0, 4), slice(4, 9), slice(None), slice(1, None, -2), slice("a", 2.5)],
    "dtypes": [torch.bfloat16, torch.float8_e4m3fn, torch.bool],
    "numpy dtypes": [np.dtype("<f4"), np.dtype(">i2"), np.dtype(bool)],
    "dict": {"a": 1, 2: "b", (3, "c"): [4], 1.5: None, None: True, b"k": 0, False: (1,)},
    "nested": {"a": [{"b": ({"c": [torch.Size([1])]},)}]},
    "np.float32": np.float32(0.5),
    "np.int64": np.int64(3),
    "np.bool": np.bool_(False),
    "np.str": np.str_("a"),
    "np.bytes": np.bytes_(b"a"),
    "zeros at the end": [np.str_("a\0\0"), np.str_("\0"), np.bytes_(b"a\0\0"), "a\0", b"\0"],
    "np numbers": [np.uint8(255), np.float16(1.5), np.complex128(1 + 2j), np.int8(-1)],
    "0d array": np.array(7, np.int16),
    "0d tensor": torch.tensor(7),
    "mixed": [torch.ones(2), 1, np.zeros(2), "a", (torch.zeros(3),)],
}


def one(**values: object) -> KwargsItem:
    return KwargsItem({key: FieldElem(value, BatchedField()) for key, value in values.items()})


@pytest.mark.parametrize("threshold", [0, 256, None])
def test_values_of_items_come_back_as_the_type_they_were(threshold: int | None) -> None:
    for name, value in VALUES.items():
        assert_same(trip(one(x=value), threshold)["x"].data, value, name)  # type: ignore[index]
    together = KwargsItems({"image": [one(**VALUES), None, one(**VALUES)]})
    got = trip(together, threshold)
    assert isinstance(got, KwargsItems) and got["image"][1] is None
    for i in (0, 2):
        for name, value in VALUES.items():
            assert_same(got["image"][i][name].data, value, name)  # type: ignore[index]


@pytest.mark.parametrize("where", ["shared", "parts", "whole list"])
def test_values_are_exact_in_every_kind_of_column(where: str) -> None:
    for name, value in VALUES.items():
        if where == "shared":
            outputs, config = {"x": value}, {"x": mmlab.shared("image", 2)}
        elif where == "parts":
            outputs, config = {"x": [value, None]}, {"x": mmlab.batched("image")}
        else:
            outputs, config = {"x": [value, value, 1]}, {"x": mmlab.flat("image", [2, 1])}
        got = trip(KwargsItems.from_processor(outputs, config))
        want = value if where == "shared" else outputs["x"]
        assert_same(got.reduce()["x"], want, name)  # type: ignore[attr-defined]


def test_one_item_of_a_request_with_scalars_of_every_kind_needs_no_pickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise AssertionError("something was pickled")

    for module in (pickle, __import__("_pickle")):
        monkeypatch.setattr(module, "dumps", refuse)
        monkeypatch.setattr(module, "loads", refuse)
    values = {
        **{"f": np.float32(0.5), "i": np.int64(3), "b": np.bool_(False), "s": np.str_("a")},
        **{"array": np.array(2.5), "tensor": torch.tensor(2)},
        **{"bool": False, "int": 3, "float": 3.0, "str": "a", "none": None},
    }
    got = trip(one(**values))
    for key, value in values.items():
        assert_same(got[key].data, value, key)  # type: ignore[index]
    assert not got["b"].data and type(got["int"].data) is int  # type: ignore[index]


def test_fields_come_back_with_all_their_settings() -> None:
    items = KwargsItems.from_processor(
        {"b": torch.zeros(2, 1), "f": torch.zeros(5, 3), "s": 1},
        {
            "b": mmlab.batched("image", keep_on_cpu=True, pad=-1.5),
            "f": mmlab.flat("image", [1, 2], dim=-1, keep_on_cpu=True),
            "s": mmlab.shared("image", 2, keep_on_cpu=True),
        },
    )
    got = trip(items)["image"][1]  # type: ignore[index]
    assert {k: e.field for k, e in got.items()} == {
        "b": BatchedField(True, -1.5),
        "f": mmlab.FlatField(-1, True),
        "s": SharedField(2, True),
    }


@pytest.mark.parametrize(
    "dtype", ["?", *(f"{k}{n}" for k in "iu" for n in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16"]
)
def test_arrays_of_any_byte_order_strides_and_shape(dtype: str) -> None:
    for order in "<>":
        base = np.frombuffer(np.random.default_rng(0).bytes(480), np.uint8)
        array = (base & 1 if dtype == "?" else base).view(np.dtype(order + dtype)).reshape(-1, 5)
        views = [
            *(
                array,
                array.T,
                array[::-1],
                array[::2, ::-2],
                array[:, 1:3],
                np.asfortranarray(array),
            ),
            *(
                array[:0],
                array[:, :0],
                array[0, 0:1].reshape(()),
                np.broadcast_to(array[0], (4, 5)),
            ),
        ]
        for view in views:
            for threshold in (0, None):
                assert_same(trip(view, threshold), view, f"{view.shape} {view.strides}")
        assert_same(trip([*views, views[0]]), [*views, views[0]])


def test_arrays_are_sent_from_and_received_where_they_lie() -> None:
    array = np.arange(5000.0)
    frames = mmlab.Encoder().encode(array)
    got = mmlab.Decoder().decode(frames)
    assert got.ctypes.data == array.ctypes.data  # type: ignore[attr-defined]
    readonly = np.frombuffer(bytes(40_000), ">f8")
    assert_same(trip(readonly), readonly)


def test_a_memmap_is_an_array(tmp_path) -> None:  # type: ignore[no-untyped-def]
    np.arange(5000.0).tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float64, "r")
    assert_same(trip(mapped), np.arange(5000.0))


def test_the_same_array_is_sent_once() -> None:
    array = np.arange(5000.0)
    frames = mmlab.Encoder().encode([array] * 16)
    assert payload_nbytes(frames) == array.nbytes
    got = mmlab.Decoder().decode(frames)
    assert all(a is got[0] for a in got)  # type: ignore[index, attr-defined]


class Point(NamedTuple):
    x: int
    y: int


def test_outside_items_msgspecs_rules_hold() -> None:
    message = {
        "tuple": (1, (2,)),
        "named": Point(1, 2),
        "size": torch.Size([2, 3]),
        "set": {1},
        "map": {1: {"a": b"x"}},
        "bytearray": bytearray(b"x"),
    }
    assert trip(message) == {
        "tuple": [1, [2]],
        "named": [1, 2],
        "size": [2, 3],
        "set": [1],
        "map": {1: {"a": b"x"}},
        "bytearray": b"x",
    }


def test_outside_items_what_msgspec_does_not_know_is_exact() -> None:
    message = [slice(0, 4), torch.bfloat16, np.float32(0.5), np.str_("a"), np.bool_(False)]
    message += [np.float64(2.5), np.dtype(">i2"), np.bytes_(b"a")]
    assert_same(trip(message), message)
    assert_same(trip(slice(1, None)), slice(1, None))


def test_the_envelope_of_a_text_message_is_all_that_is_added_to_msgspec() -> None:
    import msgspec

    message = {"prompt": "a" * 1000, "tokens": list(range(100))}
    (frame,) = mmlab.Encoder().encode(message)
    assert bytes(frame[32:]) == msgspec.msgpack.encode(message)


@pytest.mark.parametrize(
    "text", ["ありがとうございます。" * 9000, b"\x80" * 200_000, "я" * 100_000, [{1: 2}] * 40_000]
)
def test_long_texts_and_grey_bytes_are_no_attack(text: object) -> None:
    assert trip({"x": text}) == {"x": text}


def test_an_item_subclass_or_its_fields_are_refused_never_cut() -> None:
    class Extended(KwargsItem):
        __slots__ = ("extra",)

    item = Extended({"x": FieldElem(torch.zeros(2), BatchedField())})
    item.extra = 7
    items = KwargsItems({"image": [one(x=torch.zeros(2)), item]})
    again = KwargsItems(dict(items))
    for message, path in [
        (item, "Extended"),
        ({"a": [item]}, r"dict\['a'\]\[0\]: Extended"),
        (items, r"KwargsItems: image\[1\] is a Extended"),
        (again, r"image\[1\] is a Extended"),
        (type("Own", (KwargsItems,), {})({}), "Own is a subclass of KwargsItems"),
    ]:
        with pytest.raises(mmlab.EncodeError, match=path):
            mmlab.Encoder().encode(message)


def test_decoded_items_can_be_sent_on() -> None:
    parts = [one(x=torch.randn(3000), y=i) for i in range(3)]
    first = mmlab.Decoder().decode(owned(mmlab.Encoder().encode(KwargsItems({"image": parts}))))
    second = trip(first)
    assert second == first == KwargsItems({"image": parts})
    assert raw(second["image"][2]["x"].data) == raw(parts[2]["x"].data)  # type: ignore[index, arg-type]
