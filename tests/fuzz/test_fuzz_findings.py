"""What the fuzzer found: the smallest messages that showed it, and the others of their kind."""

from __future__ import annotations

import struct
import time
from typing import Literal, cast

import msgspec
import numpy as np
import pytest
import torch
from fuzz_check import Finding, bound, replay
from fuzz_parts import WIDE, Parts
from fuzz_resident import Resident

import mmlab
from mmlab import BatchError, WireError
from mmlab.dtypes import CODE_OF_TORCH, empty
from mmlab.fields import BatchedField, FieldElem, FlatField, KwargsItem, SharedField

UINT8, NUMPY_UINT8 = 2, 2 + 64
encode = msgspec.msgpack.encode


def record(code: int, shape: tuple[int, ...], frame: int = 0, count: int = 1) -> bytes:
    head = struct.pack("<BBHIQI", code, len(shape), 0, frame, 0, count)
    return head + struct.pack(f"<{len(shape)}Q", *shape)


def references(count: int) -> bytes:
    refs = (msgspec.msgpack.Ext(1, struct.pack("<Q", i)) for i in range(count))
    return encode(list(refs))


@pytest.mark.parametrize("extent", [0, 1])
@pytest.mark.parametrize("code", [UINT8, NUMPY_UINT8])
@pytest.mark.parametrize("ndim", [0, 5, 6, 64])
def test_many_tensors_of_many_dimensions_cost_no_more_than_the_bound(
    ndim: int, code: int, extent: int
) -> None:
    """One record of 64 dimensions stood for as many tensors as the body had room to refer to."""
    n = 60_000
    parts = Parts(references(n), record(code, (extent,) * ndim, 1, n), frames=(bytes(n),))
    frames = parts.assemble()
    mmlab.Decoder().decode(Parts(references(2), record(code, (1,), 1, 2), b"", (b"ab",)).assemble())
    with Resident() as resident:
        before = resident.reset()
        try:
            got = mmlab.Decoder().decode(frames)
        except WireError:
            got = None
        grown = resident.peak() - before
    assert grown <= bound(frames)
    assert (got is None) == (ndim > 5)


@pytest.mark.parametrize("ndim", [5, 6, 64])
def test_equal_small_tensors_of_many_dimensions_are_still_sent(ndim: int) -> None:
    for threshold in (None, 0):
        sent = [torch.full((1,) * ndim, i, dtype=torch.uint8) for i in range(40)]
        got = mmlab.Decoder(list[torch.Tensor]).decode(mmlab.Encoder(threshold).encode(sent))
        assert isinstance(got, list) and all(map(torch.equal, got, sent))


BIG = 1 << 40
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "empty, and huge where they differ": [(0, BIG), (3, 0)],
    "short and wide, long and narrow": [(1, 30_000), (30_000, 1)],
    "so wide that the product is beyond 64 bits": [(0, 1 << 61), (1 << 61, 0)],
    "equal, empty, and their stack beyond 64 bits": [(0, 1 << 61)] * 9,
    "empty, and their sum beyond 64 bits": [(1 << 61, 0)] * 9,
    "of 64 dimensions": [(1,) * 64] * 2,
    "of 64 dimensions, and unequal": [(1,) * 64, (2,) + (1,) * 63],
}


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("field", [BatchedField(pad=0), BatchedField(), FlatField(), FlatField(1)])
@pytest.mark.parametrize("what", SHAPES)
def test_a_batch_of_what_shapes_only_claim_is_a_batch_error(
    what: str, field: BatchedField | FlatField, kind: str
) -> None:
    """Empty tensors may claim any extent; padded or joined it became 216 PiB, or an overflow."""
    items = []
    for shape in SHAPES[what]:
        data: object = torch.zeros(shape, dtype=torch.uint8)
        if kind == "numpy":
            data = np.zeros(shape, np.uint8)
        items.append(KwargsItem({"k": FieldElem(data, field)}))
    sent = mmlab.KwargsItems({"image": items})
    got = mmlab.Decoder().decode(mmlab.Encoder().encode(sent))
    assert isinstance(got, mmlab.KwargsItems)
    try:
        made = got.reduce()["k"]
    except BatchError as error:
        assert "image.k" in str(error)
    else:
        parts = cast(list[torch.Tensor], made if isinstance(made, list) else [made])
        assert sum(part.nbytes for part in parts) <= 1 << 20
    for batch in mmlab.group(got.pairs() * 2):
        try:
            batch.reduce_key("k", None)
        except BatchError as error:
            assert "image.k" in str(error)


def test_padding_that_costs_little_is_done_however_unequal_the_elems() -> None:
    lengths = [1_000_000] + [1] * 50
    parts = [torch.ones(n, dtype=torch.uint8) for n in lengths]
    config = {"k": mmlab.batched("audio", pad=0)}
    made = mmlab.KwargsItems.from_processor({"k": parts}, config).reduce()["k"]
    assert isinstance(made, torch.Tensor) and made.shape == (51, 1_000_000)
    assert int(made.sum(dtype=torch.int64)) == sum(lengths)


PADS = (1e300, 1e39, 70_000.0, 300, (1 << 64) - 1, -1, -0.0, float("inf"), float("nan"), True)


@pytest.mark.parametrize("dtype", sorted(CODE_OF_TORCH, key=str), ids=str)
def test_a_pad_value_that_a_dtype_cannot_hold_is_refused_before_the_batch_is_written(
    dtype: torch.dtype,
) -> None:
    """torch fills one element in another way than many: what the first takes, the second raises."""
    for pad in PADS:
        parts = [empty((n,), dtype) for n in (1, 3)]
        config = {"k": mmlab.batched("audio", pad=pad)}
        items = mmlab.KwargsItems.from_processor({"k": parts}, config)
        try:
            made = items.reduce()["k"]
        except BatchError as error:
            assert "pad=" in str(error)
        else:
            assert isinstance(made, torch.Tensor) and made.shape == (2, 3)


EMPTY = ([(0, 2), (0, 1)], [(2, 0), (1, 0)], [(0, 2), (0, 2)], [(0,), (3,)])


@pytest.mark.parametrize("dtype", sorted(CODE_OF_TORCH, key=str), ids=str)
@pytest.mark.parametrize("field", [BatchedField(), BatchedField(pad=0), FlatField(), FlatField(-1)])
def test_empty_elems_of_every_dtype_are_padded_and_joined(
    field: BatchedField | FlatField, dtype: torch.dtype
) -> None:
    """torch zeroes memory of every dtype, but of an empty tensor it asks for a kernel."""
    for shapes in EMPTY:
        elems = [FieldElem(empty(shape, dtype), field) for shape in shapes]
        items = mmlab.KwargsItems({"image": [KwargsItem({"k": elem}) for elem in elems]})
        got = mmlab.Decoder().decode(mmlab.Encoder().encode(items))
        assert isinstance(got, mmlab.KwargsItems)
        for one in (items, got):
            made = one.reduce()["k"]
            parts = made if isinstance(made, list) else [made]
            assert all(isinstance(t, torch.Tensor) and t.dtype is dtype for t in parts)


SHARED = {
    "a slice of tensors": slice(torch.zeros(3), torch.ones(2)),
    "a slice of arrays": slice(np.zeros(3), None, [np.ones(2)]),
    "a slice of NaN": slice(float("nan")),
    "a dict with the key NaN": {float("nan"): 1},
    "a dict with a key in a tuple": {(1, float("nan")): torch.ones(2)},
}


@pytest.mark.parametrize("what", SHARED)
def test_shared_values_of_two_requests_are_compared_whatever_they_hold(what: str) -> None:
    """`slice == slice` asks its tensors whether they are true, which tensors refuse."""
    item = KwargsItem({"k": FieldElem(SHARED[what], SharedField(1))})
    frames = mmlab.Encoder().encode(item)
    one, two = mmlab.Decoder().decode(frames), mmlab.Decoder().decode(frames)
    assert isinstance(one, KwargsItem) and isinstance(two, KwargsItem)
    assert one == two
    (batch,) = mmlab.group([("image", one), ("image", two)])
    assert batch.num_items == 2


LONG = {
    "a tag that is a list": msgspec.msgpack.Ext(2, encode([["x" * 50_000], 1])),
    "a key": msgspec.msgpack.Ext(3, encode([["i", [[1, [["x" * 50_000, [9], 0, None, 1]]]]]])),
    "a key, and a part": msgspec.msgpack.Ext(
        3, encode([["i", [[1, [["x" * 50_000, [1, False], 1, None, 7]]]]]])
    ),
    "a modality": msgspec.msgpack.Ext(3, encode([["x" * 50_000, [-1]]])),
    "a path": msgspec.Raw(b"\x91" * 500 + b"\xd7" + b"\xff" * 9),
    "a part": msgspec.msgpack.Ext(
        3, encode([["i", [[1, [["k", [1, False], 2, None, [[1] * 50_000]]]]]]])
    ),
}


@pytest.mark.parametrize("what", LONG)
def test_an_error_is_short_however_long_what_it_names(what: str) -> None:
    """It goes into a log: a message of megabytes made an error of as much."""
    frames = Parts(encode(LONG[what]), record(UINT8, (1,)), b"a").assemble()
    with pytest.raises(WireError) as caught:
        mmlab.Decoder().decode(frames)
    assert 10 < len(str(caught.value)) <= 500


def test_all_modalities_together_may_claim_no_more_items_than_one() -> None:
    """Nine bytes claimed 65,536 items, for as many modalities as there was room."""
    most = 1 << 16
    for claims in ([most, 1], [1, most - 1, 1], [most] * 1000):
        spec = [[f"m{i}", [n if i % 2 else [n, []]]] for i, n in enumerate(claims)]
        with pytest.raises(WireError, match=rf"items: {sum(claims)} in all, at most {most}"):
            mmlab.Decoder().decode(Parts(encode(msgspec.msgpack.Ext(3, encode(spec)))).assemble())
    good = encode(msgspec.msgpack.Ext(3, encode([["a", [most - 1]], ["b", [[1, []]]]])))
    got = mmlab.Decoder().decode(Parts(good).assemble())
    assert isinstance(got, mmlab.KwargsItems) and len(got.pairs()) == most
    too_many = mmlab.KwargsItems({**got, "c": [None]})
    with pytest.raises(mmlab.EncodeError, match=f"{most + 1} items, at most {most}"):
        mmlab.Encoder().encode(too_many)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("form", ["b", "c", "H", "d", "q"])
def test_frames_may_be_memoryviews_of_any_format(form: Literal["b", "c"], copy: bool) -> None:
    """A view of int8 or of characters is one byte an element too, and gave other bytes."""
    sent = {"t": torch.arange(9000, dtype=torch.float64), "u": torch.ones(8, dtype=torch.float64)}
    head = len(mmlab.Encoder(0).encode({**sent, "pad": ""})[0])
    sent_padded = {**sent, "pad": "p" * (-head % 8)}
    frames = [bytes(frame) for frame in mmlab.Encoder(0).encode(sent_padded)]
    odd = [memoryview(b"\0" + frame)[1:] for frame in frames]  # no tensor can lie at that address
    for views in ([memoryview(frame) for frame in frames], odd):
        seen = [view.cast(form) for view in views]
        got = mmlab.Decoder(copy=copy).decode(seen)  # type: ignore[arg-type]
        assert isinstance(got, dict) and got["pad"] == sent_padded["pad"]
        assert all(torch.equal(got[key], value) for key, value in sent.items())


def value_with_keys(count: int) -> bytes:
    pairs = [part for i in range(count) for part in ([0, WIDE + i], 1)]
    return encode(msgspec.msgpack.Ext(2, encode([5, *pairs])))


def test_tensors_as_dict_keys_are_refused_without_printing_them() -> None:
    """Printing a tensor takes 0.1 ms and more, and some dtypes cannot be printed at all."""
    bits = 38  # bits1x8
    one = Parts(value_with_keys(1), record(bits, (1,)), b"a").assemble()
    with pytest.raises(WireError, match="dict key of type Tensor"):
        mmlab.Decoder().decode(one)
    n = 20_000
    table = record(UINT8, (8,), 1, n)
    began = time.thread_time()
    with pytest.raises(WireError, match="dict key of type Tensor"):
        mmlab.Decoder().decode(Parts(value_with_keys(n), table, b"", (bytes(8 * n),)).assemble())
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize("code", [[], {}, None, True, 76.0, "76"])
def test_the_code_of_a_scalar_is_an_integer(code: object) -> None:
    """A list for a code is no key of the table of dtypes, and a float found a dtype there."""
    value = encode(msgspec.msgpack.Ext(2, encode([8, code, bytes(4)])))
    with pytest.raises(WireError, match="value with tag 8"):
        mmlab.Decoder().decode(Parts(value).assemble())


def test_a_finding_is_noticed() -> None:
    """The checks themselves can fail: here on a value that no decoder should let pass."""
    frames = Parts(encode(["a"] * 3)).assemble()
    assert replay(frames).valid
    wide = Parts(encode(msgspec.msgpack.Ext(2, encode([0, WIDE]))), record(UINT8, (4,)), b"abcd")
    assert replay(wide.assemble()).tensors
    for broken in (object(), {1, 2}, torch.zeros(3, device="meta")):
        with pytest.raises(Finding), pytest.MonkeyPatch.context() as patch:
            patch.setattr(mmlab.Decoder, "decode", lambda self, frames, found=broken: found)
            replay(frames)
