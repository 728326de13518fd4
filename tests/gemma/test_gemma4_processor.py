"""Gemma 4's frontend against its processor: one call of `Gemma4Processor`, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mmlab import UsageError, pixels
from mmlab.gemma.frontend import Processed
from mmlab.gemma.gemma4.frontend_making import frontend as make
from mmlab.gemma.gemma4.processor import Gemma4Frontend
from mmlab.gemma.presets import PRESETS, Preset

ALL = {"image", "video", "audio"}


@pytest.fixture(scope="session")
def gemma4() -> Gemma4Frontend:
    bare = Preset("gemma4", {"hidden_size": 128}, {}, 1024, 280, 16_384)
    return make("gemma4-tiny", PRESETS.get("gemma4-tiny", bare))


@pytest.fixture(scope="session")
def shaped(photographs: list[np.ndarray]) -> list[np.ndarray]:
    """Upright, wide, square, tiny, a strip, a grey one."""
    found = [photographs[3], photographs[1], photographs[0], photographs[2][:7, :5]]
    return [*found, photographs[5][:20, :800], np.repeat(photographs[7][:, :, None], 3, axis=2)]


def video(photographs: list[np.ndarray], frames: int, shown: int = 0) -> np.ndarray:
    """A window that moves over a photograph."""
    image = photographs[shown]
    return np.stack([image[at : at + 180, 2 * at : 2 * at + 240] for at in range(frames)])


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    times = np.arange(round(seconds * 16_000)) / 16_000
    tone = 0.4 * np.sin(2 * np.pi * (300 + 40 * seed) * times)
    return (tone + 0.05 * rng.standard_normal(times.size)).astype(np.float32)


def reference(
    front: Gemma4Frontend,
    prompt: str,
    images: Sequence[np.ndarray] = (),
    videos: Sequence[np.ndarray] = (),
    audios: Sequence[np.ndarray] = (),
) -> dict[str, Any]:
    """The processor's own answer, videos below 32 frames unsampled."""
    it = front.processor
    text = it.image_token * len(images) + it.video_token * len(videos)
    options: dict[str, Any] = {}
    if images:
        options["images"] = [list(images)]
    if videos:
        options["videos"] = list(videos)
        options["do_sample_frames"] = all(len(video) >= 32 for video in videos)
    if audios:
        options["audio"] = list(audios)
    text += (it.audio_token or "") * len(audios) + prompt
    made = dict(it(text=[text], return_tensors="pt", **options))
    if videos:  # before 5.24 of transformers: a dimension of their own, and no count of frames
        for key in ("pixel_values_videos", "video_position_ids"):
            made[key] = made[key].flatten(0, -3)
        made["num_frames_per_video"] = torch.tensor([min(len(video), 32) for video in videos])
    return made


def assert_same(done: Processed, wanted: dict[str, Any]) -> dict[str, Any]:
    assert done.token_ids == wanted["input_ids"][0].tolist()
    got = dict(done.mm.reduce())
    said = {"input_ids", "attention_mask", "mm_token_type_ids"}
    assert got.keys() - {"num_soft_tokens_per_image"} == wanted.keys() - said
    for key, value in wanted.items():
        if key not in said:
            assert got[key].dtype == value.dtype and torch.equal(got[key], value), key
    return got


def test_images_of_several_shapes_are_the_processors_bit_for_bit(
    gemma4: Gemma4Frontend, shaped: list[np.ndarray]
) -> None:
    for images in ([shaped[0]], shaped):
        done = gemma4.process("What is it?", images)
        got = assert_same(done, reference(gemma4, "What is it?", images))
        assert got["pixel_values"].shape == (len(images), 2520, 768)
        assert got["image_position_ids"].dtype == torch.int64
        counts = got["num_soft_tokens_per_image"]
        own = gemma4.processor.image_processor(list(images))["num_soft_tokens_per_image"]
        assert counts.tolist() == own
        assert done.token_ids.count(gemma4.dims.placeholders["image"]) == sum(own)
    assert len(set(counts.tolist())) >= 4  # or the shapes would be too much alike


def test_memory_is_asked_for_once_and_written_in_place(
    gemma4: Gemma4Frontend, photographs: list[np.ndarray]
) -> None:
    asked: list[Any] = []
    made: list[torch.Tensor] = []

    def empty(specs: Sequence[Any]) -> list[torch.Tensor]:
        asked.append(list(specs))
        made.extend(torch.empty(shape, dtype=dtype) for shape, dtype in specs)
        return made

    done = gemma4.process(
        "", photographs[:2], videos=[video(photographs, 2)], audios=[sound(0.5)], empty=empty
    )
    assert len(asked) == 1 and len(made) == 6
    there = {value.data_ptr() for value in done.mm.reduce().values()}  # type: ignore[attr-defined]
    assert {tensor.data_ptr() for tensor in made} <= there


@pytest.mark.parametrize("frames", [[32], [8], [40], [40, 32], [8, 5]])
def test_videos_are_the_processors_bit_for_bit(
    gemma4: Gemma4Frontend, photographs: list[np.ndarray], frames: list[int]
) -> None:
    videos = [video(photographs, n, shown) for shown, n in enumerate(frames)]
    got = assert_same(gemma4.process("And?", videos=videos), reference(gemma4, "And?", (), videos))
    assert got["num_frames_per_video"].tolist() == [min(n, 32) for n in frames]
    assert got["pixel_values_videos"].shape == (sum(min(n, 32) for n in frames), 630, 768)


def test_a_list_of_images_is_the_video_of_an_array(
    gemma4: Gemma4Frontend, photographs: list[np.ndarray]
) -> None:
    whole = video(photographs, 40)
    one, other = (gemma4.process("", videos=[given]) for given in (whole, list(whole)))
    assert one.token_ids == other.token_ids and one.mm["video"] == other.mm["video"]


@pytest.mark.parametrize("seconds", [[10.0], [30.0], [0.5], [0.5, 30.0, 10.0], [0.0101], [3.21]])
def test_sounds_are_the_processors_bit_for_bit(
    gemma4: Gemma4Frontend, seconds: list[float]
) -> None:
    clips = [sound(length, seed) for seed, length in enumerate(seconds)]
    got = assert_same(gemma4.process("Hm?", audios=clips), reference(gemma4, "Hm?", (), (), clips))
    assert got["input_features"].shape[-1] == 128
    assert got["input_features_mask"].dtype == torch.bool
    if seconds in ([10.0], [30.0]):
        assert got["input_features"].shape[1] == {10.0: 999, 30.0: 2999}[seconds[0]]


def test_all_three_together_stand_in_order_before_the_text(
    gemma4: Gemma4Frontend, shaped: list[np.ndarray], photographs: list[np.ndarray]
) -> None:
    videos = [video(photographs, 32), video(photographs, 40, 1)]
    clips = [sound(2.0), sound(0.7, 1)]
    done = gemma4.process("All.", shaped[:2], videos=videos, audios=clips)
    assert_same(done, reference(gemma4, "All.", shaped[:2], videos, clips))
    assert set(done.mm) == ALL and [len(done.mm[m]) for m in done.mm] == [2, 2, 2]
    firsts = [done.token_ids.index(gemma4.dims.placeholders[m]) for m in done.mm]
    assert firsts == sorted(firsts)


def test_as_bfloat16_and_as_uint8_the_model_gets_the_processors_own(
    gemma4: Gemma4Frontend, shaped: list[np.ndarray], photographs: list[np.ndarray]
) -> None:
    videos, clips = [video(photographs, 32)], [sound(1.0)]
    wanted = reference(gemma4, "", shaped[:3], videos, clips)
    half = gemma4.process("", shaped[:3], videos=videos, audios=clips, payload=torch.bfloat16)
    raw = gemma4.process("", shaped[:3], videos=videos, audios=clips, payload=torch.uint8)
    rounded, sent = dict(half.mm.reduce()), dict(raw.mm.reduce())
    assert half.steps is None and raw.steps is not None
    for key, modality in (("pixel_values", "image"), ("pixel_values_videos", "video")):
        assert torch.equal(rounded[key], wanted[key].bfloat16())  # type: ignore[arg-type]
        value = sent[key]
        assert isinstance(value, torch.Tensor) and value.dtype == torch.uint8
        for dtype in (torch.float32, torch.bfloat16):
            found = pixels.apply(raw.steps[modality], value, torch.empty(value.shape, dtype=dtype))
            assert torch.equal(found, wanted[key].to(dtype))
    features = wanted["input_features"]
    assert torch.equal(rounded["input_features"], features.bfloat16())  # type: ignore[arg-type]
    assert torch.equal(sent["input_features"], features)  # type: ignore[arg-type]


def test_the_formulas_are_those_of_the_two_processors(gemma4: Gemma4Frontend) -> None:
    assert gemma4._images.steps == (pixels.Step("mul", (1 / 255,)),)
    assert gemma4._videos.steps == (pixels.Step("div", (255.0,)),)


def test_a_normalization_that_would_move_the_padding_is_not_sent_raw(
    photographs: list[np.ndarray],
) -> None:
    from transformers import Gemma4ImageProcessor

    from mmlab.gemma.gemma4.patches import Patches

    own = Gemma4ImageProcessor(do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    patches = Patches(own)
    assert patches.steps is None
    values, positions = torch.empty((1, 2520, 768)), torch.empty((1, 2520, 2), dtype=torch.int64)
    patches.write(photographs[0][None], values, positions)
    assert torch.equal(values, own([photographs[0]], return_tensors="pt")["pixel_values"])


def test_what_is_wrong_is_named(gemma4: Gemma4Frontend, photographs: list[np.ndarray]) -> None:
    with pytest.raises(UsageError, match=r"^images\[1\]: got an array of float64"):
        gemma4.process("", [photographs[0], photographs[0] / 255])  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"^audios\[1\]: got 160 samples at 16000 Hz, wanted 161"):
        gemma4.process("", audios=[sound(1), np.zeros(160, np.float32)])
    with pytest.raises(UsageError, match=r"audios\[0\]: got 480001 samples.*to 480000 \(30 s\)"):
        gemma4.process("", audios=[np.zeros(480_001, np.float32)])
    with pytest.raises(UsageError, match=r"prompt: contains '<\|video\|>' at character 2"):
        gemma4.process("a <|video|>")
