"""The items of a drawn request: modalities, fields, dtypes and memories that the wire must carry.

Bytes are cut out of one block of noise, since drawing them afresh would take longer than everything
that is tested. A request differs from all others by where its pieces begin in there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch

from mmlab.arena import Arena
from mmlab.bench.soak.draw import Ask, generator
from mmlab.errors import BackpressureTimeout
from mmlab.fields import FieldConfig, KwargsItems, batched, flat, shared

NOISE_NBYTES: Final = 64 << 20  # more than the largest request
DTYPES: Final = (torch.float32, torch.bfloat16, torch.uint8)
FORMS: Final = ("own", "in place", "numpy", "strided", "view")
Value = torch.Tensor | np.ndarray
Named = tuple[dict[str, object], dict[str, FieldConfig]]


class Maker:
    """Makes items; `arena` None where the strategy has none. Thread-safe."""

    def __init__(self, seed: int, limit: int, arena: Arena | None = None) -> None:
        noise = np.random.default_rng(seed).integers(0, 256, NOISE_NBYTES, np.uint8, endpoint=False)
        self._noise = torch.from_numpy(noise)
        self._limit = limit  # the pipeline's budget in bytes
        self._arena = arena

    def items(self, ask: Ask) -> KwargsItems | None:
        """None for a request of text only."""
        choose = generator(ask.seed, ask.thread, ask.number, "items")
        if ask.kind == "text":
            return None
        if ask.kind == "too large":  # its pages are never touched
            return _one(torch.empty(self._limit + 1, dtype=torch.uint8))
        if ask.kind == "not sendable":
            return _one(torch.rand(3, 3).to_sparse())
        if ask.kind == "clip":
            shape = (1, *_picture(ask.nbytes // 4))
            clip = self._value(choose, shape, torch.float32, "own")
            return KwargsItems.from_processor({"x": clip}, {"x": flat("video", sizes=[1])})
        if ask.kind == "edge":
            form = choose.choice(FORMS)
            return _one(self._value(choose, (ask.nbytes,), torch.uint8, form))
        made = {"image": self._image, "video": self._video, "audio": self._audio}
        names = choose.sample(sorted(made), choose.choices([1, 2, 3], [80, 15, 5])[0])
        outputs: dict[str, object] = {}
        config: dict[str, FieldConfig] = {}
        for name in names:
            values, fields = made[name](choose, ask.nbytes // len(names))
            outputs |= values
            config |= fields
        return KwargsItems.from_processor(outputs, config)

    def _image(self, choose: random.Random, nbytes: int) -> Named:
        count, dtype, form = _count(choose, nbytes), choose.choice(DTYPES), choose.choice(FORMS)
        pixels = nbytes // count // dtype.itemsize
        if choose.random() < 0.3:  # of several sizes
            sizes = [choose.randint(pixels // 2, pixels) for _ in range(count)]
            values: object = [self._value(choose, _picture(n), dtype, form) for n in sizes]
        else:
            values = self._value(choose, (count, *_picture(pixels)), dtype, form)
        outputs: dict[str, object] = {"pixel_values": values}
        config = {"pixel_values": batched("image")}
        if choose.random() < 0.5:
            outputs["image_grid"] = torch.full((count, 3), choose.randrange(1 << 40))
            config["image_grid"] = batched("image", keep_on_cpu=True)
        if choose.random() < 0.3:
            outputs["image_scale"] = self._value(choose, (choose.randint(0, 64),), dtype, "own")
            config["image_scale"] = shared("image", count)
        return outputs, config

    def _video(self, choose: random.Random, nbytes: int) -> Named:
        count, dtype, form = _count(choose, nbytes), choose.choice(DTYPES), choose.choice(FORMS)
        frames = [choose.randint(0, 4) for _ in range(count)]
        picture = _picture(nbytes // max(1, sum(frames)) // dtype.itemsize)
        dim = choose.choice([0, 1])
        shape = (*picture[:dim], sum(frames), *picture[dim:])
        outputs: dict[str, object] = {
            "video_pixels": self._value(choose, shape, dtype, form),
            "num_frames": np.array(frames, np.int64),
        }
        return outputs, {
            "video_pixels": flat("video", sizes=frames, dim=dim),
            "num_frames": batched("video", keep_on_cpu=True),
        }

    def _audio(self, choose: random.Random, nbytes: int) -> Named:
        count, form = _count(choose, nbytes), choose.choice(FORMS)
        length = nbytes // count // 512
        lengths = [choose.randint(length // 2, length) for _ in range(count)]
        features = [self._value(choose, (n, 128), torch.float32, form) for n in lengths]
        masks = [self._value(choose, (n,), torch.uint8, "own") > 99 for n in lengths]
        outputs: dict[str, object] = {"input_features": features, "features_mask": masks}
        return outputs, {
            "input_features": batched("audio", pad=None if form == "numpy" else 0),
            "features_mask": batched("audio", pad=False),
        }

    def _value(
        self, choose: random.Random, shape: Sequence[int], dtype: torch.dtype, form: str
    ) -> Value:
        nbytes = prod(shape) * dtype.itemsize
        if form == "strided" and nbytes > NOISE_NBYTES // 4:
            form = "own"
        wide = tuple(shape)
        if form == "strided":
            wide, nbytes = (*shape[:-1], 2 * shape[-1]), 2 * nbytes
        at = choose.randrange(0, NOISE_NBYTES - nbytes, 16)
        noise = self._noise[at : at + nbytes].view(dtype).view(wide)
        if form == "view":
            return noise
        out = self._empty(wide, dtype, in_place=form == "in place")
        # As bytes: a NaN's payload need not survive a copy of numbers.
        out.view(-1).view(torch.uint8).copy_(noise.view(-1).view(torch.uint8))
        if form == "strided":
            return out[..., ::2]
        return out.numpy() if form == "numpy" and dtype != torch.bfloat16 else out

    def _empty(self, shape: Sequence[int], dtype: torch.dtype, *, in_place: bool) -> torch.Tensor:
        if in_place and self._arena is not None:
            try:
                return self._arena.empty(shape, dtype, timeout=0)
            except BackpressureTimeout:
                pass  # a producer that does not wait copies instead
        return torch.empty(tuple(shape), dtype=dtype)


def _one(value: Value) -> KwargsItems:
    """An image item of exactly these bytes; a sparse tensor can be shared only."""
    whole = isinstance(value, torch.Tensor) and value.is_sparse
    batch = value if whole else value[None]
    field = shared("image", 1) if whole else batched("image")
    return KwargsItems.from_processor({"pixel_values": batch}, {"pixel_values": field})


def _count(choose: random.Random, nbytes: int) -> int:
    return choose.choices([1, 2, 3, 8], [50, 25, 15, 10 if nbytes < 1_000_000 else 0])[0]


def _picture(pixels: int) -> tuple[int, int, int]:
    """Three channels with about so many values."""
    side = int((pixels // 3) ** 0.5)
    return 3, side, side
