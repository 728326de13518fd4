"""The requests of a trial, for each model; what they are does not matter, their frames do."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmlab.bench.kills.plan import PREFILL_TOKENS
from mmlab.errors import MMLabError
from mmlab.fields import KwargsItems, batched
from mmlab.pipeline import Pipeline, Reply
from mmlab.pipeline.checksum import checksum_items
from mmlab.strategies import Strategy

if TYPE_CHECKING:
    import numpy as np

_MIB = 1 << 20
_ECHO = "echo"


@dataclass(frozen=True)
class Sizes:
    """`blocked_nbytes` do not fit into the budget beside the other requests of a trial."""

    budget: int
    blocked_nbytes: int


def sizes(model: str) -> Sizes:
    return Sizes(16 * _MIB, 12 * _MIB) if model == _ECHO else Sizes(96 * _MIB, 80 * _MIB)


def open_pipeline(model: str, strategy: Strategy) -> Pipeline:
    budget = sizes(model).budget
    return Pipeline(model, strategy, device="cpu", max_inflight_nbytes=budget, engine_threads=1)


def send(pipe: Pipeline, number: int) -> Future[Reply]:
    """One request of a little over 2 MiB (echo) or of one image."""
    if pipe.model == _ECHO:
        return pipe.submit_items(_items(number))
    return pipe.submit("What is this?", images=[_image(number)], max_new_tokens=1)


def send_long(pipe: Pipeline, number: int) -> Future[Reply]:
    """One whose prefill takes 10 s."""
    if pipe.model == _ECHO:
        return send(pipe, number)
    return pipe.submit_items(None, [5] * PREFILL_TOKENS, max_new_tokens=1)


def send_too_much(pipe: Pipeline) -> Future[Reply]:
    """One that has to wait for the others."""
    nbytes = sizes(pipe.model).blocked_nbytes
    block = torch.zeros(1, nbytes, dtype=torch.uint8)
    return pipe.submit_items(KwargsItems.from_processor({"x": block}, {"x": batched("image")}))


def ask(pipe: Pipeline, timeout: float) -> None:
    """One request, answered rightly in time. MMLabError for a wrong answer."""
    if pipe.model != _ECHO:
        if not send(pipe, 0).result(timeout).token_ids:
            raise MMLabError("an answer without a token")
        return
    items = _items(0)
    got, wanted = pipe.submit_items(items).result(timeout).checksum, checksum_items(items)
    if got != wanted:
        raise MMLabError(f"an answer with checksum {got:#018x}, wanted {wanted:#018x}")


def _items(number: int) -> KwargsItems:
    """Four items of two keys, each value in memory of its own, so that there are many frames."""
    large = [torch.full((512 << 10,), number + n, dtype=torch.uint8) for n in range(4)]
    small = [torch.full((64 << 10,), number + n, dtype=torch.uint8) for n in range(4)]
    config = {"pixel_values": batched("image"), "mask": batched("image")}
    return KwargsItems.from_processor({"pixel_values": large, "mask": small}, config)


def _image(number: int) -> np.ndarray:
    return torch.full((64, 64, 3), 40 * number % 256, dtype=torch.uint8).numpy()
