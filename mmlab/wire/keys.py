"""How many arrays a map of a long body may have for keys.

They become tuples, whose hashes a sender can make collide (those of -1 and -2 are equal): a dict of
n of them then takes n * n comparisons, hours for a body of 16 MiB. Hashes of strings are salted,
and numbers collide a few at a time.
"""

from __future__ import annotations

from typing import Final

from mmlab.errors import WireError
from mmlab.wire.tokens import ARRAYS, FIXED_EXT, NUMBER

MAX_TUPLE_KEYS: Final = 256  # in one dict
KEYS_FROM: Final = 1 << 17  # bytes: in shorter bodies even all keys together take no second
_DEEPEST: Final = 2000  # msgspec refuses what is nested deeper

_BIG_MAPS: Final = (b"\xde", b"\xdf")
_FIXED: Final = {**NUMBER, **{first: 1 + n for first, n in FIXED_EXT.items()}}
_LENGTH: Final = {  # first byte -> bytes of the length behind it, and bytes that follow besides
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},
}


def check_keys(body: bytes) -> None:
    """WireError for a map with more than 256 arrays as keys; cheap where there can be none."""
    size = len(body)
    if size < KEYS_FROM or not any(first in body for first in _BIG_MAPS):
        return
    if size - len(body.translate(None, ARRAYS)) > MAX_TUPLE_KEYS:
        _walk(body, size)


def too_many_keys() -> str:
    """What is said of such a map, by sender and receiver."""
    return f"a map with more than {MAX_TUPLE_KEYS} arrays (tuples) as keys: use strings"


def _walk(body: bytes, end: int) -> None:
    """WireError at the first key too many. What is no msgpack ends it, as it will the reading."""
    above: list[tuple[int, bool, int]] = []
    left, in_map, keys = 1, False, 0  # values left in this container, and its arrays as keys
    at = 0
    while at < end:
        while not left:
            if not above:
                return
            left, in_map, keys = above.pop()
        first = body[at]
        at += 1
        left -= 1
        if first < 0x80 or first >= 0xE0 or 0xC0 <= first <= 0xC3:
            continue
        if 0xA0 <= first < 0xC0:
            at += first & 31
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _LENGTH:
            wide, more = _LENGTH[first]
            at += wide + more + int.from_bytes(body[at : at + wide], "big")
        else:
            is_map = first < 0x90 or first >= 0xDE
            if first < 0xA0:
                count = first & 15
            else:
                wide = 4 if first & 1 else 2
                count = int.from_bytes(body[at : at + wide], "big")
                at += wide
            if in_map and left & 1 and not is_map:
                keys += 1
                if keys > MAX_TUPLE_KEYS:
                    raise WireError(too_many_keys())
            if len(above) >= _DEEPEST:
                return
            above.append((left, in_map, keys))
            left, in_map, keys = (2 * count if is_map else count), is_map, 0
