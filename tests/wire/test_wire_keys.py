"""Dicts with tuples as keys, whose hashes a sender can make collide: only so many are taken."""

from __future__ import annotations

import itertools
import struct
import time

import msgspec
import pytest
from wire_messages import item, message

import mmlab
from mmlab import EncodeError, FieldElem, KwargsItem, WireError
from mmlab.fields import SharedField
from mmlab.wire.keys import KEYS_FROM, MAX_TUPLE_KEYS, check_keys

encode = msgspec.msgpack.encode


def colliding(n: int) -> list[tuple[int, ...]]:
    return list(itertools.islice(itertools.product((-1, -2), repeat=20), n))


def big_map(keys: list[object]) -> bytes:
    return b"\xdf" + struct.pack(">I", len(keys)) + b"".join(encode(k) + b"\xc0" for k in keys)


@pytest.mark.parametrize("hide", [b"", b"\x92" + encode("x" * 40), encode([1])[:0]])
def test_a_long_body_of_colliding_keys_is_refused_at_once(hide: bytes) -> None:
    body = hide + big_map(colliding(50_000))  # type: ignore[arg-type]
    begun = time.process_time()
    with pytest.raises(WireError, match="more than 256 arrays"):
        mmlab.Decoder().decode(message(body))
    assert time.process_time() - begun < 20  # and not the minutes of 50,000 * 50,000 comparisons


def test_keys_are_counted_for_each_map_and_only_where_they_are_keys() -> None:
    few = big_map(colliding(MAX_TUPLE_KEYS))  # type: ignore[arg-type]
    many = b"\xdc" + struct.pack(">H", 200) + few * 200
    assert len(many) > KEYS_FROM
    check_keys(many)
    values = encode({str(i): [-1, -2] for i in range(60_000)})
    assert len(values) > KEYS_FROM
    check_keys(values)
    nested = encode([{"a": {"b": [[1], {(1, 2): 3}]}}] * 9000) + few
    check_keys(b"\x92" + nested)
    with pytest.raises(WireError):
        check_keys(b"\x92" + nested[: -len(few)] + big_map(colliding(MAX_TUPLE_KEYS + 1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [1, 2, 5, 1000, 70_000])
def test_a_body_that_ends_early_is_left_to_the_reader(end: int) -> None:
    body = bytes(KEYS_FROM) + big_map(colliding(MAX_TUPLE_KEYS))[:-end]  # type: ignore[arg-type]
    check_keys(b"\xdd" + struct.pack(">I", KEYS_FROM + 9) + body)


def test_every_kind_of_token_is_stepped_over() -> None:
    values = [
        *(None, True, 1, -1, 200, 1 << 20, 1 << 40, -(1 << 10), -(1 << 40), 1.5, "", "a" * 30),
        *("a" * 300, "a" * 70_000, b"b", b"b" * 300, b"b" * 70_000, [1] * 20, {"k": [2]}),
        *(msgspec.msgpack.Ext(9, bytes(n)) for n in (1, 2, 3, 4, 8, 16, 300, 70_000)),
    ]
    body = encode([values] * 20)
    assert len(body) > KEYS_FROM
    over = big_map(colliding(MAX_TUPLE_KEYS + 1))  # type: ignore[arg-type]
    check_keys(b"\x92" + body + big_map(["a"]))
    with pytest.raises(WireError):
        check_keys(b"\x92" + body + over)


def test_tuple_keys_inside_items_are_counted_on_both_sides() -> None:
    def one(n: int) -> KwargsItem:
        value = dict.fromkeys(colliding(n), 1)
        return KwargsItem({"x": FieldElem(value, SharedField(1))})

    few = one(MAX_TUPLE_KEYS)
    assert mmlab.Decoder().decode(mmlab.Encoder().encode(few)) == few
    with pytest.raises(EncodeError, match=r"\.x: a map with more than 256"):
        mmlab.Encoder().encode(one(MAX_TUPLE_KEYS + 1))
    packed = [5, *itertools.chain.from_iterable(([3, *k], 0) for k in colliding(1000))]
    column = ["x", [3, 1, False], 0, None, packed]
    with pytest.raises(WireError, match="more than 256"):
        mmlab.Decoder().decode(message(item([1, [column]])))


def test_what_a_decoder_refuses_is_refused_where_it_is_sent() -> None:
    keys = dict.fromkeys(colliding(9000))
    for obj in (keys, [{1: []}] * 20_000, [{0: {1: 2}}] * 8000):
        for first in ("text", None):  # the guess that the next message is text makes no difference
            encoder = mmlab.Encoder()
            if first:
                encoder.encode(first)
            with pytest.raises(EncodeError, match=r"map with more than 256|at most 80"):
                encoder.encode(obj)
