"""Requests that would mostly be padding in one batch are staged one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from mmlab import KwargsItems, batched, flat
from mmlab.fields import Entry, FieldConfig
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import EngineReply, ErrorReply, Request
from mmlab.pipeline.padding import FREE_NBYTES, wasteful
from mmlab.pipeline.worker import Work, Worker
from mmlab.staging import PinnedBatcher
from mmlab.staging.staged import Staged


def clip(side: int, field: FieldConfig | None = None) -> KwargsItems:
    value = torch.rand(1, 3, side, side)
    return KwargsItems.from_processor({"x": value}, {"x": field or flat("video", sizes=[1])})


def pairs(*requests: KwargsItems) -> list[tuple[str, Entry]]:
    return [pair for items in requests for pair in items.pairs()]


LARGE, SMALL = 1200, 16  # 17 MB and 3 kB


@pytest.mark.parametrize("field", [None, batched("video", pad=0)], ids=["flat", "padded"])
def test_one_large_among_many_small_is_wasteful(field: FieldConfig | None) -> None:
    large, small = clip(LARGE, field), [clip(SMALL + i % 2, field) for i in range(40)]
    assert wasteful(pairs(*small, large), large.nbytes)
    assert not wasteful(pairs(*small), small[1].nbytes)


def test_what_needs_no_padding_is_not_wasteful() -> None:
    """Equal shapes; a list of different ones; and padding that is less than the payload."""
    for requests in (
        [clip(LARGE) for _ in range(4)],
        [clip(side, batched("video")) for side in (LARGE, SMALL, SMALL, SMALL)],
        [clip(side) for side in (LARGE, LARGE, LARGE - 100)],
    ):
        nbytes = max(items.nbytes for items in requests)
        assert nbytes * len(requests) > FREE_NBYTES
        assert not wasteful(pairs(*requests), nbytes)


class Recorder(PinnedBatcher):
    """Notes how large what it stages is."""

    def __init__(self) -> None:
        super().__init__("cpu", mode="pageable")
        self.nbytes: list[int] = []

    def stage(self, pairs: Iterable[tuple[str, Entry]]) -> Staged:
        staged = super().stage(pairs)
        self.nbytes.append(staged.nbytes)
        return staged


@pytest.mark.parametrize("large", [True, False], ids=["one large", "all small"])
def test_a_worker_stages_no_batch_of_padding(large: bool) -> None:
    """One large clip among 64 would take 64 times its bytes; small ones go together."""
    requests = [clip(SMALL + i % 2) for i in range(64)]
    if large:
        requests[30] = clip(LARGE)
    replies: dict[int, EngineReply | ErrorReply] = {}
    with Recorder() as batcher:
        batch = [
            Work(i, Request([], 1, items), 0, items.nbytes, {"decode": 0.0})
            for i, items in enumerate(requests)
        ]
        Worker(batcher, None).serve(
            batch, lambda work: True, lambda work, reply: replies.update({work.request_id: reply})
        )
        payload = sum(items.nbytes for items in requests)
        assert len(batcher.nbytes) == (64 if large else 1)
        assert sum(batcher.nbytes) < 1.2 * payload
    for i, items in enumerate(requests):
        reply = replies[i]
        assert isinstance(reply, EngineReply) and reply.checksum == checksum_items(items)
