"""One request of a soak again, alone: what a fault names can be looked at by itself."""

from __future__ import annotations

from mmlab.bench.soak.draw import PATIENCE_S, draw
from mmlab.bench.soak.items import Maker
from mmlab.bench.soak.soak import Settings
from mmlab.errors import EngineError
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.strategies import resolve


def single(settings: Settings, thread: int, number: int) -> str:
    """Send it without cancelling; what it was and what came. Its error, or EngineError."""
    ask = draw(settings.seed, thread, number)
    with Pipeline(
        "echo",
        resolve(settings.strategy),
        insecure_pickle=settings.insecure_pickle,
        max_inflight_nbytes=settings.max_inflight_nbytes,
        engine_threads=1,
    ) as pipe:
        items = Maker(settings.seed, settings.max_inflight_nbytes, pipe.arena).items(ask)
        reply = pipe.submit_items(items, [1, 2, number]).result(PATIENCE_S)
    wanted = checksum_items(items)
    if reply.checksum != wanted:
        raise EngineError(
            f"request {ask.name} of seed {ask.seed}: the reply has checksum {reply.checksum:#x}, "
            f"sent was {wanted:#x}"
        )
    return f"{ask}\n{items!r}\n{reply.payload_nbytes} B came as they were sent: {wanted:#x}"
