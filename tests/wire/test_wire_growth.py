"""No message makes the decoder allocate more than payload + 80 x frame 0 + 1 MiB.

Python's objects are counted by tracemalloc; tensors, which it does not see, by the memory of a
fresh process.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from wire_messages import WIDE, assert_same, ext, items, message, record, ref

import mmlab
from mmlab import BatchedField, WireError
from mmlab.wire.growth import check_growth

MIB = 1 << 20
N = 20_000
BATCHED, SHARED = [1, False, None], [3, 0, False]


def array(parts: list[bytes]) -> bytes:
    return b"\xdd" + struct.pack(">I", len(parts)) + b"".join(parts)


def tagged(parts: list[bytes]) -> bytes:
    """The extension of a tagged list."""
    return ext(2, b"\xdd" + struct.pack(">I", len(parts) + 1) + b"\x02" + b"".join(parts))


def blocks(block: bytes, n: int) -> bytes:
    return ext(3, b"\x91\x92\xa1i" + array([block] * n))


def names(n: int) -> list[bytes]:
    return [b"\xa4%04x" % i for i in range(n)]


PLAIN: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: array([b"\x90"] * N),
    "lists of one": lambda: array([b"\x91\x00"] * N),
    "list chains": lambda: array([b"\x91" * 500 + b"\x00"] * (N // 500)),
    "empty maps": lambda: array([b"\x80"] * N),
    "maps of one": lambda: array([b"\x81\x00\x00"] * N),
    "maps of one list": lambda: array([b"\x81\x00\x90"] * N),
    "maps of one map": lambda: array([b"\x81\x00\x81\x00\x00"] * N),
    "map chains": lambda: array([b"\x81\x00" * 400 + b"\x00"] * (N // 400)),
    "map chains by map16": lambda: array([b"\xde\x00\x01\x00" * 400 + b"\x00"] * (N // 400)),
    "maps of six": lambda: array([b"\x86" + bytes(range(12))] * N),
    "maps behind a text that hides them": lambda: (
        b"\x92\xa6" + b"\xc6\x7f\xff\xff\xff\xdb" + array([b"\x81\x00" * 400 + b"\x00"] * 50)
    ),
    "maps behind a reference that hides them": lambda: (
        b"\x92" + ext(1, b"\xdb\xff\xff\xff\xff\xff\xff\xff") + array([b"\x81\x00" * 400] * 250)
    ),
    "one map of many keys": lambda: (
        b"\xdf"
        + struct.pack(">I", N)
        + b"".join(b"\xce" + struct.pack(">I", i) + b"\x00" for i in range(N))
    ),
    "short texts": lambda: array([b"\xa2ab"] * N),
    "wide short texts": lambda: array([b"\xa4\xf0\x9f\x98\x80"] * N),
    "a text with one wide character": lambda: (
        b"\xdb" + struct.pack(">I", N + 4) + b"\xf0\x9f\x98\x80" + b"a" * N
    ),
    "short bytes": lambda: array([b"\xc4\x01a"] * N),
    "floats": lambda: array([b"\xcb" + bytes(8)] * N),
    "numbers": lambda: array([b"\xcd\xff%c" % (i % 256) for i in range(N)]),
    "timestamps": lambda: array([b"\xd6\xff" + bytes(4)] * N),
    "a list that declares 2**32 elements": lambda: b"\xdd\xff\xff\xff\xff\x00",
    "a map that declares 2**32 keys": lambda: b"\xdf\xff\xff\xff\xff\x00",
    "bytes that declare 4 GiB": lambda: b"\xc6\xff\xff\xff\xff\x00",
    "lists that declare 65535 elements each": lambda: b"\xdc\xff\xff" * 900,
}
VALUES: dict[str, Callable[[], bytes]] = {
    "tagged lists": lambda: tagged([b"\x91\x02"] * N),
    "tagged dicts": lambda: tagged([b"\x91\x05"] * N),
    "sizes": lambda: tagged([b"\x91\x04"] * N),
    "tuples": lambda: tagged([b"\x91\x03"] * N),
    "tagged list chains": lambda: tagged([b"\x92\x02" * 60 + b"\x00"] * (N // 60)),
    "tagged tuple chains": lambda: tagged([b"\x92\x03" * 60 + b"\x00"] * (N // 60)),
    "tagged dict chains": lambda: tagged([b"\x93\x05\x00" * 60 + b"\x00"] * (N // 60)),
    "dicts of one": lambda: tagged([b"\x93\x05\x00\x00"] * N),
    "slices": lambda: tagged([b"\x94\x06\xc0\xc0\xc0"] * N),
    "np.str_": lambda: tagged([b"\x92\x09\xa0"] * N),
    "np.bytes_": lambda: tagged([b"\x92\x0a\xc4\x00"] * N),
    "numpy scalars": lambda: tagged([b"\x93\x08\x42\xc4\x01a"] * N),
    "bytearrays": lambda: tagged([b"\x92\x0b\xc4\x00"] * N),
    "plain lists": lambda: tagged([b"\x92\x01\x90"] * N),
    "a plain list of maps": lambda: tagged([b"\x92\x01" + array([b"\x81\x00" * 300] * 300)]),
    "many small values": lambda: array([ext(2, b"\x91\x05")] * N),
    "extensions inside": lambda: tagged([b"\xc7\x00\x05"] * N),
}
ITEMS: dict[str, Callable[[], bytes]] = {
    "empty blocks": lambda: blocks(b"\x92\x00\x90", N),
    "blocks of one": lambda: blocks(b"\x92\x01\x90", N),
    "blocks of one in many modalities": lambda: ext(
        3, array([b"\x92" + n + array([b"\x92\x01\x90"] * 200) for n in names(50)])
    ),
    "cached items": lambda: blocks(b"\x01", 65536),
    "modalities": lambda: ext(3, array([b"\x92" + n + b"\x90" for n in names(9000)])),
    "columns": lambda: ext(
        3,
        b"\x91\x92\xa1i\x91\x92\x01"
        + array([b"\x95" + n + b"\x93\x03\x01\xc2\x00\xc0\xc0" for n in names(9000)]),
    ),
    "parts": lambda: items([["i", [[9000, [["k", BATCHED, 1, None, [None] * 9000]]]]]]),
    "parts of lists": lambda: items([["i", [[9000, [["k", BATCHED, 1, None, [[2]] * 9000]]]]]]),
    "flat sizes": lambda: items(
        [["i", [[65536, [["k", [2, 0, False], 0, [1] * 65536, [1, [0] * 65536]]]]]]]
    ),
    "single items": lambda: array([ext(4, b"\x92\x01\x90")] * 9000),
}
BODIES = {**PLAIN, **VALUES, **ITEMS}


@pytest.mark.parametrize("kind", ["PLAIN", "VALUES", "ITEMS"])
def test_python_objects_stay_within_the_bound(kind: str) -> None:
    decoder = mmlab.Decoder()
    for name, make in globals()[kind].items():
        frames = message(make())
        bound = 80 * len(frames[0]) + MIB // 16  # the slope counts: these messages are short
        tracemalloc.start()
        try:
            got = decoder.decode(frames)
        except WireError:
            got = None
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= bound, f"{name}: {peak} B of {bound} B for {len(frames[0])} B"
        del got


FORKS = """
import os, sys
sys.path.insert(0, {path!r})
import torch
from test_wire_growth import TENSOR_MESSAGES
import mmlab

def memory():  # less the pages of libraries, which a fork maps again as it touches them
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

mmlab.Decoder().decode(mmlab.Encoder(0).encode([torch.ones(2)] * 3))
for name, make in TENSOR_MESSAGES.items():
    if os.fork():
        os.wait()
        continue
    frames, settings = make()
    decoder = mmlab.Decoder(**settings)
    payload = sum(memoryview(f).nbytes for f in frames[1:])
    before = memory()
    try:
        got = decoder.decode(frames)
    except mmlab.WireError:
        got = None
    grown = memory() - before
    assert got is None or len(got) > 1
    print(grown, payload + 80 * len(frames[0]) + (1 << 20), name, flush=True)
    os._exit(0)
"""


def references(n: int) -> bytes:
    return array([ref(i) for i in range(n)])


def tagged_references(n: int) -> bytes:
    return tagged([b"\x92\x00\xcf" + struct.pack(">Q", WIDE + i) for i in range(n)])


MANY = 100_000
ODD = memoryview(bytes(400_001))[1:]
TENSOR_MESSAGES: dict[str, Callable[[], tuple[list[bytes], dict[str, object]]]] = {
    "many small tensors": lambda: (
        message(references(MANY), record(2, [1], count=MANY), frames=[bytes(MANY)]),
        {},
    ),
    "many small tensors in values": lambda: (
        message(tagged_references(MANY), record(2, [1], count=MANY), frames=[bytes(MANY)]),
        {},
    ),
    "many copies of one large tensor": lambda: (
        message(references(500), record(2, [400_000]) * 500, frames=[bytes(400_000)]),
        {"copy": True},
    ),
    "many copies of one large array": lambda: (
        message(references(500), record(66, [400_000]) * 500, frames=[bytes(400_000)]),
        {"copy": True},
    ),
    "many tensors in one misaligned frame": lambda: (
        message(references(500), record(12, [100_000]) * 500, frames=[ODD]),
        {},
    ),
    "many dtypes of one misaligned frame": lambda: (
        message(
            references(7),
            b"".join(record(c, [50_000]) for c in (4, 6, 8, 12, 13, 11, 15)),
            frames=[ODD],
        ),
        {},
    ),
}


def test_tensors_stay_within_the_bound() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS.format(path=str(Path(__file__).parent))],
        capture_output=True,
        text=True,
        timeout=55,
    )
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(lines) == len(TENSOR_MESSAGES), done.stderr[-2000:]
    for grown, bound, name in lines:
        assert int(grown) <= int(bound), name


def test_overlapping_tensors_own_one_common_copy() -> None:
    base = torch.arange(20_000.0)
    frames = [bytearray(f) for f in mmlab.Encoder().encode([base[:15_000], base[5000:], base])]
    got = mmlab.Decoder(copy=True).decode(frames)
    frames[1][:] = bytes(len(frames[1]))
    assert_same(got, [base[:15_000], base[5000:], base])


def test_refusing_a_long_body_takes_no_longer_than_reading_it_would() -> None:
    body = array([b"\x81\x00" * 400 + b"\x00"] * 5_000)
    assert len(body) > 4_000_000
    start = time.process_time()
    with pytest.raises(WireError, match="would become more than"):
        mmlab.Decoder().decode(message(body))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "obj",
    [
        [{"a": i, "b": [i, str(i)]} for i in range(20_000)],
        [{}] * 50_000,
        {str(i): i for i in range(50_000)},
        {i: {} for i in range(20_000)},
        [{i: "x"} for i in range(200)] * 100,
        "ひらがな" * 20_000,
        ["ひ"] * 40_000,
        b"\x81\x82" * 100_000,
        np.full(100_000, 0x81, np.uint8).tobytes(),
        [[[]] * 10] * 5000,
    ],
    ids=lambda obj: f"{obj!r:.20}",
)
def test_ordinary_long_messages_are_taken(obj: object) -> None:
    assert mmlab.Decoder().decode(mmlab.Encoder().encode(obj)) == obj


def test_references_whose_numbers_look_like_maps_are_taken() -> None:
    tensors = [torch.full((1,), float(i)) for i in range(5000)]
    for message_ in (tensors, {"x": tensors}, [np.ones(1)] * 5000):
        frames = mmlab.Encoder().encode(message_)
        assert_same(mmlab.Decoder().decode(frames), message_)


def test_the_estimate_ends_at_what_is_no_msgpack() -> None:
    for tail in (
        b"\xc1",
        b"\xdb",
        b"\xdb\xff\xff\xff\xff",
        b"\xc7\x05",
        b"\xde\x00",
        b"\xd4",
        b"\xd8\x02",
    ):
        check_growth(b"\x81" * 2000 + b"\x00" * 60_000 + tail)
    msgspec.msgpack.decode(b"\x80")


def test_copying_many_parts_takes_a_constant_for_each() -> None:
    """It took the square of their number: 9 s for a message at the limit of items."""
    parts = [torch.zeros(3 + i % 2) for i in range(65_536)]
    made = [mmlab.KwargsItem({"x": mmlab.FieldElem(part, BatchedField())}) for part in parts]
    frames = mmlab.Encoder().encode(mmlab.KwargsItems({"image": made}))
    begun = time.process_time()
    got = mmlab.Decoder(copy=True).decode(frames)
    assert time.process_time() - begun < 6
    assert isinstance(got, mmlab.KwargsItems) and len(got["image"]) == 65_536
