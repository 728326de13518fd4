"""How large a body may become when it is read: at most 80 bytes of Python objects a byte.

Almost everything in msgpack stays below that by nature: an empty list costs 1 byte and becomes 64.
Only small maps do not (2 bytes become a dict of 224), so a long body that may hold many of them is
walked, token by token, before any of it is built.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from mmlab.errors import WireError
from mmlab.wire.tokens import ARRAYS, FIXED_EXT, MAPS, NUMBER

SCAN_FROM: Final = 1 << 15  # shorter bodies cannot pass the bound by more than its 1 MiB of slack
MAX_GROWTH: Final = 80

_MAP, _ARRAY, _POINTER = 224, 64, 8  # bytes: a dict of up to 5 keys, a list without its elems
_PAIR: Final = 90  # for each key of a larger dict while it grows
_STR: Final = 80  # a string, and at most 4 for each of its bytes
_NUMBER: Final = 32
_OTHER: Final = 28  # at most, for each byte of a string or number

_BYTES, _ELEMS, _PAIRS, _EXT = range(4)
_LONG: Final = {  # first byte -> what the length counts, and how to read it
    code: (what, Struct(layout))
    for what, codes in (
        (
            _BYTES,
            ((0xC4, ">B"), (0xC5, ">H"), (0xC6, ">I"), (0xD9, ">B"), (0xDA, ">H"), (0xDB, ">I")),
        ),
        (_ELEMS, ((0xDC, ">H"), (0xDD, ">I"))),
        (_PAIRS, ((0xDE, ">H"), (0xDF, ">I"))),
        (_EXT, ((0xC7, ">B"), (0xC8, ">H"), (0xC9, ">I"))),
    )
    for code, layout in codes
}
_WALKED: Final = frozenset((2, 3, 4))  # extensions whose content is msgpack again


def check_growth(body: bytes) -> None:
    """WireError if `body`, read as plain Python values, would need more than 80 times its size."""
    size = len(body)
    maps = size - len(body.translate(None, MAPS))
    arrays = size - len(body.translate(None, ARRAYS))
    limit = MAX_GROWTH * size
    if (_MAP + _POINTER) * maps + (_ARRAY + _POINTER) * arrays + _OTHER * size <= limit:
        return  # even if every byte that may begin a map or a list did
    if _walk(body, 0, size, limit, True) > limit:
        raise WireError(
            f"a body of {size} B would become more than {limit} B of Python objects: "
            f"at most {MAX_GROWTH} for each byte are taken"
        )


def _walk(body: bytes, at: int, end: int, limit: int, into: bool) -> int:
    """What the values in `body[at:end]` need at most, no further than to `limit`.

    What is no valid msgpack ends the walk, as it will end the reading. `into`: extensions too.
    """
    need = 0
    while at < end and need <= limit:
        first = body[at]
        at += 1
        if first < 0x80 or first >= 0xE0 or 0xC0 <= first <= 0xC3:
            continue
        if first < 0x90:
            need += _map(first & 15)
        elif first < 0xA0:
            need += _ARRAY + _POINTER * (first & 15)
        elif first < 0xC0:
            count = first & 31
            need += _STR + 4 * count if count > 1 else 0
            at += count
        elif first in NUMBER:
            need += _NUMBER
            at += NUMBER[first]
        else:
            if first in _LONG:
                what, layout = _LONG[first]
                if at + layout.size > end:
                    return need
                (count,) = layout.unpack_from(body, at)
                at += layout.size
            else:
                what, count = _EXT, FIXED_EXT[first]
            if what == _ELEMS:
                need += _ARRAY + _POINTER * min(count, end - at)
            elif what == _PAIRS:
                need += _map(min(count, end - at))
            elif what == _BYTES:
                need += _STR + 4 * min(count, end - at)
                at += count
            else:
                at += 1
                if into and at <= end and body[at - 1] in _WALKED:
                    need += _walk(body, at, min(at + count, end), limit, False)
                need += _STR + _STR
                at += count
    return need


def _map(pairs: int) -> int:
    if not pairs:
        return _ARRAY
    return _MAP if pairs <= 5 else _STR + _PAIR * pairs
