"""A Gemma 4 frontend from a checkpoint directory, and directories whose parts do not agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmlab import UsageError
from mmlab.gemma.gemma4.frontend_making import frontend, preset_processor
from mmlab.gemma.presets import Preset
from mmlab.gemma.tokenizer import AUDIO_VIDEO, SPECIAL, byte_level_tokenizer

PRESET = Preset("gemma4", {"hidden_size": 128}, {}, 1024, 280, 16_384)
IDS = {
    "boi_token_id": 260,
    "image_token_id": 261,
    "eoi_token_id": 262,
    "boa_token_id": 263,
    "audio_token_id": 264,
    "eoa_token_index": 265,
    "video_token_id": 266,
}


def checkpoint(path: Path, *, audio: bool = True, vision: Any = None, **ids: int) -> Path:
    from transformers import Gemma4Config

    Gemma4Config(
        text_config={"hidden_size": 128, "vocab_size": 1024, "max_position_embeddings": 4096},
        vision_config=vision or {},
        audio_config={} if audio else None,
        **{**IDS, **ids},
    ).save_pretrained(path)
    preset_processor(PRESET).save_pretrained(path)
    return path


def test_a_checkpoints_frontend_is_the_presets(
    tmp_path: Path, photographs: list[np.ndarray]
) -> None:
    loaded, made = frontend("there", checkpoint(tmp_path)), frontend("tiny", PRESET)
    assert loaded.dims.placeholders == made.dims.placeholders
    assert (loaded.dims.hidden_size, loaded.dims.max_length) == (128, 4096)
    assert loaded.image_processor.startswith("Gemma4ImageProcessor (torchvision)")
    clip = np.sin(np.arange(8000) / 9).astype(np.float32)
    video = np.stack([photographs[0][at : at + 90, :120] for at in range(3)])
    one, other = (
        front.process("Hm?", photographs[:1], videos=[video], audios=[clip])
        for front in (loaded, made)
    )
    assert one.token_ids == other.token_ids
    assert all(one.mm[m] == other.mm[m] for m in ("image", "video", "audio"))


def test_a_checkpoint_without_sound_takes_none(tmp_path: Path) -> None:
    front = frontend("deaf", checkpoint(tmp_path, audio=False, audio_token_id=7))
    assert front.modalities == ("image", "video")
    with pytest.raises(UsageError, match=r"audios: model 'deaf' takes none"):
        front.process("", audios=[np.zeros(8000, np.float32)])


@pytest.mark.parametrize("key", IDS)
def test_ids_that_disagree_are_refused_by_name(tmp_path: Path, key: str) -> None:
    path = checkpoint(tmp_path, **{key: 999})
    with pytest.raises(UsageError, match=rf"'odd'.* as id {IDS[key]}, its .* says {key} 999"):
        frontend("odd", path)


def test_patches_that_the_tower_does_not_take_are_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, vision={"patch_size": 14})
    with pytest.raises(UsageError, match=r"image_processor has patch_size 16, .* wants 14"):
        frontend("odd", path)


def test_a_broken_processor_is_one_line_with_the_models_name(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    (path / "tokenizer.json").write_text(json.dumps({"no": "tokenizer"}))
    with pytest.raises(UsageError, match=r"^model 'broken': cannot be loaded: "):
        frontend("broken", path)


def test_the_tokens_of_gemma_4_follow_those_of_gemma_3() -> None:
    small, large = byte_level_tokenizer(1024), byte_level_tokenizer(1024, AUDIO_VIDEO)
    assert large.convert_tokens_to_ids(list(SPECIAL)) == list(SPECIAL.values())
    for attribute, (token, number) in AUDIO_VIDEO.items():
        assert large(token)["input_ids"] == [2, number]
        assert getattr(large, f"{attribute}_id") == number
        assert small(token)["input_ids"] == [2, *(byte + 3 for byte in token.encode())]
    assert large.decode([2, 264, 75, 266], skip_special_tokens=True) == "H"
    assert len(large) == len(small) == 1024
    assert torch.unique(torch.tensor(list(large.get_vocab().values()))).numel() == 1024
