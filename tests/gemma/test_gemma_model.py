"""The engine's tokens are those of `generate()`, images count, and bad input stops at the door."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gemma_parts import of_images

from mmlab.errors import EngineError, UsageError
from mmlab.gemma import load_engine
from mmlab.gemma.gemma3.model import Gemma3Engine
from mmlab.gemma.gemma3.processor import Gemma3Frontend


def by_transformers(
    engine: Gemma3Engine, ids: list[int], pixel_values: torch.Tensor | None, new: int
) -> list[int]:
    """What generate() of transformers answers."""
    input_ids = torch.tensor([ids])
    kwargs: dict[str, Any] = {}
    if pixel_values is not None:
        kwargs["pixel_values"] = pixel_values
        kwargs["token_type_ids"] = (input_ids == engine.dims.placeholders["image"]).long()
    out = engine.model.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        max_new_tokens=new,
        **kwargs,
    )
    return list(out[0, len(ids) :].tolist())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tokens_are_those_of_generate(
    frontend: Gemma3Frontend, engine: Gemma3Engine, photographs: list[np.ndarray], count: int
) -> None:
    done = frontend.process("Describe the pages.", photographs[:count])
    pixel_values = done.mm.reduce()["pixel_values"] if count else None
    assert pixel_values is None or isinstance(pixel_values, torch.Tensor)
    features = None if pixel_values is None else engine.encode_images(pixel_values)
    got = engine.generate(done.token_ids, of_images(features), 24)
    assert got.token_ids == by_transformers(engine, done.token_ids, pixel_values, 24)
    assert len(got.token_ids) == 24
    assert got.prefill_s > 0 and got.decode_s > 0
    assert engine.generate(done.token_ids, of_images(features), 1).token_ids == got.token_ids[:1]


def test_decoding_stops_at_an_end_of_sequence_token_as_generate_does(
    frontend: Gemma3Frontend, engine: Gemma3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = frontend.process("Stop.").token_ids
    free = engine.generate(ids, None, 8).token_ids
    stop = free[2]
    ended = free[: free.index(stop) + 1]
    monkeypatch.setattr(engine, "_stop_ids", frozenset([stop]))
    monkeypatch.setattr(engine.model.generation_config, "eos_token_id", [stop, 1])
    assert engine.generate(ids, None, 8).token_ids == ended
    assert by_transformers(engine, ids, None, 8) == ended


def test_another_photograph_gets_another_answer(
    frontend: Gemma3Frontend, engine: Gemma3Engine, photographs: list[np.ndarray]
) -> None:
    answers = set()
    for photograph in photographs:
        done = frontend.process("What is this?", [photograph])
        features = engine.encode_images(done.mm.reduce()["pixel_values"])  # type: ignore[arg-type]
        answers.add(tuple(engine.generate(done.token_ids, of_images(features), 8).token_ids))
    assert len(answers) == len(photographs) == 9


def test_image_tokens_see_what_follows_in_their_image(engine: Gemma3Engine) -> None:
    ids = [2, 260, *[261] * 256, 262, 75]
    features = torch.randn(1, 256, 128)
    other = features.clone()
    other[0, -1] += 1
    seen: list[torch.Tensor] = []
    layer = engine.model.model.language_model.layers[0]
    handle = layer.register_forward_hook(lambda _m, _i, out: seen.append(out.clone()))
    try:
        engine.generate(ids, of_images(features), 1)
        engine.generate(ids, of_images(other), 1)
    finally:
        handle.remove()
    assert not torch.equal(seen[0][0, 2], seen[1][0, 2])  # the first image token
    assert torch.equal(seen[0][0, 1], seen[1][0, 1])  # the token before the image


def test_the_encoder_takes_two_images_at_a_time_and_keeps_their_order(engine: Gemma3Engine) -> None:
    pixel_values = torch.randn(5, 3, 896, 896)
    sizes: list[int] = []
    handle = engine.model.model.vision_tower.register_forward_pre_hook(
        lambda _m, _a, kwargs: sizes.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    try:
        features = engine.encode_images(pixel_values)
    finally:
        handle.remove()
    assert sizes == [2, 2, 1]
    assert features.shape == (5, 256, 128) and features.dtype == torch.float32
    assert torch.equal(features[2:4], engine.encode_images(pixel_values[2:4]))
    assert torch.allclose(features[3:4], engine.encode_images(pixel_values[3:4]), atol=1e-5)
    assert engine.encode_images(pixel_values[:0]).shape == (0, 256, 128)


def test_logits_are_made_for_one_position_only(engine: Gemma3Engine) -> None:
    shapes: list[tuple[int, ...]] = []
    handle = engine.model.lm_head.register_forward_pre_hook(
        lambda _m, args: shapes.append(tuple(args[0].shape))
    )
    try:
        engine.generate([2, *range(3, 60)], None, 3)
    finally:
        handle.remove()
    assert shapes == [(1, 1, 128)] * 3


def test_a_long_prefill_stays_small(engine: Gemma3Engine) -> None:
    """16 images: two masks and one of them as floats (105 MB), not scores of every head."""
    ids = [2, *([260, *[261] * 256, 262] * 16)]
    features = torch.randn(16, 256, 128)
    engine.generate(ids[:259], of_images(features[:1]), 1)
    process, peak, done = psutil.Process(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    before = process.memory_info().rss
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        engine.generate(ids, of_images(features), 1)
    finally:
        done.set()
        thread.join()
    assert peak - before < 300e6


def test_weights_come_from_the_seed_and_global_randomness_is_left_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (load_engine("gemma3-tiny", "cpu", seed) for seed in (7, 7, 8))
    assert torch.equal(torch.rand(3), wanted)
    pairs = list(zip(one.model.parameters(), same.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    weights = [engine.model.get_input_embeddings().weight for engine in (one, other)]
    assert not torch.equal(*weights)
    assert one.model.lm_head.weight.data_ptr() != weights[0].data_ptr()


def test_a_cast_engine_keeps_its_rotary_frequencies() -> None:
    engine = load_engine("gemma3-tiny", "cpu", dtype=torch.bfloat16)
    assert engine.dtype == torch.bfloat16 and engine.attention == "sdpa"
    assert all(p.dtype == torch.bfloat16 for p in engine.model.parameters())
    rotary = [b for n, b in engine.model.named_buffers() if "inv_freq" in n]
    assert rotary and all(buffer.dtype == torch.float32 for buffer in rotary)
    features = engine.encode_images(torch.randn(1, 3, 896, 896))
    assert features.dtype == torch.bfloat16
    assert len(engine.generate([2, *[261] * 256], of_images(features), 4).token_ids) == 4


@pytest.mark.parametrize(
    ("pixel_values", "match"),
    [
        (torch.zeros(1, 3, 896, 896, dtype=torch.uint8), "got torch.uint8.*answers wrongly"),
        (torch.zeros(1, 3, 896, 896, dtype=torch.int64), "got torch.int64, wanted normalized"),
        (torch.zeros(1, 3, 448, 896), r"got shape \(1, 3, 448, 896\), wanted \(n, 3, 896, 896\)"),
        (torch.zeros(3, 896, 896), r"got shape \(3, 896, 896\)"),
        ([torch.zeros(3, 896, 896)], "got a list, wanted one tensor"),
    ],
)
def test_wrong_pixel_values_stop_at_the_door(
    engine: Gemma3Engine, pixel_values: Any, match: str
) -> None:
    with pytest.raises(EngineError, match=f"^pixel_values: {match}"):
        engine.encode_images(pixel_values)


ONE_IMAGE = [2, 260, *[261] * 256, 262]
FEATURES = torch.zeros(1, 256, 128)


@pytest.mark.parametrize(
    ("ids", "features", "match"),
    [
        ([], None, "token_ids: got none"),
        ([2, 1024], None, r"token_ids\[1\]: got 1024, wanted 0 to 1023"),
        ([-2], None, r"token_ids\[0\]: got -2"),
        ([-1], None, "features: got none for 1 prompt tokens"),
        (ONE_IMAGE, None, "features: got none for 256 image tokens"),
        (ONE_IMAGE[:-2], FEATURES, "got 256 of image for 255 image tokens"),
        ([2], FEATURES, "got 256 of image for 0 image tokens"),
        (ONE_IMAGE, FEATURES[:, :, :64], r"image of shape \(256, 64\), wanted \(tokens, 128\)"),
        (ONE_IMAGE, FEATURES[None], r"features: got image of shape \(1, 256, 128\)"),
        (ONE_IMAGE, FEATURES.int(), "features: got image of torch.int32, wanted floats"),
    ],
)
def test_a_prompt_that_does_not_fit_its_features_stops_at_the_door(
    engine: Gemma3Engine, ids: list[int], features: torch.Tensor | None, match: str
) -> None:
    with pytest.raises(EngineError, match=match):
        engine.generate(ids, of_images(features), 1)


def test_length_limits_hold_in_the_engine_too(engine: Gemma3Engine) -> None:
    with pytest.raises(UsageError, match="max_new_tokens: got 0, wanted at least 1"):
        engine.generate([2], None, 0)
    with pytest.raises(UsageError, match=r"1 prompt tokens \+ 16384 new ones are 16385"):
        engine.generate([2], None, 16_384)


def test_a_release_that_ignores_the_cache_is_noticed(
    engine: Gemma3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_cache_name", "cash")
    with pytest.raises(
        EngineError, match=r"prefill left 0 of 3 tokens in the cache.*ignores cash="
    ):
        engine.generate([2, 75, 76], None, 4)
