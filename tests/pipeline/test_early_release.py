"""What the encoder has consumed goes back at once, not at the end of a long answer (vllm#57368)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from pipeline_parts import wait_for

from mmlab.pipeline import Pipeline

LONG = 600  # tokens; some seconds of decoding


@pytest.mark.timeout(120)
@pytest.mark.parametrize("payload", ["float32", "uint8"])
def test_the_arena_is_empty_again_while_the_answer_is_still_decoded(payload: str) -> None:
    image = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with Pipeline(
        "gemma3-tiny",
        "arena",
        payload=payload,  # type: ignore[arg-type]
        engine_threads=1,
        max_inflight_nbytes=32 << 20,
    ) as pipe:
        held = pipe.submit("What?", images=[image], max_new_tokens=LONG)
        assert wait_for(lambda: pipe.stats()["arena_leases"] == 0, 60)
        assert not held.done(), "the answer was too short to show anything"
        # Its room in the arena can be had by another request, though the engine is busy.
        arena = pipe.arena
        assert arena is not None and arena.stats().live_nbytes == 0
        assert len(held.result(60).token_ids) > 100
