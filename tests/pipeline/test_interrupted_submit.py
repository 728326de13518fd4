"""Ctrl-C while a request is sent: it is gone or under way, and the next one is answered."""

from __future__ import annotations

import os
import signal

import pytest
import zmq
from arena_pipeline_parts import MIB, is_empty, random_items

from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.transports.links import Push


@pytest.mark.parametrize("strategy", ["msgpack", "arena"])
def test_the_next_request_is_answered_and_nothing_stays_taken(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Push._send_frame

    def signalled(self: Push, view: memoryview, flags: int) -> None:
        real(self, view, flags)
        if flags & zmq.SNDMORE:
            os.kill(os.getpid(), signal.SIGINT)

    with Pipeline(
        model="echo", strategy=strategy, engine_threads=1, max_inflight_nbytes=16 * MIB
    ) as pipe:
        for _ in range(3):
            monkeypatch.setattr(Push, "_send_frame", signalled)
            with pytest.raises(KeyboardInterrupt):
                pipe.submit_items(random_items(MIB))
            monkeypatch.undo()
            items = random_items(MIB)
            assert pipe.submit_items(items).result(10).checksum == checksum_items(items)
        stats = pipe.stats()
        assert stats["requests_inflight"] == stats["nbytes_inflight"] == 0
        assert stats["engine_rejected"] == 0
        if strategy == "arena":
            assert is_empty(pipe)
