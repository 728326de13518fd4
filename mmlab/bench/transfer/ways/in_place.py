"""The arena again, for a producer that writes its result there: only its place is sent."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.arena import Arena
from mmlab.bench.transfer.packets import Case
from mmlab.bench.transfer.payload import DTYPES, nbytes_of
from mmlab.bench.transfer.ways.arena import SLACK_NBYTES, FromArena, IntoArena


class InPlace(IntoArena):
    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        room = nbytes_of(case) + (1 << 12)  # each begins at a whole page
        self.arena = Arena.create(len(sources) * room + SLACK_NBYTES)
        self.batches = [
            self.arena.empty(case.shape, DTYPES[case.dtype], timeout=0).copy_(source)
            for source in sources
        ]


SENDER, RECEIVER = InPlace, FromArena
