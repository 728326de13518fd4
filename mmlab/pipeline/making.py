"""Room for a request that is still to be made: its bytes in flight, and its place in the arena.

With the arena the processor's last step writes where the engine will read. So room is taken before
there are pixels, in the order in which every request takes it (budget, then arena): who holds the
one and waits for the other can then be waited for by nobody.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import torch

from mmlab.arena import Arena
from mmlab.arena.leases import tensor_nbytes
from mmlab.errors import BatchError, TransportError
from mmlab.fields import KwargsItems
from mmlab.pipeline.inflight import ByteBudget
from mmlab.pipeline.messages import Request, missing_items
from mmlab.pipeline.outgoing import LITTLE
from mmlab.pipeline.settings import PAYLOADS

if TYPE_CHECKING:
    from mmlab.gemma import FrontendModel, Image
    from mmlab.strategies import Payload


ALIGN: Final = 64  # bytes; what the arena gives and dtypes want


class Room:
    """What one request has taken so far; leaving it gives back what was not handed over.

    `left`: seconds that may still be waited. Without an arena nothing is taken here.
    """

    def __init__(self, budget: ByteBudget, arena: Arena | None, timeout: float | None) -> None:
        self._budget = budget
        self._arena = arena
        self.left = timeout
        self.nbytes = 0  # in flight already; 0 also where the request is to take them when sent
        self._used = False

    def empty(self, specs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
        """Memory for all of the request's large payload; once. In the arena one piece, in which
        every tensor begins at a multiple of `ALIGN`. Errors: `ByteBudget.acquire`,
        `Arena.reserve`, within one timeout."""
        sizes = [tensor_nbytes(shape, dtype) for shape, dtype in specs]
        if self._arena is None or sum(sizes) < LITTLE:
            return [torch.empty(shape, dtype=dtype) for shape, dtype in specs]
        begun = time.monotonic()
        self._budget.acquire(sum(sizes), self.left)
        self.nbytes, self._used = sum(sizes), True
        offsets = [0, *accumulate(-(-size // ALIGN) * ALIGN for size in sizes)]
        try:
            if self.left is not None:
                self.left = max(0.0, self.left - (time.monotonic() - begun))
                begun = time.monotonic()
            whole = self._arena.empty((offsets[-1],), torch.uint8, self.left)
        except TransportError:
            self._budget.check()  # the arena closes when the engine has ended: say that
            raise
        if self.left is not None:
            self.left = max(0.0, self.left - (time.monotonic() - begun))
        return [
            whole[at : at + size].view(dtype).view(shape)
            for at, size, (shape, dtype) in zip(offsets, sizes, specs, strict=False)
        ]

    def hand_over(self) -> None:
        """The request is under way: its end gives the bytes back."""
        self.nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._used:
            # The frames of whatever failed refer to the memory, and whoever keeps the error keeps
            # them: a notebook does, until the next one.
            traceback.clear_frames(trace)
        if self.nbytes:
            nbytes, self.nbytes = self.nbytes, 0
            self._budget.release(nbytes)


def check_items(items: object) -> None:
    """BatchError for what are no items, or not all there."""
    if items is None:
        return
    if not isinstance(items, KwargsItems):
        raise BatchError(
            f"items: got {type(items).__qualname__}, wanted KwargsItems "
            "(KwargsItems.from_processor makes them) or None"
        )
    if missing := missing_items(items):
        raise BatchError(
            f"{', '.join(missing)}: None stands for an item that the engine has in its cache, and "
            "there is no such cache yet: send the item itself"
        )


def check_process(owner: int) -> None:
    """TransportError in a forked child: it has copies of locks and counts that mean nothing."""
    if os.getpid() != owner:
        raise TransportError(
            f"this pipeline belongs to process {owner}, this is its fork {os.getpid()}: "
            "make a pipeline of its own here"
        )


@dataclass(frozen=True)
class Inputs:
    """What a caller asks a model for; `FrontendModel.process` says what each may be."""

    prompt: str
    images: Sequence[Image] = ()
    videos: Sequence[object] = ()
    audios: Sequence[object] = ()
    prompt_embeds: torch.Tensor | None = None


def request_of(
    frontend: FrontendModel, inputs: Inputs, max_new_tokens: int, payload: Payload, room: Room
) -> tuple[Request, dict[str, float]]:
    """A prompt and its inputs as the engine takes them, made in `room`; and what it took."""
    done = frontend.process(
        inputs.prompt,
        inputs.images,
        videos=inputs.videos,
        audios=inputs.audios,
        prompt_embeds=inputs.prompt_embeds,
        max_new_tokens=max_new_tokens,
        payload=PAYLOADS[payload],
        empty=room.empty,
    )
    request = Request(done.token_ids, max_new_tokens, done.mm if done.mm else None, done.steps)
    return request, {"processor": done.seconds}


def no_text(token_ids: Sequence[int]) -> str:
    """Of a reply of a model without a tokenizer."""
    return ""
