"""Asking and waiting, on top of `submit`: for a thread, and for asyncio."""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypedDict, Unpack

from mmlab.pipeline.arguments import wait_seconds
from mmlab.pipeline.asynchronous import reply_of
from mmlab.pipeline.messages import Reply

if TYPE_CHECKING:
    import torch

    from mmlab.gemma import Image


class Asked(TypedDict, total=False):
    """What a request may have besides its prompt, as `Pipeline.submit` explains it."""

    images: Sequence[Image]
    videos: Sequence[object]
    audios: Sequence[object]
    prompt_embeds: torch.Tensor | None
    max_new_tokens: int


class Asking(ABC):
    """Gives whoever can `submit` the two ways to wait."""

    @abstractmethod
    def submit(
        self, prompt: str, *, timeout: float | None = None, **asked: Unpack[Asked]
    ) -> Future[Reply]:
        """Send one request."""

    def generate(
        self, prompt: str, *, timeout: float | None = None, **asked: Unpack[Asked]
    ) -> Reply:
        """`submit` and wait; takes what that takes. After `timeout` seconds in all: TimeoutError,
        and it is cancelled."""
        timeout = wait_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        future = self.submit(prompt, timeout=timeout, **asked)
        try:
            return future.result(None if deadline is None else deadline - time.monotonic())
        except BaseException:
            future.cancel()
            raise

    async def agenerate(
        self, prompt: str, *, timeout: float | None = None, **asked: Unpack[Asked]
    ) -> Reply:
        """`generate` for asyncio. Nothing here blocks the event loop; cancelling the task cancels
        the request, also while it still waits for room."""
        submit = functools.partial(self.submit, prompt, timeout=timeout, **asked)
        return await reply_of(submit, wait_seconds("timeout", timeout))
