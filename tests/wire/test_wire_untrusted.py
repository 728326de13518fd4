"""Frames that nobody vouches for: every check of table, values and columns, by hand-made bytes."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from wire_messages import assert_same, ext, item, items, message, owned, record, ref, value

import mmlab
from mmlab import WireError

FLOAT32, UINT8, NUMPY_FLOAT32 = 12, 2, 12 + 64
BATCHED, FLAT, SHARED = [1, False, None], [2, 0, False], [3, 1, False]


def decode(frames: list[bytes | bytearray | memoryview], **settings: object) -> object:
    return mmlab.Decoder(**settings).decode(frames)  # type: ignore[arg-type]


def refused(frames: list[bytes | bytearray | memoryview], error: str = ".") -> None:
    for settings in ({}, {"copy": True}, {"type": object}):
        with pytest.raises(WireError, match=error):
            decode(frames, **settings)


def tensor_message(
    *records: bytes, frames: list[bytes] | None = None
) -> list[bytes | bytearray | memoryview]:
    """A list of as many references as there are records."""
    body = bytes([0x90 + len(records)]) + b"".join(map(ref, range(len(records))))
    return message(body, b"".join(records), frames=[bytes(64)] if frames is None else frames)


def test_a_good_message_by_hand_is_taken() -> None:
    got = decode(tensor_message(record(FLOAT32, [2, 3]), record(NUMPY_FLOAT32, [4], offset=48)))
    assert_same(got, [torch.zeros(2, 3), np.zeros(4, np.float32)])
    got = decode(
        message(b"\x92" + ref(1) + ref(0), record(FLOAT32, [2], count=2), frames=[bytes(16)])
    )
    assert_same(got, [torch.zeros(2)] * 2)


HUGE = [1 << 62, 1 << 63, (1 << 64) - 1]
BAD_RECORDS = {
    "dtype code 0": record(0, [4]),
    "dtype code of nothing": record(99, [4]),
    "dtype code 255": record(255, [4]),
    "reserved bits": record(FLOAT32, [4], zero=1),
    "frame after the last": record(FLOAT32, [4], frame=2),
    "frame of all ones": record(FLOAT32, [4], frame=(1 << 32) - 1),
    "one byte too many": record(UINT8, [65]),
    "one byte too far": record(UINT8, [4], offset=61),
    "offset outside": record(UINT8, [1], offset=64),
    "offset of all ones": record(UINT8, [1], offset=(1 << 64) - 1),
    "offset of no multiple": record(FLOAT32, [1], offset=2),
    "numpy offset of no multiple": record(NUMPY_FLOAT32, [1], offset=2),
    "empty but outside": record(UINT8, [0], offset=65),
    "no tensors": record(UINT8, [4], count=0),
    "too many tensors": record(UINT8, [4], count=17),
    "tensors of all ones": record(UINT8, [4], count=(1 << 32) - 1),
    "product beyond 64 bits": record(UINT8, [1 << 32, 1 << 32]),
    "product that wraps to 64": record(UINT8, [1 << 32, 1 << 32, 64]),
    "minus one": record(UINT8, [(1 << 64) - 1]),
    "itemsize beyond 64 bits": record(FLOAT32, [1 << 62]),
    **{f"zero beside {n:#x}": record(FLOAT32, [0, n]) for n in HUGE},
    **{f"numpy zero beside {n:#x}": record(NUMPY_FLOAT32, [n, 0]) for n in HUGE},
    "zeros beside a huge product": record(UINT8, [0, 1 << 31, 1 << 31, 2]),
    "65 dimensions": record(UINT8, [1] * 65),
    "255 dimensions": record(UINT8, [1] * 255),
    "dimensions that end the table": record(UINT8, [4], ndim=9),
    "half a record": record(UINT8, [4])[:10],
    "one byte": b"\x02",
    "a record and a half": record(UINT8, [4]) + record(UINT8, [4])[:-1],
}


@pytest.mark.parametrize("what", BAD_RECORDS)
def test_a_record_that_the_frames_do_not_back_is_refused_by_its_place(what: str) -> None:
    bad = BAD_RECORDS[what]
    refused(tensor_message(bad), r"table")
    refused(tensor_message(record(UINT8, [4]), bad), r"table")
    refused(message(b"\x90", bad, frames=[bytes(64)]), r"table")  # even if nobody refers to it
    refused(message(ref(0), bad, bytes(64), [bytes(64)]), r"table")


@pytest.mark.parametrize("ndim", [2, 63, 64])
def test_an_empty_tensor_of_large_extents_is_taken_or_refused_but_never_kills(ndim: int) -> None:
    shape = [0] + [2] * (ndim - 1)
    for code in (UINT8, NUMPY_FLOAT32):
        try:
            got = decode(message(ref(0), record(code, shape, frame=0)))
        except WireError:
            continue
        assert tuple(got.shape) == tuple(shape)  # type: ignore[attr-defined]


def test_an_unused_tensor_and_an_unused_frame_do_no_harm() -> None:
    assert decode(message(b"\x07", record(UINT8, [4]), frames=[bytes(4)])) == 7
    assert decode(message(b"\x07", frames=[bytes(4), b""])) == 7


def test_more_tensors_than_the_body_can_refer_to_are_refused() -> None:
    refused(message(b"\x90", record(UINT8, [1], count=64), frames=[bytes(64)]), "cannot refer")
    refused(message(b"\x90", record(UINT8, [0], count=1 << 31), frames=[bytes(64)]), "cannot refer")


BAD_REFERENCES = {
    "the number after the last": ref(1),
    "a number of all ones": ref((1 << 32) - 1),
    "no number": ext(1, b""),
    "a short number": ext(1, b"\0\0\0"),
    "a long number": ext(1, bytes(8)),
    "in a value, after the last": value([0, 1]),
    "in a value, negative": value([0, -1]),
    "in a value, huge": value([0, 1 << 63]),
    "in a value, a text": value([0, "0"]),
    "in a value, true": value([0, True]),
    "in a value, none": value([0]),
    "in a value, two": value([0, 0, 0]),
    "unknown extension": ext(5, b""),
    "extension 0": ext(0, bytes(4)),
    "extension -2": ext(-2, bytes(4)),
    "extension 127": ext(127, bytes(4)),
}


@pytest.mark.parametrize("what", BAD_REFERENCES)
def test_bad_references_are_refused(what: str) -> None:
    body = BAD_REFERENCES[what]
    refused(message(body, record(UINT8, [4]), frames=[bytes(4)]))
    refused(message(body))  # and without any table
    refused(message(b"\x91" + body, record(UINT8, [4]), bytes(64)))


BAD_VALUES = {
    "no tag": [],
    "a text for a tag": ["0", 1],
    "true for a tag": [True, 1],
    "the tag after the last": [13, 1],
    "a negative tag": [-1, 1],
    "a huge tag": [1 << 63],
    "a map": {"a": 1},
    "a map inside": [2, {"a": 1}],
    "an array inside a plain list": [1, [[1]]],
    "a map inside a plain list": [1, [{}]],
    "bytes inside a plain list": [1, [b"a"]],
    "no plain list": [1, 5],
    "two plain lists": [1, [], []],
    "negative extent": [4, -1],
    "huge extent": [4, 1 << 63],
    "text for an extent": [4, "1"],
    "true for an extent": [4, True],
    "a key without a value": [5, 1],
    "a key twice": [5, 1, 2, 1, 3],
    "an equal key twice": [5, 1, 2, True, 3],
    "a list for a key": [5, [2, 1], 1],
    "a tensor for a key": [5, [0, 0], 1],
    "a slice of two": [6, 1, 2],
    "a slice of four": [6, 1, 2, 3, 4],
    "an unknown dtype": [7, 99],
    "a numpy code for a dtype": [7, 76],
    "true for a dtype": [7, True],
    "a list for a dtype": [7, [2]],
    "no dtype": [7],
    "a scalar of too few bytes": [8, 76, b"abc"],
    "a scalar of too many bytes": [8, 76, b"abcde"],
    "a torch code for a scalar": [8, 12, b"abcd"],
    "a text for a scalar": [8, 76, "abcd"],
    "a list for a scalar's code": [8, [], b"abcd"],
    "bytes for np.str_": [9, b"a"],
    "text for np.bytes_": [10, "a"],
    "text for a bytearray": [11, "a"],
    "a torch code for a numpy dtype": [12, 12],
    "an unknown numpy dtype": [12, 63],
    "true for a numpy dtype": [12, True],
}


@pytest.mark.parametrize("what", BAD_VALUES)
def test_values_that_nobody_writes_are_refused(what: str) -> None:
    bad = BAD_VALUES[what]
    for frames in (
        message(value(bad), record(UINT8, [4]), frames=[bytes(4)]),
        message(value([2, 1, bad]), record(UINT8, [4]), frames=[bytes(4)]),
        message(
            items([["i", [[1, [["k", BATCHED, 1, None, [bad]]]]]]]), record(UINT8, [4]), bytes(4)
        ),
        message(items([["i", [[1, [["k", SHARED, 0, None, bad]]]]]]), record(UINT8, [4]), bytes(4)),
    ):
        refused(frames)


def test_values_inside_extensions_are_no_extensions_again() -> None:
    nested = msgspec.msgpack.Ext(2, msgspec.msgpack.encode([2, 1]))
    refused(message(value([2, nested])), "got Ext")
    refused(message(ext(2, b"")))
    refused(message(ext(2, b"\x92\x02")))
    refused(message(ext(2, b"\x91\x02\x00")))
    refused(
        message(ext(2, msgspec.msgpack.encode(msgspec.msgpack.Ext(-1, bytes(4))))), "datetime|Ext"
    )


def column(
    key: object = "k",
    field: object = BATCHED,
    layout: object = 0,
    sizes: object = None,
    value: object = (0, 0),
) -> list[object]:
    return [key, field, layout, sizes, value]


def block(*columns: list[object], size: object = 4) -> list[object]:
    return ["i", [[size, list(columns)]]]


BAD_ITEMS: dict[str, object] = {
    "no modality": ["", []],
    "a number for a modality": [1, []],
    "a modality twice": None,
    "a negative number of cached items": ["i", [-1]],
    "no cached items": ["i", [0, 1]],
    "true for cached items": ["i", [True]],
    "too many cached items": ["i", [65537]],
    "too many items": ["i", [65536, 1]],
    "cached items beyond 64 bits": ["i", [(1 << 64) - 1, 1]],
    "a negative size": block(size=-1),
    "a huge size": block(size=1 << 40),
    "an empty block among others": ["i", [[0, []], [1, []]]],
    "a column twice": block(column(), column()),
    "a number for a key": block(column(key=1)),
    "an unknown field": block(column(field=[4, False])),
    "a field without a tag": block(column(field=[])),
    "a field with a text": block(column(field=[1, "a"])),
    "a batch of another size": block(column(), size=3),
    "a batch that is a number": block(column(value=7)),
    "a batch that is none": block(column(value=None)),
    "a batch that is a dict": block(column(value=[5])),
    "a batch with sizes": block(column(sizes=[1, 1, 1, 1])),
    "a batch of no tensor": block(column(value=[0, 9])),
    "a 0-d batch": block(column(value=[0, 2])),
    "a layout of 3": block(column(layout=3)),
    "a layout of -1": block(column(layout=-1)),
    "parts of another number": block(column(layout=1, value=[1, 2, 3])),
    "parts with sizes": block(column(layout=1, sizes=[1] * 4, value=[1, 2, 3, 4])),
    "parts that are no list": block(column(layout=1, value=4)),
    "shared parts": block(column(field=SHARED, layout=1, value=[1, 2, 3, 4])),
    "a shared field of a negative size": block(column(field=[3, -1, False])),
    "a shared field with sizes": block(column(field=SHARED, sizes=[4])),
    "tensors of another number": block(column(layout=2, value=[0])),
    "tensors outside the table": block(column(layout=2, value=[0, 0, 0, 3])),
    "tensors of negative number": block(column(layout=2, value=[0, 0, 0, -1])),
    "tensors of text": block(column(layout=2, value=[0, 0, 0, "0"])),
    "tensors of true": block(column(layout=2, value=[0, 0, 0, True])),
    "tensors that are arrays": block(column(layout=2, value=[0, 0, 0, 1])),
    "flat without sizes": block(column(field=FLAT)),
    "flat with too few sizes": block(column(field=FLAT, sizes=[4])),
    "flat with a wrong sum": block(column(field=FLAT, sizes=[1, 1, 1, 2])),
    "flat with a negative size": block(column(field=FLAT, sizes=[-1, 1, 2, 2])),
    "flat with sizes that wrap": block(column(field=FLAT, sizes=[(1 << 64) - 1, 1, 2, 2])),
    "flat with text sizes": block(column(field=FLAT, sizes=["1", 1, 1, 1])),
    "flat along a dim too far": block(column(field=[2, 2, False], sizes=[1] * 4)),
    "flat along a dim too low": block(column(field=[2, -3, False], sizes=[1] * 4)),
    "flat along a huge dim": block(column(field=[2, 1 << 40, False], sizes=[1] * 4)),
    "flat list along dim 1": block(
        column(field=[2, 1, False], sizes=[1] * 4, value=[1, [1, 2, 3, 4]])
    ),
    "a column too short": block(["k", BATCHED, 0, None]),  # type: ignore[list-item]
    "a column too long": block([*column(), 1]),
    "a block too long": ["i", [[1, [], 1]]],
    "a block that is a map": ["i", [{"size": 1, "columns": []}]],
}


@pytest.mark.parametrize("what", BAD_ITEMS)
def test_items_that_do_not_fit_together_are_refused(what: str) -> None:
    bad = BAD_ITEMS[what]
    spec = [["i", []], ["i", []]] if bad is None else [bad]
    table = record(FLOAT32, [4, 2]) + record(NUMPY_FLOAT32, [4]) + record(FLOAT32, [])
    refused(message(items(spec), table, frames=[bytes(64)]))
    refused(message(items([["a", []], *spec]), table, frames=[bytes(64)]))


def test_the_good_twins_of_the_bad_items_are_taken() -> None:
    table = record(FLOAT32, [4, 2]) + record(NUMPY_FLOAT32, [4]) + record(FLOAT32, [])
    for good in (
        block(column()),
        block(column(layout=1, value=[1, 2, 3, 4])),
        block(column(layout=2, value=[0, 0, 2, 0])),
        block(column(field=FLAT, sizes=[0, 1, 1, 2])),
        block(column(field=[2, -2, False], sizes=[0, 1, 1, 2])),
        block(column(field=SHARED)),
        ["i", [1, [1, []], 65534]],
        ["i", [[0, []]]],
    ):
        got = decode(message(items([good]), table, frames=[bytes(64)]))
        assert all(entry is None or dict(entry) is not None for entry in got["i"])  # type: ignore[index]


@pytest.mark.parametrize("size", [0, 2])
def test_one_item_is_a_block_of_one(size: int) -> None:
    assert len(decode(message(item([1, []])))) == 0  # type: ignore[arg-type]
    refused(message(item([size, []])), rf"item: a block of {size} items, wanted 1")


def test_parts_of_odd_fields_fail_at_reduce_and_not_before() -> None:
    """A message may hold what no batch can be made of; the reducer names it."""
    for field in ([2, 7, False], [1, False, 1e300]):
        frames = message(
            items([block(column(field=field, layout=1, value=[[0, 0], [0, 1], 3, 4]))]),
            record(UINT8, [2]) + record(UINT8, [3]),
            frames=[bytes(64)],
        )
        got = decode(frames)
        try:
            got.reduce()  # type: ignore[attr-defined]
        except mmlab.BatchError as error:
            assert "i.k" in str(error)


DEEP = """
import msgspec, sys
sys.path.insert(0, {path!r})
from wire_messages import ext, message, value
import mmlab
n = 100_000
bodies = [b"\\x91" * n + b"\\xc0", b"\\x81\\xa1a" * n + b"\\xc0", b"\\x91" * n]
bodies += [ext(2, b"\\x92\\x02" * n + b"\\xc0"), ext(2, b"\\x92\\x03" * n + b"\\xc0")]
bodies += [ext(2, b"\\x93\\x05\\0" * n + b"\\xc0"), ext(3, b"\\x91" * n), ext(4, b"\\x92\\x01" * n)]
deep = b"\\xc0"
for _ in range(300):
    deep = ext(2, deep)
bodies.append(deep)
for body in bodies:
    for decoder in (mmlab.Decoder(), mmlab.Decoder(list), mmlab.Decoder(dict[str, list])):
        try:
            decoder.decode(message(body))
        except mmlab.WireError:
            continue
        sys.exit(f"taken: {{body[:8]}}")
print("all refused")
"""


def test_values_nested_100000_deep_are_refused_and_crash_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEEP.format(path=sys.path[0])],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-2000:]


def test_unpickling_names_and_attributes_are_never_looked_up() -> None:
    for name in ("load", "Tensor", "torch.load", "__class__"):
        refused(message(value([7, name])))
        refused(message(value([name, 1])))


def valid_messages() -> list[list[bytes]]:
    config = {
        "x": mmlab.batched("image"),
        "f": mmlab.flat("image", [1, 2, 0]),
        "s": mmlab.shared("image", 3),
        "l": mmlab.batched("image"),
    }
    outputs = {"x": torch.randn(3, 4), "f": torch.randn(3, 2), "s": (1, "a"), "l": [1, 2.5, None]}
    found = mmlab.KwargsItems.from_processor(outputs, config)
    objects = [
        {"text": "a" * 40, "n": [1, 2.5, None, b"x"]},
        torch.randn(5, 5),
        [torch.randn(40), torch.ones(3, dtype=torch.int8), np.arange(4)],
        found,
        {"mm": mmlab.KwargsItems({"image": [*found["image"], None]}), "e": torch.zeros(0, 3)},
    ]
    return [owned(mmlab.Encoder(t).encode(o)) for o in objects for t in (0, 256, None)]


def test_mutated_messages_decode_or_are_refused() -> None:
    rng = random.Random(16432)
    seeds = valid_messages()
    taken = 0
    for n in range(4000):
        frames = [bytearray(frame) for frame in rng.choice(seeds)]
        for _ in range(rng.choice((1, 1, 2, 5))):
            frame = rng.choice(frames)
            if not frame:
                continue
            at = rng.randrange(len(frame))
            what = rng.randrange(5)
            if what == 0:
                frame[at] ^= 1 << rng.randrange(8)
            elif what == 1:
                frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF))
            elif what == 2:
                del frame[at:]
            elif what == 3:
                frame[at:at] = rng.randbytes(rng.randrange(1, 9))
            else:
                frames[rng.randrange(len(frames))] = bytearray(rng.choice(rng.choice(seeds)))
        try:
            got = mmlab.Decoder(copy=n % 2 == 0).decode(frames)
        except WireError:
            continue
        taken += 1
        use(got)
    assert taken > 100


def use(got: object) -> None:
    """Look at everything: what was taken must be whole."""
    if isinstance(got, mmlab.KwargsItems):
        for entry in [e for entries in got.values() for e in entries if e is not None]:
            use([elem.data for elem in entry.values()])
        try:
            use(list(got.reduce().values()))
        except mmlab.BatchError:
            return
    elif isinstance(got, mmlab.KwargsItem):
        use([elem.data for elem in got.values()])
    elif isinstance(got, (torch.Tensor, np.ndarray)):
        bytes(memoryview(mmlab.Encoder(None).encode(got)[0]))
    elif isinstance(got, dict):
        use(list(got.values()))
    elif isinstance(got, (list, tuple)):
        for part in got:
            use(part)
