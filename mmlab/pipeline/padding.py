"""How much of a common batch would be padding: one large clip beside many small ones costs their
number times the large one. Within one request that is the caller's choice; across requests it is
chance, and the byte budget does not count it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from mmlab.fields import Entry
from mmlab.reducers import group

FREE_NBYTES: Final = 32 << 20  # of padding that nobody asks about


def wasteful(pairs: Iterable[tuple[str, Entry]], most_nbytes: int) -> bool:
    """Whether the batches of these items are large and more padding than payload.

    `most_nbytes`: what the largest request brings. Plans, and writes nothing; BatchError where the
    items cannot be batched at all.
    """
    pairs = list(pairs)
    if len(pairs) * most_nbytes <= FREE_NBYTES:
        return False  # no elem is larger, so no batch can be
    planned = given = 0
    for batch in group(pairs):
        for key in list(batch.keys()):
            parts = [
                elem for at in batch.indices if (elem := _tensor(pairs[at][1], key)) is not None
            ]
            if parts and (plan := batch.plan(key)) is not None and plan.copies:
                planned += plan.nbytes
                given += sum(part.nbytes for part in parts)
    return planned - given > max(FREE_NBYTES, given)


def _tensor(item: Entry, key: str) -> torch.Tensor | None:
    """Arrays are left out: their batch is made when it is planned."""
    data = None if item is None else item[key].data
    return data if isinstance(data, torch.Tensor) else None
