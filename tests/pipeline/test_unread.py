"""An engine that reads nothing: what is under way stays within the budget, in both processes."""

from __future__ import annotations

import psutil
import pytest
import torch
from arena_pipeline_parts import MIB, frozen, pixels_of
from pipeline_parts import wait_for

from mmlab import BackpressureTimeout
from mmlab.pipeline import Pipeline

BUDGET = 32 * MIB


@pytest.mark.parametrize(
    ("transport", "nbytes", "tuned"),
    [("ipc", 60_000, "1"), ("tcp", 20 * MIB, "1"), ("ipc", 20 * MIB, "0")],
    ids=["copied", "borrowed", "pieces"],
)
def test_bytes_stay_within_the_budget(
    transport: str, nbytes: int, tuned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMLAB_TUNE_MALLOC", tuned)
    with Pipeline(
        model="echo", transport=transport, max_inflight_nbytes=BUDGET, engine_threads=1
    ) as pipeline:
        pipeline.submit_items(pixels_of(torch.zeros(1, nbytes, dtype=torch.uint8))).result(10)
        both = [psutil.Process(), psutil.Process(pipeline.engine_pid)]
        before = [process.memory_info().rss for process in both]
        futures = []
        with frozen(pipeline):
            with pytest.raises(BackpressureTimeout, match=f"of {BUDGET} bytes are in flight"):
                while True:
                    items = pixels_of(torch.ones(1, nbytes, dtype=torch.uint8))
                    futures.append(pipeline.submit_items(items, timeout=0.2))
            stats = pipeline.stats()
            assert BUDGET - nbytes < stats["nbytes_inflight"] <= BUDGET
            assert len(futures) == BUDGET // nbytes
            grown = [p.memory_info().rss - rss for p, rss in zip(both, before, strict=True)]
            # The payload is here once, in frames or in the tensors that they borrow; there is
            # nothing of it at the engine, but what its kernel's buffers and threads hold.
            assert grown[0] < BUDGET * 1.5 + 16 * MIB and grown[1] < 4 * MIB
        for future in futures:
            assert future.result(20)
        assert wait_for(lambda: pipeline.stats()["nbytes_inflight"] == 0)
        assert wait_for(lambda: pipeline.stats()["frames_unreleased"] == 0)
