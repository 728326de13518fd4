"""What Gemma 4's encoders would take silently, or end a GPU's context by, stops at the door."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmlab.errors import EngineError
from mmlab.gemma import load_engine
from mmlab.gemma.gemma4.model import Gemma4Engine
from mmlab.pixels import Step

PLACES = torch.full((1, 18, 2), -1)
PLACES[0, :9] = torch.tensor([[x, y] for y in range(3) for x in range(3)])
PATCHES = torch.rand(1, 18, 768)
IMAGE = {"pixel_values": PATCHES, "image_position_ids": PLACES}
VIDEO = {
    "pixel_values_videos": PATCHES.expand(2, -1, -1),
    "video_position_ids": PLACES.expand(2, -1, -1),
    "num_frames_per_video": torch.tensor([2]),
}
AUDIO = {
    "input_features": torch.rand(1, 40, 128),
    "input_features_mask": torch.ones(1, 40, dtype=torch.bool),
}
STEPS = (Step("div", (255.0,)),)


@pytest.fixture(scope="module")
def gemma4() -> Gemma4Engine:
    found = load_engine("gemma4-tiny", "cpu")
    assert isinstance(found, Gemma4Engine)
    return found


def placed(at: int, x: int, y: int) -> torch.Tensor:
    """The grid with one patch somewhere else."""
    found = PLACES.clone()
    found[0, at] = torch.tensor([x, y])
    return found


def test_what_is_right_goes_through(gemma4: Gemma4Engine) -> None:
    assert gemma4.encode("image", IMAGE).shape == (1, 128)
    assert gemma4.encode("video", VIDEO).shape == (2, 128)
    assert gemma4.encode("audio", AUDIO).shape == (10, 128)
    none = {key: value[:0] for key, value in AUDIO.items()}
    assert gemma4.encode("audio", none).shape == (0, 128)
    silent = AUDIO | {"input_features_mask": torch.zeros(1, 40, dtype=torch.bool)}
    assert gemma4.encode("audio", silent).shape == (0, 128)


@pytest.mark.parametrize(
    ("change", "steps", "match"),
    [
        ({"pixel_values": PATCHES.to(torch.uint8)}, None, "pixel_values: got torch.uint8, wanted"),
        ({}, STEPS, "pixel_values: got torch.float32 with steps"),
        ({"pixel_values": PATCHES[..., :700]}, None, r"got shape \(1, 18, 700\), wanted \(n, mul"),
        ({"pixel_values": PATCHES[:, :17]}, None, r"got shape \(1, 17, 768\), wanted"),
        ({"pixel_values": PATCHES[None]}, None, r"got shape \(1, 1, 18, 768\)"),
        ({"pixel_values": None}, None, "pixel_values: got nothing, wanted a tensor"),
        ({"image_position_ids": [1]}, None, "image_position_ids: got a list, wanted a tensor"),
        ({"image_position_ids": PLACES[:, :9]}, None, r"got torch.int64 \(1, 9, 2\), wanted"),
        ({"image_position_ids": PLACES.int()}, None, r"got torch.int32 .*wanted torch.int64"),
        ({"image_position_ids": placed(8, 2, 2560)}, None, "got no full grid"),
        ({"image_position_ids": placed(8, 1 << 62, 1 << 62)}, None, "got no full grid"),
        ({"image_position_ids": placed(8, 1, 2)}, None, "got no full grid"),  # one twice
        ({"image_position_ids": placed(8, -1, 2)}, None, "got no full grid"),
        ({"image_position_ids": placed(8, -2, -2)}, None, "got no full grid"),
        ({"image_position_ids": placed(8, -1, -1)}, None, "got no full grid"),  # a hole
        ({"image_position_ids": PLACES * 0 - 1}, None, "got no full grid"),
        ({"num_soft_tokens_per_image": torch.tensor([2])}, None, r"got \[2\], the positions say"),
    ],
)
def test_wrong_images(gemma4: Gemma4Engine, change: Any, steps: Any, match: str) -> None:
    with pytest.raises(EngineError, match=match):
        gemma4.encode("image", IMAGE | change, steps)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_frames_per_video": None}, "num_frames_per_video: got nothing, wanted torch.int64"),
        ({"num_frames_per_video": torch.tensor([1])}, r"got \[1\] for 2 frames"),
        ({"num_frames_per_video": torch.tensor([3, -1])}, r"got \[3, -1\] for 2 frames"),
        ({"video_position_ids": PLACES}, r"got torch.int64 \(1, 18, 2\), wanted"),
        ({"pixel_values_videos": [PATCHES]}, "video_position_ids: got 2 items for 1 of pixel"),
        (
            {"pixel_values_videos": PATCHES.expand(2, -1, -1).to(torch.uint8)},
            "pixel_values_videos: got torch.uint8, wanted",
        ),
    ],
)
def test_wrong_videos(gemma4: Gemma4Engine, change: Any, match: str) -> None:
    with pytest.raises(EngineError, match=match):
        gemma4.encode("video", VIDEO | change)


@pytest.mark.parametrize(
    ("change", "steps", "match"),
    [
        ({"input_features": torch.ones(1, 40, 128, dtype=torch.int32)}, None, "got torch.int32"),
        ({"input_features": torch.rand(1, 40, 80)}, None, r"wanted \(n, frames, 128\)"),
        ({"input_features": torch.rand(1, 0, 128)}, None, r"got shape \(1, 0, 128\)"),
        ({"input_features_mask": torch.ones(1, 40)}, None, "got torch.float32 .*torch.bool"),
        ({"input_features_mask": AUDIO["input_features_mask"][:, 1:]}, None, r"\(1, 39\), wanted"),
        ({}, STEPS, "input_features: got torch.float32 with steps"),
    ],
)
def test_wrong_sound(gemma4: Gemma4Engine, change: Any, steps: Any, match: str) -> None:
    with pytest.raises(EngineError, match=match):
        gemma4.encode("audio", AUDIO | change, steps)
