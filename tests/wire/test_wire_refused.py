"""What cannot be carried is an EncodeError in the caller, with the path of the culprit."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple

import msgspec
import numpy as np
import pytest
import torch

import mmlab
from mmlab import (
    BatchedField,
    EncodeError,
    FieldElem,
    FlatField,
    KwargsItem,
    KwargsItems,
    SharedField,
)
from mmlab.wire import envelope

# Each runs in an interpreter of its own: some of these have crashed a process elsewhere.
CULPRITS = {
    "quantized": "torch.quantize_per_tensor(torch.ones(8), 0.5, 3, torch.quint8)",
    "sparse_coo": "torch.eye(3).to_sparse()",
    "sparse_csr": "torch.eye(3).to_sparse_csr()",
    "meta": "torch.empty(3, device='meta')",
    "large_meta": "torch.empty(30000, device='meta')",
    "nested_jagged": "torch.nested.nested_tensor([torch.ones(2)] * 2, layout=torch.jagged)",
    "nested_strided": "torch.nested.nested_tensor([torch.ones(2)] * 2)",
    "freed": "freed(torch.zeros(3))",
    "large_freed": "freed(torch.zeros(30000))",
    "freed_strided": "freed(torch.zeros(300, 300).t())",
    "mkldnn": "torch.ones(4).to_mkldnn()",
    "objects": "np.array([object(), 1], dtype=object)",
    "structured": "np.zeros(3, [('a', 'i4'), ('b', 'f4')])",
    "times": "np.zeros(3, 'datetime64[ns]')",
    "strings": "np.array(['a', 'bc'])",
    "void": "np.zeros(3, 'V4')",
    "longdouble": "np.zeros(3, np.longdouble)",
    "masked": "np.ma.masked_array([1, 2], [True, False])",
    "65 dimensions": "torch.zeros([1] * 65)",
}
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch, mmlab
from mmlab import BatchedField, FieldElem, KwargsItem, KwargsItems

def freed(t):
    t.untyped_storage().resize_(0)
    return t

def item(value):
    field = BatchedField()
    return KwargsItem({"x": FieldElem(torch.zeros(2), field), "bad": FieldElem(value, field)})

culprits = {%s}
for name, make in culprits.items():
    value = make()
    batch = mmlab.KwargsItems.from_processor({"bad": value}, {"bad": mmlab.shared("image", 2)})
    for path, message in {
        "dict['a'][1]": {"a": [1, value]},
        "dict['a'][5]": {"a": [torch.zeros(3)] * 5 + [value]},
        "KwargsItems.image[1].bad": KwargsItems({"image": [item(torch.ones(3)), item(value)]}),
        "KwargsItems.image[1].bad[0]": KwargsItems({"image": [item(1), item([value])]}),
        "dict['mm'].image.bad": {"mm": batch},
        "KwargsItem.bad": item(value),
        type(value).__name__: value,
    }.items():
        for threshold in (0, None):
            try:
                frames = mmlab.Encoder(threshold).encode(message)
            except TypeError as error:
                assert isinstance(error, mmlab.EncodeError)
                if not str(error).startswith(path + ":"):
                    sys.exit(f"{name}: {error}, wanted {path}")
            else:
                sys.exit(f"{name} was encoded as {path}: {len(frames)} frames")
print("all refused")
"""


def test_what_has_no_plain_memory_is_refused_by_path_and_crashes_nothing() -> None:
    culprits = ", ".join(f"{name!r}: lambda: {code}" for name, code in CULPRITS.items())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % culprits], capture_output=True, text=True, timeout=55
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-2000:]


@dataclasses.dataclass
class Options:
    tensor: torch.Tensor
    more: object = None


class Request(msgspec.Struct):
    name: str
    options: Options | None = None


class Own(np.ndarray):
    pass


class Colour(enum.IntEnum):
    RED = 1


PlainPoint = namedtuple("PlainPoint", "x y")
SPARSE = torch.eye(3).to_sparse()


def one(value: object) -> KwargsItem:
    return KwargsItem({"x": FieldElem(value, BatchedField())})


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"a": {"b": [1, {"c": object()}]}}, r"dict\['a'\]\['b'\]\[1\]\['c'\]: builtins\.object"),
        (Request("r", Options(SPARSE)), r"Request\.options\.tensor: torch\.sparse_coo"),
        (Request("r", Options(torch.ones(1), [{1, 2}, object()])), r"Request\.options\.more\[1\]"),
        ({"a": 1 << 64}, r"dict\['a'\]: integer beyond 64 bits"),
        ({"a": [0, {"b": -(1 << 63) - 1}]}, r"dict\['a'\]\[1\]\['b'\]: integer beyond 64 bits"),
        (["a", "\ud800"], r"list\[1\]: string .* lone surrogate"),
        ({"a": {"\ud800": 1}}, r"dict\['a'\]\['.ud800'\] \(key\): string"),
        ({object(): 1}, r"dict\[<object.*\] \(key\)"),
        (one({"k": [1 << 64]}), r"KwargsItem\.x\['k'\]\[0\]: integer beyond 64 bits"),
        (one(["\ud800"]), r"KwargsItem\.x\[0\]: string .* lone surrogate"),
        (one((1, [object()])), r"KwargsItem\.x\[1\]\[0\]: builtins\.object"),
        (one({object(): 1}), r"KwargsItem\.x: dict key"),
        (one({(1, b"a", ["l"][0], 2): slice(object())}), r"KwargsItem\.x\[.*\]: builtins\.object"),
        (one({1, 2}), r"KwargsItem\.x: builtins\.set cannot"),
        (one(PlainPoint(1, 2)), r"KwargsItem\.x: .*PlainPoint cannot"),
        (one(OrderedDict(a=1)), r"KwargsItem\.x: collections\.OrderedDict cannot"),
        (one(Colour.RED), r"KwargsItem\.x: .*Colour cannot"),
        (one(decimal.Decimal(1)), r"KwargsItem\.x: decimal\.Decimal cannot"),
        (one(memoryview(b"a")), r"KwargsItem\.x: builtins\.memoryview cannot"),
        (one(np.float32), r"KwargsItem\.x: .*type cannot"),
        (one(np.datetime64(1, "s")), r"KwargsItem\.x: numpy datetime64\[s\]"),
        (one(np.longdouble(1)), r"KwargsItem\.x: numpy (longdouble|float128)"),
        (one(np.dtype("U3")), r"KwargsItem\.x: numpy <U3"),
        (one(torch.quint8), r"KwargsItem\.x: torch\.quint8 cannot"),
        (
            KwargsItems({"image": [None, one(1), one([object()])]}),
            r"KwargsItems\.image\[2\]\.x\[0\]",
        ),
        ([KwargsItems({"image": [one("\ud800")]})], r"list\[0\]\.image\[0\]\.x: string"),
        (np.zeros(2).view(Own), r"Own: Own \(a subclass of numpy\.ndarray\)"),
    ],
)
def test_the_culprit_is_named_by_its_path(message: object, path: str) -> None:
    with pytest.raises(EncodeError, match=path) as caught:
        mmlab.Encoder().encode(message)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("wrap", [lambda v: v, one], ids=["plain", "item"])
def test_containers_that_hold_themselves_are_refused(wrap) -> None:  # type: ignore[no-untyped-def]
    loop: list[object] = [1]
    loop.append(loop)
    with pytest.raises(EncodeError, match=r"nested|deeper"):
        mmlab.Encoder().encode(wrap(loop))
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodeError, match=r"nested|deeper"):
        mmlab.Encoder().encode(wrap(deep))


def test_values_of_items_may_be_nested_64_deep_and_no_deeper() -> None:
    deep: object = 1
    for _ in range(64):
        deep = (deep,)
    got = mmlab.Decoder().decode(mmlab.Encoder().encode(one(deep)))
    assert got["x"].data == deep  # type: ignore[index]
    with pytest.raises(EncodeError, match="nested deeper than 64"):
        mmlab.Encoder().encode(one((deep,)))


@pytest.mark.parametrize(
    ("kind", "request_id"),
    [(-1, 0), (256, 0), (0, -1), (0, 1 << 64), ("a", 0), (0, None), (0, 1.5)],
)
@pytest.mark.parametrize(
    "message", ["text", torch.ones(3), [torch.ones(3), 1]], ids=["t", "1", "n"]
)
def test_a_kind_or_id_that_does_not_fit_is_named(
    message: object, kind: object, request_id: object
) -> None:
    with pytest.raises(EncodeError, match=r"kind .*, request_id .*: wanted 0 to 255"):
        mmlab.Encoder().encode(message, kind=kind, request_id=request_id)  # type: ignore[arg-type]


def test_a_body_of_more_than_16_mib_is_refused_with_the_remedy() -> None:
    limit = envelope.MAX_HEADER
    with pytest.raises(EncodeError, match=r"at most 16777184 B: send long data as tensors"):
        mmlab.Encoder().encode(bytes(limit))
    with pytest.raises(EncodeError, match="send long data as tensors"):
        mmlab.Encoder().encode([bytes(limit), torch.ones(3)])
    long = bytes(limit - envelope.SIZE - 5)
    assert mmlab.Decoder().decode(mmlab.Encoder().encode(long)) == long


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="size_threshold is -1"):
        mmlab.Encoder(-1)


def test_nothing_is_left_of_a_message_that_was_refused() -> None:
    encoder = mmlab.Encoder(0)
    good = [torch.ones(3), torch.zeros(2)]
    want = [bytes(f) for f in encoder.encode(good)]
    for bad in ([torch.ones(5), object()], one([torch.ones(5), object()]), {1: SPARSE}):
        with pytest.raises(EncodeError):
            encoder.encode(bad)
        assert [bytes(f) for f in encoder.encode(good)] == want


def test_fields_of_items_are_packed_by_their_own_rules_even_with_odd_parts() -> None:
    parts = [torch.zeros(2), SPARSE]
    for field in (BatchedField(), FlatField(), FlatField(1)):
        items = KwargsItems({"image": [KwargsItem({"x": FieldElem(p, field)}) for p in parts]})
        with pytest.raises(EncodeError, match=r"KwargsItems\.image\[1\]\.x: torch\.sparse_coo"):
            mmlab.Encoder().encode(items)
    shared = KwargsItem({"x": FieldElem(SPARSE, SharedField())})
    with pytest.raises(EncodeError, match=r"KwargsItem\.x: torch\.sparse_coo"):
        mmlab.Encoder().encode(shared)


def test_an_empty_tensor_may_not_claim_more_than_a_message_can() -> None:
    wide = torch.ones(4)[:0].reshape(0, 1 << 61)
    for message in (wide, [wide], [torch.ones(2), wide, torch.ones(3)]):
        with pytest.raises(mmlab.EncodeError, match="beyond 2"):
            mmlab.Encoder(0).encode(message)


@pytest.mark.parametrize("count", [1, 2, 18])
@pytest.mark.parametrize("layout", ["coo", "csr", "mkldnn"])
def test_an_odd_layout_in_a_run_of_equal_tensors_is_named(layout: str, count: int) -> None:
    make = {"coo": "to_sparse", "csr": "to_sparse_csr", "mkldnn": "to_mkldnn"}[layout]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that CSR is in beta
        odd = getattr(torch.eye(2), make)()
    message = [*(torch.ones(2, 2) for _ in range(count)), odd, torch.ones(2, 2)]
    with pytest.raises(mmlab.EncodeError, match=rf"list\[{count}\]: .*make it dense"):
        mmlab.Encoder().encode(message)


def test_a_wrapper_among_small_parts_says_what_it_is() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[no-any-return, attr-defined]

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise NotImplementedError(func)

    parts = [Wrapper(torch.ones(3)) for _ in range(3)]
    items = KwargsItems(
        {"image": [KwargsItem({"x": FieldElem(part, BatchedField())}) for part in parts]}
    )
    with pytest.raises(mmlab.EncodeError, match=r"image\[0\]\.x: Wrapper holds no plain memory"):
        mmlab.Encoder().encode(items)


def test_a_kind_or_id_is_refused_whatever_was_sent_before() -> None:
    encoder = mmlab.Encoder()
    for _ in range(3):
        for bad in ({"kind": None}, {"request_id": ""}, {"kind": 256}, {"request_id": -1}):
            with pytest.raises(mmlab.EncodeError, match="wanted 0 to 255"):
                encoder.encode("x", **bad)  # type: ignore[arg-type]
        assert len(encoder.encode("x", kind=3, request_id=4)) == 1


@pytest.mark.parametrize("bad", ["a", float("nan"), 1.5, -1])
def test_limits_of_the_wrong_kind_are_refused_by_name(bad: object) -> None:
    with pytest.raises(ValueError, match="size_threshold"):
        mmlab.Encoder(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_nbytes"):
        mmlab.Decoder(max_nbytes=bad)  # type: ignore[arg-type]
