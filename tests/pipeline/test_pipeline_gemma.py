"""The pipeline with a real processor and a real model: the answers are the images' own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra mmlab[models]")
pytest.importorskip("torchvision", reason="needs the extra mmlab[models]")

from mmlab import EngineError, KwargsItems, UsageError, batched
from mmlab.pipeline import Pipeline, Reply
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.messages import STAGES

pytestmark = pytest.mark.timeout(240)  # two imports of transformers, on a machine that may be busy
PROMPT = "What?"


@pytest.fixture(scope="module")
def gemma() -> Iterator[Pipeline]:
    with Pipeline(model="gemma3-tiny", engine_threads=1) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    return [np.repeat(np.repeat(block, 20, 0), 20, 1) for block in blocks]


@pytest.fixture(scope="module")
def alone(gemma: Pipeline, pictures: list[np.ndarray]) -> list[Reply]:
    """The reply to each picture, asked one after another."""
    return [gemma.generate(PROMPT, images=[p], max_new_tokens=3) for p in pictures]


def test_a_reply_has_tokens_text_and_the_time_of_every_stage(
    gemma: Pipeline, pictures: list[np.ndarray], alone: list[Reply]
) -> None:
    reply = alone[0]
    assert 1 <= len(reply.token_ids) <= 3 and isinstance(reply.text, str)
    assert reply.payload_nbytes == 3 * 896 * 896 * 4 and reply.num_frames == 2
    for stage in STAGES:
        assert reply.timings[stage] > 0 or stage in ("h2d", "decode_tokens"), stage
    assert sum(reply.timings[stage] for stage in STAGES) <= reply.timings["total"]
    assert gemma._frontend is not None
    processed = gemma._frontend.process(PROMPT, pictures[:1])
    assert reply.checksum == checksum_items(processed.mm)
    assert gemma.info.torch_threads == 1


def test_another_image_gives_another_answer(alone: list[Reply]) -> None:
    assert len({reply.checksum for reply in alone}) == 3
    assert len({tuple(reply.token_ids) for reply in alone}) > 1


def test_answers_do_not_depend_on_the_company_and_a_bad_request_fails_alone(
    gemma: Pipeline, pictures: list[np.ndarray], alone: list[Reply]
) -> None:
    def items(*shape: int, dtype: torch.dtype = torch.float32) -> KwargsItems:
        outputs = {"pixel_values": torch.zeros(shape, dtype=dtype)}
        return KwargsItems.from_processor(outputs, {"pixel_values": batched("image")})

    futures = [gemma.submit(PROMPT, images=pictures[:1], max_new_tokens=3)]
    wrong_shape = gemma.submit_items(items(1, 3, 224, 224), [2, 3])
    raw_pixels = gemma.submit_items(items(1, 3, 896, 896, dtype=torch.uint8), [2, 3])
    futures += [gemma.submit(PROMPT, images=[p], max_new_tokens=3) for p in pictures[1:]]
    text_only = gemma.submit(PROMPT, max_new_tokens=2)
    for future, before in zip(futures, alone, strict=True):
        reply = future.result(120)
        assert (reply.token_ids, reply.checksum) == (before.token_ids, before.checksum)
    assert text_only.result(120).token_ids
    for future, message in ((wrong_shape, "224, 224"), (raw_pixels, "uint8")):
        with pytest.raises(EngineError, match=message) as got:
            future.result(120)
        assert got.value.exit_code is None
        assert "Traceback" in got.value.__notes__[0]


def test_what_the_processor_refuses_is_an_error_here(gemma: Pipeline) -> None:
    before = gemma.stats()
    with pytest.raises(UsageError, match=r"images\[1\]"):
        gemma.submit(PROMPT, images=[np.zeros((4, 4, 3), np.uint8), "file.png"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="prompt"):
        gemma.submit(7)  # type: ignore[arg-type]
    assert gemma.stats() == before


def test_asyncio_gets_the_same_answers_and_can_cancel(
    gemma: Pipeline, pictures: list[np.ndarray], alone: list[Reply]
) -> None:
    async def main() -> list[Reply]:
        asking = [
            asyncio.create_task(gemma.agenerate(PROMPT, images=[p], max_new_tokens=3))
            for p in pictures
        ]
        unwanted = asyncio.create_task(gemma.agenerate(PROMPT, images=pictures))
        await asyncio.sleep(0.05)
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        return await asyncio.gather(*asking)

    replies = asyncio.run(main())
    assert [reply.token_ids for reply in replies] == [reply.token_ids for reply in alone]


def test_a_reply_that_takes_too_long_is_given_up(
    gemma: Pipeline, pictures: list[np.ndarray]
) -> None:
    with pytest.raises(TimeoutError):
        gemma.generate(PROMPT, images=pictures, max_new_tokens=400, timeout=0.1)
    assert gemma.generate(PROMPT, max_new_tokens=1).token_ids
    assert gemma.stats()["requests_inflight"] == gemma.stats()["nbytes_inflight"] == 0
