"""Gemma 4's engine: its embeddings are those of transformers, its tokens those of `generate()`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from mmlab import group
from mmlab.gemma import FrontendModel, load_engine, load_frontend
from mmlab.gemma.frontend import Processed
from mmlab.gemma.gemma4.model import TYPES, Gemma4Engine

Tensors = dict[str, torch.Tensor]
RNG = np.random.default_rng(0)
FRAMES = [
    RNG.integers(0, 256, (5, 90, 160, 3), np.uint8),
    RNG.integers(0, 256, (3, 64, 64, 3), np.uint8),
]
SOUNDS = [RNG.standard_normal(size).astype(np.float32) * 0.1 for size in (16_000, 9_000, 24_321)]


@pytest.fixture(scope="module")
def front() -> FrontendModel:
    return load_frontend("gemma4-tiny")


@pytest.fixture(scope="module")
def gemma4() -> Gemma4Engine:
    found = load_engine("gemma4-tiny", "cpu")
    assert isinstance(found, Gemma4Engine)
    return found


def by_modality(done: Processed) -> dict[str, Tensors]:
    """Batched kwargs of each modality of a request."""
    return {batch.modality: dict(batch.reduce()) for batch in group(done.mm.pairs())}  # type: ignore


def encoded(engine: Gemma4Engine, kwargs: Mapping[str, Tensors]) -> Tensors:
    return {name: engine.encode(name, values) for name, values in kwargs.items()}


def as_released(engine: Gemma4Engine, videos: Tensors) -> Tensors:
    """Videos as this transformers wants them: before 5.24 with a dimension for each, uncounted."""
    given = inspect.signature(engine.model.model.get_video_features).parameters
    if "num_frames_per_video" in given:
        return videos
    keys = ("pixel_values_videos", "video_position_ids")
    return {key: videos[key][None] for key in keys}  # one video of all frames: the same tokens


def by_transformers(
    engine: Gemma4Engine, ids: list[int], kwargs: Mapping[str, Tensors], new: int
) -> list[int]:
    """What generate() of transformers answers."""
    input_ids = torch.tensor([ids])
    types = torch.zeros_like(input_ids)
    given: dict[str, Any] = {}
    for name, values in kwargs.items():
        types[input_ids == engine.dims.placeholders[name]] = TYPES[name]
        given.update(as_released(engine, values) if name == "video" else values)
    given.pop("num_soft_tokens_per_image", None)
    out = engine.model.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        mm_token_type_ids=types,
        do_sample=False,
        max_new_tokens=new,
        **given,
    )
    return list(out[0, len(ids) :].tolist())


@pytest.mark.parametrize("kinds", ["", "image", "video", "audio", "image video audio"])
def test_tokens_are_those_of_generate(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray], kinds: str
) -> None:
    done = front.process(
        "Describe it.",
        photographs[:3] if "image" in kinds else [],
        videos=FRAMES if "video" in kinds else [],
        audios=SOUNDS if "audio" in kinds else [],
    )
    kwargs = by_modality(done)
    assert set(kwargs) == set(kinds.split())
    got = gemma4.generate(done.token_ids, encoded(gemma4, kwargs), 24)
    assert got.token_ids == by_transformers(gemma4, done.token_ids, kwargs, 24)
    assert len(got.token_ids) == 24


def test_embeddings_are_those_of_the_model_and_each_items_own(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray]
) -> None:
    kwargs = by_modality(front.process("", photographs[:5], videos=FRAMES, audios=SOUNDS))
    images, videos, audios = (kwargs[name] for name in ("image", "video", "audio"))
    got = encoded(gemma4, kwargs)
    with torch.inference_mode():
        model, counted = gemma4.model.model, "num_soft_tokens_per_image"
        shown = {key: value for key, value in images.items() if key != counted}
        wanted = {
            "image": torch.cat(model.get_image_features(**shown).pooler_output),
            "video": torch.cat(
                model.get_video_features(**as_released(gemma4, videos)).pooler_output
            ),
        }
        heard = model.get_audio_features(**audios)
    for name, values in wanted.items():
        assert torch.equal(got[name], values)
    values = heard.pooler_output[heard.attention_mask]
    assert got["audio"].shape == values.shape
    assert (got["audio"] - values).abs().max() <= 5e-7
    alone = {
        "image": [front.process("", [each]) for each in photographs[:5]],
        "video": [front.process("", videos=[each]) for each in FRAMES],
        "audio": [front.process("", audios=[each]) for each in SOUNDS],
    }
    for name, each in alone.items():
        parts = torch.cat([gemma4.encode(name, by_modality(done)[name]) for done in each])
        assert torch.equal(parts, got[name]), name


def test_items_of_different_shapes_come_as_lists(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray]
) -> None:
    kwargs = by_modality(front.process("", photographs[:2], videos=FRAMES, audios=SOUNDS[:2]))
    got = encoded(gemma4, kwargs)
    lists: dict[str, dict[str, object]] = {
        name: {
            key: value if key.startswith("num_") else list(value) for key, value in values.items()
        }
        for name, values in kwargs.items()
    }
    sizes = kwargs["video"]["num_frames_per_video"].tolist()
    for key in ("pixel_values_videos", "video_position_ids"):
        lists["video"][key] = list(kwargs["video"][key].split(sizes))
    sounds = lists["audio"]  # the second clip without what its neighbor's length has added
    assert isinstance(sounds["input_features"], list) and isinstance(
        sounds["input_features_mask"], list
    )
    real = int(sounds["input_features_mask"][1].sum())
    short = [sounds[key][1][: real + 3] for key in ("input_features", "input_features_mask")]
    sounds["input_features"][1], sounds["input_features_mask"][1] = short
    for name, values in lists.items():
        found = gemma4.encode(name, values)
        assert found.shape == got[name].shape
        assert torch.equal(found, got[name]), name


def test_raw_pixels_become_what_the_processor_makes_of_them(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray]
) -> None:
    given = {"images": photographs[:2], "videos": FRAMES}
    floats = encoded(gemma4, by_modality(front.process("", **given)))  # type: ignore[arg-type]
    done = front.process("", **given, payload=torch.uint8)  # type: ignore[arg-type]
    assert done.steps is not None
    kwargs = by_modality(done)
    assert kwargs["image"]["pixel_values"].dtype == torch.uint8
    for name, values in kwargs.items():
        assert torch.equal(gemma4.encode(name, values, done.steps[name]), floats[name])


def test_another_input_gets_another_answer(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray]
) -> None:
    tones = [np.sin(np.arange(16_000) * step).astype(np.float32) / 2 for step in (0.02, 0.1, 0.4)]
    sounds = [*tones, *SOUNDS]
    clips = [
        np.stack([photo[at : at + 99, at : at + 120] for at in range(0, 8, 2)])
        for photo in photographs[:6]
    ]
    asked = {
        "image": [front.process("What is this?", [each]) for each in photographs],
        "video": [front.process("What is this?", videos=[each]) for each in clips],
        "audio": [front.process("What is this?", audios=[each]) for each in sounds],
    }
    for name, requests in asked.items():
        answers = set()
        for done in requests:
            features = encoded(gemma4, by_modality(done))
            answers.add(tuple(gemma4.generate(done.token_ids, features, 8).token_ids))
        assert len(answers) == len(requests), name


def test_embeddings_of_a_caller_are_placeholders_too(
    front: FrontendModel, gemma4: Gemma4Engine, photographs: list[np.ndarray]
) -> None:
    done = front.process("Look:", photographs[:1])
    features = encoded(gemma4, by_modality(done))
    wanted = gemma4.generate(done.token_ids, features, 8).token_ids
    image = gemma4.dims.placeholders["image"]
    ids = [-1 if token == image else token for token in done.token_ids]
    given = gemma4.encode("prompt", {"prompt_embeds": features["image"][None]})
    assert gemma4.generate(ids, {"prompt": given}, 8).token_ids == wanted
    both = front.process("Look:", photographs[:1], prompt_embeds=torch.ones(3, 128))
    kwargs = by_modality(both)
    answer = gemma4.generate(both.token_ids, encoded(gemma4, kwargs), 8).token_ids
    assert len(answer) == 8 and answer != wanted


def test_one_image_is_prefilled_at_once(front: FrontendModel, gemma4: Gemma4Engine) -> None:
    done = front.process("Hi", [RNG.integers(0, 256, (896, 896, 3), np.uint8)])
    kwargs = by_modality(done)
    best = float("inf")
    for _ in range(3):  # seconds of this process: others may use the cores
        begun = time.process_time()
        gemma4.generate(done.token_ids, encoded(gemma4, kwargs), 1)
        best = min(best, time.process_time() - begun)
    assert best < 1


def test_the_encoder_takes_two_images_or_eight_frames_at_a_time(gemma4: Gemma4Engine) -> None:
    sizes: list[int] = []
    handle = gemma4.model.model.vision_tower.register_forward_pre_hook(
        lambda _m, _a, kwargs: sizes.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    grid = torch.tensor([[x, y] for y in range(3) for x in range(3)])
    try:
        for name, patches, keys in (
            ("image", 2_520, ("pixel_values", "image_position_ids")),
            ("video", 630, ("pixel_values_videos", "video_position_ids")),
        ):
            places = torch.full((11, patches, 2), -1)
            places[:, :9] = grid
            kwargs = dict(zip(keys, (torch.rand(11, patches, 768), places), strict=True))
            kwargs["num_frames_per_video"] = torch.tensor([9, 2])
            assert gemma4.encode(name, kwargs).shape == (11, 128)
    finally:
        handle.remove()
    assert sizes == [2, 2, 2, 2, 2, 1, 8, 1, 2]
