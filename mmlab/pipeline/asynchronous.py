"""Waiting for a reply in asyncio, where nothing may block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

from mmlab.pipeline.messages import Reply


async def reply_of(submit: Callable[[], Future[Reply]], timeout: float | None) -> Reply:
    """`submit()`, in a thread because it may wait for room, and its reply; `timeout`: of both.

    Cancelling the task cancels the request, also while it still waits.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    submitting = asyncio.get_running_loop().run_in_executor(None, submit)
    try:
        future = await asyncio.shield(submitting)
    except asyncio.CancelledError:
        submitting.add_done_callback(_cancel_result)
        raise
    left = None if deadline is None else deadline - time.monotonic()
    return await asyncio.wait_for(asyncio.wrap_future(future), left)


def _cancel_result(submitting: asyncio.Future[Future[Reply]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
