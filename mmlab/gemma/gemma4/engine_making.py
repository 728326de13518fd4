"""How a Gemma 4 engine is made: from a preset's dimensions, or from a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from mmlab.gemma.gemma4.model import Gemma4Engine
from mmlab.gemma.presets import Preset
from mmlab.gemma.tokenizer import (
    AUDIO_ID,
    BOA_ID,
    BOI_ID,
    BOS_ID,
    EOA_ID,
    EOI_ID,
    EOS_ID,
    IMAGE_ID,
    PAD_ID,
    VIDEO_ID,
)
from mmlab.gemma.weights import made

if TYPE_CHECKING:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

# A new Gemma 4 has ones in the table of patch positions, which drown the patches (2 beside 0.3):
# the first token of the answer was then the same for nine of nine photographs.
POSITION_STD: Final = 0.02


def engine(
    name: str, source: Preset | Path, device: torch.device, dtype: torch.dtype, seed: int
) -> Gemma4Engine:
    """The model on its device; see `weights.made`."""
    from transformers import Gemma4ForConditionalGeneration

    model = made(Gemma4ForConditionalGeneration, preset_model, name, source, device, dtype, seed)
    return Gemma4Engine(name, model)


def preset_model(preset: Preset) -> Gemma4ForConditionalGeneration:
    """Random weights, on the default device and in the default dtype."""
    from transformers import Gemma4ForConditionalGeneration

    model = Gemma4ForConditionalGeneration(preset_config(preset))
    table = model.model.vision_tower.patch_embedder.position_embedding_table
    torch.nn.init.normal_(table, std=POSITION_STD)
    return model


def preset_config(preset: Preset) -> Gemma4Config:
    """The transformers configuration of a preset."""
    from transformers import Gemma4Config

    return Gemma4Config(
        text_config={
            **preset.text,
            **preset.text_settings,
            "vocab_size": preset.vocab_size,
            "vocab_size_per_layer_input": preset.vocab_size,
            "max_position_embeddings": preset.max_length,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
            "tie_word_embeddings": preset.tied,
        },
        vision_config=dict(preset.vision),
        audio_config=dict(preset.audio),
        boi_token_id=BOI_ID,
        image_token_id=IMAGE_ID,
        eoi_token_id=EOI_ID,
        boa_token_id=BOA_ID,
        audio_token_id=AUDIO_ID,
        eoa_token_index=EOA_ID,
        video_token_id=VIDEO_ID,
        tie_word_embeddings=preset.tied,
    )
