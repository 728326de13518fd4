"""Frames that nobody vouches for: every check of the tensor table and of references to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wire_messages import (
    WIDE,
    Buffer,
    assert_same,
    decode,
    ext,
    message,
    record,
    ref,
    refused,
    value,
)

from mmlab import WireError

FLOAT32, UINT8, NUMPY_FLOAT32 = 12, 2, 12 + 64


def tensor_message(*records: bytes, frames: list[bytes] | None = None) -> list[Buffer]:
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
    "a number of all ones": ref((1 << 64) - 1),
    "no number": ext(1, b""),
    "a short number": ext(1, b"\0\0\0"),
    "a long number": ext(1, bytes(9)),
    "in a value, after the last": value([0, WIDE + 1]),
    "in a value, negative": value([0, -1]),
    "in a value, huge": value([0, (1 << 64) - 1]),
    "in a value, not wide": value([0, 0]),
    "in a value, a text": value([0, "0"]),
    "in a value, true": value([0, True]),
    "in a value, none": value([0]),
    "in a value, two": value([0, WIDE, WIDE]),
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
