"""A real processor and model, raw pixels between them: the answers are those of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from arena_pipeline_parts import is_empty, pixels_of

from mmlab import EngineError, KwargsItems, UsageError
from mmlab.gemma import load_engine, load_frontend
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items

pytestmark = pytest.mark.timeout(240)  # imports of transformers, on a machine that may be busy
PROMPT = "What?"
ONE = 3 * 896 * 896


@pytest.fixture(scope="module")
def requests() -> list[list[np.ndarray]]:
    blocks = np.random.default_rng(5).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    pictures = [np.repeat(np.repeat(block, 20, 0), 20, 1) for block in blocks]
    return [pictures[:1], pictures[1:], []]


def test_requests_alone_and_together_are_answered_as_float32_would_be(
    requests: list[list[np.ndarray]],
) -> None:
    with Pipeline(strategy="arena-uint8", engine_threads=1, max_inflight_nbytes=32 << 20) as pipe:
        front = pipe._frontend
        assert front is not None
        alone = [pipe.generate(PROMPT, images=images, max_new_tokens=3) for images in requests]
        futures = [pipe.submit(PROMPT, images=images, max_new_tokens=3) for images in requests]
        for reply, future in zip(alone, futures, strict=True):
            assert future.result(60).token_ids == reply.token_ids
            assert future.result().checksum == reply.checksum
        assert pipe.stats()["arena_copied_nbytes"] == 0
        assert alone[1].payload_nbytes == 2 * ONE
        raw = torch.zeros((1, 3, 896, 896), dtype=torch.uint8)
        with pytest.raises(EngineError, match=r"got torch.uint8, wanted normalized floats"):
            pipe.submit_items(pixels_of(raw), [2, 3]).result(60)
        assert is_empty(pipe)
    model = load_engine("gemma3-tiny", "cpu")
    for images, reply in zip(requests, alone, strict=True):
        sent = front.process(PROMPT, images, payload=torch.uint8)
        assert reply.checksum == checksum_items(sent.mm)
        done = front.process(PROMPT, images)
        kwargs = done.mm.reduce()
        features = {"image": model.encode("image", kwargs)} if kwargs else None
        assert reply.token_ids == model.generate(done.token_ids, features, 3).token_ids
    assert alone[0].token_ids != alone[1].token_ids


def test_without_an_arena_nothing_is_taken_before_the_request_is_made(
    requests: list[list[np.ndarray]],
) -> None:
    with Pipeline(model="echo", payload="uint8", engine_threads=1) as pipe:
        assert pipe.strategy.name == "msgpack" and pipe.strategy.payload == "uint8"
        pipe._frontend = frontend = load_frontend("gemma3-tiny")
        reply = pipe.submit("What?", images=requests[1]).result(10)
        assert reply.payload_nbytes == 2 * ONE
        wanted: KwargsItems = frontend.process("What?", requests[1], payload=torch.uint8).mm
        assert reply.checksum == checksum_items(wanted)
        with pytest.raises(UsageError, match=r"images\[0\]"):
            pipe.submit("What?", images=["file.png"])  # type: ignore[list-item]
        assert pipe.stats()["nbytes_inflight"] == 0
