"""Whether a trial fits into memory, asked before it starts: the kernel's own answer is SIGKILL.

The estimates are upper bounds read off the ways of the strategies, not measurements. What makes the
difference is pickle: every item drags the storage of its whole batch along, so that a request of n
images weighs n payloads on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmlab.bench.workloads import Request, largest
from mmlab.pipeline.lending import arena_nbytes
from mmlab.pipeline.messages import ARENA
from mmlab.pipeline.settings import PAYLOADS
from mmlab.strategies import Payload, Strategy

PROCESSES_NBYTES = 1536 << 20  # frontend and engine with their libraries and a tiny model
_PICKLE_COPIES = 4  # of what is on the wire: object and its pickle, received pickle and object
_COPIES = 5  # of the payload: source, frames, received, batch, and the copy at the device
_MODEL_SHARE = 4 << 20  # activations of a tiny model, an image


@dataclass(frozen=True)
class Estimate:
    """Memory a trial may take at its peak, and what is there."""

    needed_nbytes: int
    available_nbytes: int

    @property
    def fits(self) -> bool:
        """True where what is available covers the estimate."""
        return self.needed_nbytes <= self.available_nbytes


def image_nbytes(image_size: int = 896, payload: Payload = "float32") -> int:
    """Bytes of one image's pixel values."""
    return 3 * image_size * image_size * PAYLOADS[payload].itemsize


def needed_nbytes(
    strategy: Strategy,
    requests: Sequence[Request],
    *,
    max_inflight_nbytes: int,
    image_size: int = 896,
    mix: bool = False,
) -> int:
    """Both processes together, with their idle state. `mix`: all requests may be in flight."""
    image = image_nbytes(image_size, strategy.payload)
    heaviest = largest(requests).num_images
    inflight = [heaviest]
    if mix:
        inflight, room = [], max(max_inflight_nbytes, heaviest * image)
        for count in sorted((r.num_images for r in requests), reverse=True):
            if count * image <= room:
                inflight.append(count)
                room -= count * image
    drags = strategy.serializer == "pickle" and strategy.reduce == "deferred"
    weights = [count * count if drags else count for count in inflight]
    # Several requests lie in queues, but only one at a time is being turned into objects.
    copies = _PICKLE_COPIES if drags else _COPIES
    peak = image * (sum(weights) + max(weights) * (copies - 1))
    # The arena is taken whole, before any request; what goes through it stays counted as well.
    arena = arena_nbytes(max_inflight_nbytes) if strategy.transport == ARENA else 0
    return PROCESSES_NBYTES + arena + peak + sum(inflight) * _MODEL_SHARE


def refused_by_budget(
    requests: Sequence[Request],
    max_inflight_nbytes: int,
    image_size: int = 896,
    payload: Payload = "float32",
) -> str | None:
    """One line with both numbers where the largest request can never be sent, else None."""
    heaviest = largest(requests)
    nbytes = heaviest.num_images * image_nbytes(image_size, payload)
    if nbytes <= max_inflight_nbytes:
        return None
    return (
        f"the largest request ({heaviest.num_images} images, {nbytes} bytes) is over the budget in "
        f"flight ({max_inflight_nbytes} bytes): raise --max-inflight or lower --scale"
    )
