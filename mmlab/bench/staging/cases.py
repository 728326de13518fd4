"""What is staged: images in memory of their own, or side by side as one processor wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmlab.errors import UsageError
from mmlab.fields import BatchedField, Entry, FieldElem, KwargsItem
from mmlab.measure.capacity import available_nbytes, gib_text
from mmlab.staging.device import Device, map_memory

DTYPES = {"uint8": torch.uint8, "bfloat16": torch.bfloat16, "float32": torch.float32}
SEPARATE, TOGETHER = "separate", "side by side"
ITEMS = (SEPARATE, TOGETHER)
Pairs = list[tuple[str, Entry]]

_GAP = 4096  # bytes between separate images: views of one memory, but not a batch that exists
_PAYLOADS = 7  # of the largest case at once: two sources, registered and not, pool, fresh, memcpy
_ALONE_NBYTES = 256 << 20  # what the process has of its own


@dataclass(frozen=True, slots=True)
class Case:
    """`images` of (3, image_size, image_size), and how they lie."""

    images: int
    dtype: str
    image_size: int
    items: str

    @property
    def image_nbytes(self) -> int:
        return 3 * self.image_size**2 * DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        return self.images * self.image_nbytes


def cases(images: Sequence[int], dtypes: Sequence[str], image_size: int) -> list[Case]:
    """All of them, the smallest of each dtype first."""
    return [
        Case(count, dtype, image_size, items)
        for dtype in dtypes
        for count in sorted(set(images))
        for items in ITEMS
    ]


def check_room(plan: Sequence[Case]) -> None:
    """UsageError, with both numbers, where the largest case may not fit into memory."""
    largest = max(plan, key=lambda case: case.nbytes)
    needed, free = _PAYLOADS * largest.nbytes + _ALONE_NBYTES, available_nbytes()
    if needed > free:
        raise UsageError(
            f"{largest.images} images {largest.dtype} may take {gib_text(needed)}, available are "
            f"{gib_text(free)}: choose fewer --images"
        )


def written(memory: np.ndarray, seed: int = 0) -> np.ndarray:
    """Every page of `memory` (uint8) written, without a pattern of a page's length."""
    block = np.random.default_rng(seed).integers(0, 256, 1_000_003, dtype=np.uint8)
    for at in range(0, memory.nbytes, block.nbytes):
        part = memory[at : at + block.nbytes]
        part[:] = block[: part.nbytes]
    return memory


def pairs_of(case: Case, pin: Device | None = None) -> Pairs:
    """The items; in memory registered with `pin`, as an arena's, where that is given."""
    gap = _GAP if case.items == SEPARATE else 0
    step = case.image_nbytes + gap
    if case.items == SEPARATE and pin is None:
        memories = [written(map_memory(case.image_nbytes), seed) for seed in range(case.images)]
    else:
        whole = written(map_memory(case.images * step))
        if pin is not None:
            pin.register(whole)
        at = range(0, case.images * step, step)
        memories = [whole[start : start + case.image_nbytes] for start in at]
    shape = 3, case.image_size, case.image_size
    field = BatchedField()
    if case.items == TOGETHER:
        batch = torch.from_numpy(whole).view(DTYPES[case.dtype]).view(case.images, *shape)
        tensors = list(batch.unbind(0))
    else:
        tensors = [torch.from_numpy(m).view(DTYPES[case.dtype]).view(shape) for m in memories]
    return [("image", KwargsItem({"pixel_values": FieldElem(t, field)})) for t in tensors]


def tiny(count: int) -> Pairs:
    """Separate tensors of one number: what is left of `stage` is the batcher's own work."""
    field = BatchedField()
    tensors = [torch.ones(1) for _ in range(count)]
    return [("image", KwargsItem({"pixel_values": FieldElem(t, field)})) for t in tensors]
