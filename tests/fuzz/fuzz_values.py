"""Tensors, arrays and values of every kind that the wire carries, drawn by a random generator."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import torch

from mmlab.dtypes import CODE_OF_NUMPY, CODE_OF_TORCH, empty

DTYPES = list(CODE_OF_TORCH)
COMMON = [torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool]
NUMPY_DTYPES = list(CODE_OF_NUMPY)


def shape(rng: random.Random) -> tuple[int, ...]:
    """Mostly few small dimensions; sometimes none, empty, long, or as many as there may be."""
    kind = rng.randrange(24)
    if kind == 0:
        return ()
    if kind == 1:
        return (*(rng.randrange(3) for _ in range(rng.randrange(1, 4))), 0)
    if kind == 2:
        return (rng.choice((255, 256, 1000, 8191, 8192, 9000)),)
    if kind == 3:
        return (1,) * rng.choice((5, 6, 7, 63, 64))
    return tuple(rng.randrange(1, 6) for _ in range(rng.randrange(1, 5)))


def tensor(rng: random.Random, dtype: torch.dtype | None = None, *extents: int) -> torch.Tensor:
    """Of any dtype, shape and strides; of `extents` where these are given."""
    dtype = dtype or rng.choice(COMMON if rng.random() < 0.5 else DTYPES)
    dims = extents or shape(rng)
    nbytes = prod(dims) * dtype.itemsize
    if not nbytes:
        return empty(dims, dtype)
    raw = torch.frombuffer(bytearray(rng.randbytes(nbytes)), dtype=torch.uint8)
    t = (raw & 1 if dtype is torch.bool else raw).view(dtype).reshape(dims)
    if extents or t.ndim < 2 or t.ndim > 5:
        return t
    how = rng.randrange(8)
    if how == 0:
        return t.transpose(0, -1)
    if how == 1:
        return t[1:]
    if how == 2:
        return t[:, ::2]
    return t[:1].expand(3, *t.shape[1:]) if how == 3 else t


def array(rng: random.Random, *extents: int) -> np.ndarray:
    """Of any dtype, byte order, shape and strides."""
    dtype = rng.choice(NUMPY_DTYPES)
    dims = extents or shape(rng)
    if len(dims) > 32:  # numpy 1's limit
        dims = dims[:32]
    raw = np.frombuffer(rng.randbytes(prod(dims) * dtype.itemsize), np.uint8)
    made = (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(dims)
    return made.T if not extents and rng.random() < 0.3 else made


def number(rng: random.Random) -> int:
    return rng.choice((0, 1, -1, 127, 128, 255, 1 << 31, -(1 << 31), (1 << 64) - 1, -(1 << 63)))


def scalar(rng: random.Random) -> object:
    """What msgpack itself knows."""
    return rng.choice(
        (
            None,
            True,
            number(rng),
            rng.random(),
            float("nan"),
            -0.0,
            "",
            "text ü 🖼" * rng.randrange(4),
            rng.randbytes(rng.randrange(9)),
        )
    )


def plain(rng: random.Random, depth: int = 0) -> object:
    """Lists and dicts of scalars."""
    kind = rng.randrange(4 if depth < 4 else 2)
    if kind == 2:
        return [plain(rng, depth + 1) for _ in range(rng.randrange(5))]
    if kind == 3:
        return {f"k{i}": plain(rng, depth + 1) for i in range(rng.randrange(5))}
    return scalar(rng)


def odd(rng: random.Random) -> object:
    """What only a tagged value carries."""
    made = np.frombuffer(rng.randbytes(16), rng.choice(NUMPY_DTYPES))[0]
    return rng.choice(
        (
            torch.Size([2, 3]),
            rng.choice(DTYPES),
            rng.choice(NUMPY_DTYPES),
            slice(0, number(rng)),
            slice(None, None, None),
            made,
            np.str_("np"),
            np.bytes_(b"np"),
            bytearray(b"array"),
        )
    )


def value(rng: random.Random, depth: int = 0) -> object:
    """Anything, nested, tensors and arrays included."""
    kind = rng.randrange(9 if depth < 4 else 5)
    if kind == 0:
        return odd(rng)
    if kind == 1:
        return tensor(rng)
    if kind == 2:
        return array(rng)
    if kind < 5:
        return scalar(rng)
    if kind == 8:
        if rng.random() < 0.1:
            return slice(tensor(rng), [scalar(rng)], None)
        keys = (None, 7, "a", b"b", (1, "c"), 2.5, True)
        return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    parts = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return tuple(parts) if kind == 5 else parts
