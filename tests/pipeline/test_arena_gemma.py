"""A real processor and model behind the arena: read-only inputs change no answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from arena_pipeline_parts import is_empty, pixels_of

from mmlab import EngineError
from mmlab.pipeline import Pipeline, Reply

PROMPT = "What?"
ONE = 3 * 896 * 896 * 4


def asked(pipe: Pipeline, requests: list[list[np.ndarray]]) -> list[Reply]:
    """Each by itself, then all at once: the answers must be the same."""
    alone = [pipe.generate(PROMPT, images=images, max_new_tokens=3) for images in requests]
    futures = [pipe.submit(PROMPT, images=images, max_new_tokens=3) for images in requests]
    for reply, future in zip(alone, futures, strict=True):
        assert future.result(60).token_ids == reply.token_ids
        assert future.result().checksum == reply.checksum
    return alone


@pytest.mark.timeout(240)  # four imports of transformers, on a machine that may be busy
def test_gemma_answers_as_it_does_with_msgpack() -> None:
    random = np.random.default_rng(5)
    blocks = random.integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    pictures = [np.repeat(np.repeat(block, 20, 0), 20, 1) for block in blocks]
    requests = [pictures[:1], pictures[1:], []]
    with Pipeline(model="gemma3-tiny", engine_threads=1) as pipe:
        wanted = asked(pipe, requests)
    with Pipeline(
        model="gemma3-tiny",
        strategy="arena",
        engine_threads=1,
        max_inflight_nbytes=8 * ONE,
    ) as pipe:
        for reply, other in zip(asked(pipe, requests), wanted, strict=True):
            assert (reply.token_ids, reply.text) == (other.token_ids, other.text)
            assert reply.checksum == other.checksum
            assert reply.payload_nbytes == other.payload_nbytes and reply.wire_nbytes < 8192
        assert wanted[0].token_ids != wanted[1].token_ids
        wrong = pipe.submit_items(pixels_of(torch.zeros(1, 3, 224, 224)), [2, 3])
        with pytest.raises(EngineError, match="224, 224"):
            wrong.result(60)
        assert is_empty(pipe)
        assert pipe.stats()["arena_peak_nbytes"] >= 2 * ONE
