"""Frames that nobody vouches for: every check of tagged values, and of nesting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from wire_messages import WIDE, ext, items, message, record, refused, value

UINT8 = 2
BATCHED, SHARED = [1, False, None], [3, 1, False]
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
    "a tensor for a key": [5, [0, WIDE], 1],
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
        [sys.executable, "-c", DEEP.format(path=str(Path(__file__).parent))],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all refused"), done.stderr[-2000:]


def test_unpickling_names_and_attributes_are_never_looked_up() -> None:
    for name in ("load", "Tensor", "torch.load", "__class__"):
        refused(message(value([7, name])))
        refused(message(value([name, 1])))
