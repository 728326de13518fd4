"""Whether a trial fits into memory, asked before it starts: the kernel's own answer is SIGKILL.

The estimates are upper bounds read off the ways of the strategies, not measurements. What makes the
difference is pickle: every item drags the storage of its whole batch along, so that a request of n
images weighs n payloads on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmlab.bench.families import GEMMA3
from mmlab.bench.spec import ECHO
from mmlab.bench.workload_files import Size
from mmlab.bench.workloads import Request
from mmlab.pipeline.lending import arena_nbytes
from mmlab.pipeline.messages import ARENA
from mmlab.pipeline.settings import PAYLOADS
from mmlab.strategies import Payload, Strategy

PROCESSES_NBYTES = 1536 << 20  # frontend and engine with their libraries and a tiny model
_PICKLE_COPIES = 4  # of what is on the wire: object and its pickle, received pickle and object
_COPIES = 5  # of the payload: source, frames, received, batch, and the copy at the device
_MODEL_SHARE = 4 << 20  # activations of a tiny model: an image, a frame, or a recording
_SIDE = 896  # of the square that a Gemma 3 model makes of every image
_PATCH = 768  # values: 16 x 16 RGB
_POSITION = 16  # bytes of a patch's two int64
_IMAGE_PATCHES, _FRAME_PATCHES = 2520, 630  # of Gemma 4, padding included
_SECOND = 100 * (128 * 4 + 1)  # bytes of its audio: 128 float32 and a flag every 10 ms


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
    return 3 * _area(image_size) * PAYLOADS[payload].itemsize


def modality_nbytes(
    request: Request, payload: Payload, *, image_size: int = 896, family: str = GEMMA3
) -> dict[str, tuple[int, int]]:
    """Of each modality of a request: (items, bytes of their payload), as the model's family has it.

    `image_size`: side of the squares that `echo` sends where the workload names no size.
    """
    itemsize = PAYLOADS[payload].itemsize
    frames = sum(clip.frames for clip in request.videos)
    if family == GEMMA3:
        images = request.num_images * image_nbytes(_SIDE, payload)
    elif family == ECHO:
        sizes = request.sizes or (image_size,) * request.num_images
        images = sum(3 * _area(size) * itemsize for size in sizes)
    else:
        images = request.num_images * _IMAGE_PATCHES * (_PATCH * itemsize + _POSITION)
    found = {
        "image": (request.num_images, images),
        "video": (len(request.videos), frames * _FRAME_PATCHES * (_PATCH * itemsize + _POSITION)),
        "audio": (len(request.audios), round(sum(request.audios) * _SECOND)),
    }
    return {modality: found[modality] for modality in request.modalities}


def request_nbytes(
    request: Request, payload: Payload, *, image_size: int = 896, family: str = GEMMA3
) -> int:
    """Bytes of a request's payload."""
    found = modality_nbytes(request, payload, image_size=image_size, family=family)
    return sum(nbytes for _, nbytes in found.values())


def _area(size: Size) -> int:
    return size * size if isinstance(size, int) else size[0] * size[1]


def needed_nbytes(
    strategy: Strategy,
    requests: Sequence[Request],
    *,
    max_inflight_nbytes: int,
    image_size: int = 896,
    mix: bool = False,
    family: str = GEMMA3,
) -> int:
    """Both processes together, with their idle state. `mix`: all requests may be in flight."""
    drags = strategy.serializer == "pickle" and strategy.reduce == "deferred"
    loads = [
        (
            sum(nbytes for _, nbytes in found.values()),
            sum(nbytes * (items if drags else 1) for items, nbytes in found.values()),
            r.num_images + sum(clip.frames for clip in r.videos) + len(r.audios),
        )
        for r in requests
        for found in [modality_nbytes(r, strategy.payload, image_size=image_size, family=family)]
    ]
    loads.sort(reverse=True)
    inflight, room = loads[:1], max(0, max_inflight_nbytes - loads[0][0])
    for load in loads[1:] if mix else ():
        if load[0] <= room:
            inflight.append(load)
            room -= load[0]
    weights = [weight for _, weight, _ in inflight]
    # Several requests lie in queues, but only one at a time is being turned into objects.
    copies = _PICKLE_COPIES if drags else _COPIES
    peak = sum(weights) + max(weights) * (copies - 1)
    # The arena is taken whole, before any request; what goes through it stays counted as well.
    arena = arena_nbytes(max_inflight_nbytes) if strategy.transport == ARENA else 0
    shares = sum(share for _, _, share in inflight)
    return PROCESSES_NBYTES + arena + peak + shares * _MODEL_SHARE


def refused_by_budget(
    requests: Sequence[Request],
    max_inflight_nbytes: int,
    image_size: int = 896,
    payload: Payload = "float32",
    family: str = GEMMA3,
) -> str | None:
    """One line with both numbers where the largest request can never be sent, else None."""
    nbytes, case = max(
        (request_nbytes(r, payload, image_size=image_size, family=family), r.case) for r in requests
    )
    if nbytes <= max_inflight_nbytes:
        return None
    return (
        f"the largest request ({case}, {nbytes} bytes) is over the budget in "
        f"flight ({max_inflight_nbytes} bytes): raise --max-inflight or lower --scale"
    )
