"""Changes inside the msgpack of a body: what comes out is msgpack still, and often nearly right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from fuzz_parts import WIDE

EDGES = sorted(
    {n for bits in (0, 1, 6, 7, 8, 15, 16, 31, 32, 62, 63) for n in ((1 << bits) - 1, 1 << bits)}
    | {
        2,
        3,
        4,
        5,
        12,
        13,
        65,
        1 << 40,
        (1 << 16) + 1,
        (1 << 64) - 1,
        -1,
        -2,
        -(1 << 31),
        -(1 << 63),
    }
    | {WIDE + n for n in (0, 1, 2, 3, 5, 8, 40, 1 << 32)}
)
MAX_NODES = 500
MAX_NBYTES = 200_000  # that one change adds
INSIDE = (2, 3, 4)  # extensions that hold msgpack: a value, items, an item

Place = tuple[list[object], int]
_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Inside:
    """An extension whose data is msgpack, taken apart; `content` has one elem."""

    code: int
    content: list[object]


@dataclass(slots=True)
class Pairs:
    """A map as a list: key, value, key, value ..."""

    flat: list[object]


def open_tree(body: bytes) -> list[object]:
    """[the body's value], extensions and maps taken apart. Raises msgspec's errors."""
    return [_open(_decode(body), 0)]


def _open(node: object, depth: int) -> object:
    if depth > 200:
        return node
    if isinstance(node, list):
        return [_open(part, depth + 1) for part in node]
    if isinstance(node, dict):
        return Pairs([_open(part, depth + 1) for pair in node.items() for part in pair])
    if isinstance(node, msgspec.msgpack.Ext) and node.code in INSIDE:
        return Inside(node.code, [_open(_decode(node.data), depth + 1)])
    return node


def close_tree(tree: list[object]) -> bytes:
    """The reverse of `open_tree`."""
    return _pack(tree[0])


def _pack(node: object) -> bytes:
    if isinstance(node, list):
        return _head(0x90, 0xDC, len(node)) + b"".join(map(_pack, node))
    if isinstance(node, Pairs):
        return _head(0x80, 0xDE, len(node.flat) // 2) + b"".join(map(_pack, node.flat))
    if isinstance(node, Inside):
        return _encode(msgspec.msgpack.Ext(node.code, _pack(node.content[0])))
    return _encode(node)


def _head(fixed: int, longer: int, count: int) -> bytes:
    if count < 16:
        return bytes([fixed + count])
    return (
        bytes([longer]) + count.to_bytes(2, "big")
        if count < 1 << 16
        else (bytes([longer + 1]) + count.to_bytes(4, "big"))
    )


def places(tree: list[object]) -> list[Place]:
    """Where something can be changed: (container, index), outside in."""
    found: list[Place] = [(tree, 0)]
    for container, i in found:
        node = container[i]
        if isinstance(node, Inside):
            found.append((node.content, 0))
        elif isinstance(node, Pairs):
            found.extend((node.flat, k) for k in range(len(node.flat)))
        elif isinstance(node, list):
            found.extend((node, k) for k in range(len(node)))
        if len(found) > MAX_NODES:
            break
    return found


def reference(rng: random.Random) -> object:
    """To a tensor, as the body writes it outside kwargs items and inside."""
    number = rng.choice((0, 0, 1, 2, 3, 7, 40, rng.choice(EDGES) & (1 << 63) - 1))
    if rng.random() < 0.5:
        return [0, WIDE + number]
    return msgspec.msgpack.Ext(1, number.to_bytes(8, "little"))


def scrap(rng: random.Random) -> object:
    """Something small that could stand anywhere."""
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(EDGES)
    if kind == 3:
        return reference(rng)
    if kind == 4:
        return rng.choice((None, True, False, "", "k0", b"", b"\0" * 4, 0.5, float("inf"), 1e300))
    if kind == 5:
        return [rng.randrange(14), *(rng.choice(EDGES[:40]) for _ in range(rng.randrange(4)))]
    if kind == 6:
        return rng.choice(([], Pairs([]), [[]], [1, []], [2], [3], [4, 2, 3], [5, "a", 1]))
    if kind == 7:
        return [rng.randrange(1, 4), rng.choice(EDGES[:40])]  # a field
    if kind == 8:
        return Inside(rng.choice(INSIDE), [scrap(rng)])
    if kind == 9:
        return Pairs([rng.choice(("a", 1, None)), rng.choice(EDGES)])
    if kind == 10:
        return msgspec.msgpack.Ext(
            rng.randrange(-2, 7), rng.randbytes(rng.choice((0, 1, 4, 8, 12)))
        )
    return [rng.choice(EDGES) for _ in range(rng.randrange(5))]


def _number(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    container, i = at
    node = container[i]
    if type(node) is int:
        near = (node - 1, node + 1, node * 2, -node)
        made = rng.choice(near) if rng.random() < 0.4 else rng.choice(EDGES)
        container[i] = made if -(1 << 63) <= made < 1 << 64 else 0
    else:
        container[i] = scrap(rng)


def _replace(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    at[0][at[1]] = scrap(rng)


def _copy(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    """Another place's node here: two may hold the same one, never one itself."""
    other, k = rng.choice(all_places)
    node = _open_again(other[k])
    at[0][at[1]] = node


def _open_again(node: object) -> object:
    return open_tree(_pack(node))[0]


def _swap(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    container, i = at
    k = rng.randrange(len(container))
    container[i], container[k] = container[k], container[i]


def _delete(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    if len(all_places) > 1 and at[0] is not all_places[0][0]:
        at[0][at[1]] = None
        if rng.random() < 0.8:
            del at[0][at[1]]
            at[0][:] = at[0] or [None]


def _repeat(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    container, i = at
    if container is all_places[0][0]:
        container[i] = [container[i]] * rng.randrange(4)
    else:
        times = rng.choice((1, 1, 2, 3, 20)) if rng.random() < 0.98 else rng.choice((300, 20_000))
        if times < 4 or times * len(_pack(container[i])) < MAX_NBYTES:
            container[i:i] = [container[i]] * times


def _wrap(rng: random.Random, at: Place, all_places: list[Place]) -> None:
    container, i = at
    node = container[i]
    kind = rng.randrange(5)
    if kind == 0:
        container[i] = Inside(rng.choice(INSIDE), [node])
    elif kind == 1:
        container[i] = Pairs([rng.choice((node, "a", 1)), node])
    else:
        for _ in range(rng.choice((1, 1, 2, 62, 63, 64, 65, 66))):
            node = [node] if kind == 2 else [rng.choice((2, 3, 5, 6)), node]
        container[i] = node


CHANGES: list[Callable[[random.Random, Place, list[Place]], None]] = [
    *([_number] * 6),
    *([_replace] * 4),
    *([_copy] * 3),
    *([_swap] * 2),
    *([_delete] * 2),
    *([_repeat] * 2),
    _wrap,
]


def change_structure(rng: random.Random, body: bytes) -> bytes:
    """One to three changes of nodes; the body unchanged where it is no msgpack that can be read."""
    try:
        tree = open_tree(body)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            found = places(tree)
            rng.choice(CHANGES)(rng, rng.choice(found), found)
        return close_tree(tree)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return body
