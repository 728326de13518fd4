"""The copies of one batch: a tensor each, parts into one, and small tensors together.

Starting a copy costs the host and the device some microseconds, whatever its size. Small tensors of
a batch lie side by side in their staging buffer, so that one copy takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmlab.staging.device import Stream
from mmlab.staging.layout import Layout, Source


def start_copies(stream: Stream, layout: Layout, started: list[torch.Tensor]) -> list[torch.Tensor]:
    """The device tensors of all sources, in order; their bytes arrive later.

    What was started is in `started`, also after an error.
    """
    arrived: dict[int, torch.Tensor] = {}
    bundle = layout.bundle
    if bundle is not None:
        whole = stream.copy(bundle.memory, pinned=bundle.pinned)
        started.append(whole)
        for piece, at in bundle.places:
            part = whole[at : at + piece.nbytes].view(piece.dtype).view(piece.shape)
            arrived[piece.slot.at] = part
    for index, source in enumerate(layout.sources):
        if index not in arrived:
            arrived[index] = _start(stream, source)
            started.append(arrived[index])
    return [arrived[index] for index in range(len(layout.sources))]


def _start(stream: Stream, source: Source) -> torch.Tensor:
    if source.plan is not None:
        return stream.gather(source.plan.shape, source.plan.dtype, source.parts)
    assert source.tensor is not None
    return stream.copy(source.tensor, pinned=source.pinned)


def memory_of(sources: list[Source], *, own: bool) -> Iterator[torch.Tensor | None]:
    """What must not be freed before the copies have finished: pinned memory that is lent, and
    (`own`) that which no pool keeps."""
    for source in sources:
        if source.pinned and (source.borrowed or own):
            yield source.tensor
            yield from (part for _, part in source.parts)
