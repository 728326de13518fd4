"""Valid messages of every kind, drawn by seed: what the fuzzer's mutations begin from."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from fuzz_items import draw_items
from fuzz_parts import Parts
from fuzz_values import array, plain, tensor, value

import mmlab
from mmlab.dtypes import copyable


class Request(msgspec.Struct):
    """As a pipeline would send it."""

    prompt: str
    ids: list[int]
    mm: mmlab.KwargsItems | None = None
    embeds: torch.Tensor | None = None
    mask: np.ndarray | None = None
    sizes: tuple[int, ...] = ()
    extra: dict[str, object] = msgspec.field(default_factory=dict)


class Inner(msgspec.Struct, tag="inner", array_like=True):
    item: mmlab.KwargsItem | None
    shape: torch.Size | None
    dtype: torch.dtype | None


@dataclass
class Reply:
    """A dataclass, as msgspec takes it too."""

    tokens: list[int]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    inner: list[Inner] = field(default_factory=list)


# what a message may be decoded as, besides plain Python values
TYPES: list[object] = [
    None,
    Request,
    Reply,
    mmlab.KwargsItems,
    mmlab.KwargsItem,
    torch.Tensor,
    np.ndarray,
    dict[str, torch.Tensor],
    list[torch.Tensor],
]


@dataclass(slots=True)
class Base:
    """A valid message in its parts, and which of TYPES it decodes as."""

    parts: Parts
    type: int


def one_item(rng: random.Random) -> mmlab.KwargsItem:
    while True:
        found = [entry for _, entry in draw_items(rng).pairs() if entry is not None]
        if found:
            return rng.choice(found)


def request(rng: random.Random) -> Request:
    return Request(
        "describe " * rng.randrange(4),
        [rng.randrange(1 << 18) for _ in range(rng.randrange(12))],
        draw_items(rng) if rng.random() < 0.7 else None,
        tensor(rng) if rng.random() < 0.4 else None,
        array(rng) if rng.random() < 0.3 else None,
        tuple(rng.randrange(9) for _ in range(rng.randrange(3))),
        {"value": value(rng), "seed": rng.getrandbits(64)} if rng.random() < 0.3 else {},
    )


def reply(rng: random.Random) -> Reply:
    def inner() -> Inner:
        item = one_item(rng) if rng.random() < 0.5 else None
        shape = torch.Size([2, 3]) if rng.random() < 0.5 else None
        return Inner(item, shape, torch.bfloat16 if rng.random() < 0.5 else None)

    return Reply(
        [rng.randrange(1 << 18) for _ in range(rng.randrange(9))],
        {f"t{i}": tensor(rng) for i in range(rng.randrange(3))},
        [inner() for _ in range(rng.randrange(3))],
    )


def tensors(rng: random.Random) -> list[torch.Tensor]:
    """A list of its own kinds: runs of one shape, views of one storage, the same one twice."""
    kind = rng.randrange(4)
    if kind == 0:
        like = tensor(rng)
        if like.nbytes > 999:
            return [like]
        bits = copyable(like)
        return [bits.clone().view(like.dtype) for _ in range(rng.randrange(1, 40))]
    if kind == 1:
        whole = torch.arange(rng.choice((4, 64, 2048)) * 8, dtype=torch.float32).view(8, -1)
        return [whole[i] for i in range(8)]
    found = [tensor(rng) for _ in range(rng.randrange(1, 6))]
    return found + found[:1] if kind == 2 else found


Draw = Callable[[random.Random], object]

MESSAGES: list[tuple[int, int, Draw]] = [  # weight, place in TYPES, how to draw one
    (2, 0, plain),
    (4, 0, value),
    (2, 0, lambda rng: [value(rng) for _ in range(rng.randrange(5))]),
    (2, 0, lambda rng: {"t": tensors(rng), "v": value(rng)}),
    (8, 1, request),
    (3, 2, reply),
    (8, 3, draw_items),
    (2, 4, one_item),
    (2, 5, tensor),
    (1, 6, array),
    (1, 7, lambda rng: {f"k{i}": tensor(rng) for i in range(rng.randrange(5))}),
    (3, 8, tensors),
]


def draw_base(rng: random.Random) -> Base:
    """One valid message."""
    ((_, kind, draw),) = rng.choices(MESSAGES, [weight for weight, _, _ in MESSAGES])
    encoder = mmlab.Encoder(rng.choice((None, 0, 64, 256, 256, 4096)))
    request_id = rng.choice((0, 0, 7, 1 << 63, (1 << 64) - 1))
    frames = encoder.encode(draw(rng), kind=rng.choice((0, 1, 255)), request_id=request_id)
    return Base(Parts.of(frames), kind)


def draw_bases(seed: int, count: int) -> list[Base]:
    """`count` valid messages, always the same ones for a seed."""
    rng = random.Random(seed)
    return [draw_base(rng) for _ in range(count)]
