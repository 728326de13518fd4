"""Frames that nobody vouches for: every check of items, blocks and columns."""

from __future__ import annotations

import pytest
from wire_messages import WIDE, decode, item, items, message, record, refused

import mmlab

FLOAT32, UINT8, NUMPY_FLOAT32 = 12, 2, 12 + 64
BATCHED, FLAT, SHARED = [1, False, None], [2, 0, False], [3, 1, False]


def column(
    key: object = "k",
    field: object = BATCHED,
    layout: object = 0,
    sizes: object = None,
    value: object = (0, WIDE),
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
    "a batch of no tensor": block(column(value=[0, WIDE + 9])),
    "a 0-d batch": block(column(value=[0, WIDE + 2])),
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
            items([block(column(field=field, layout=1, value=[[0, WIDE], [0, WIDE + 1], 3, 4]))]),
            record(UINT8, [2]) + record(UINT8, [3]),
            frames=[bytes(64)],
        )
        got = decode(frames)
        try:
            got.reduce()  # type: ignore[attr-defined]
        except mmlab.BatchError as error:
            assert "i.k" in str(error)
