"""How the Gemma 3 family is made: from a preset's dimensions, or from a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from mmlab.errors import UsageError
from mmlab.gemma.checkpoint import readable
from mmlab.gemma.gemma3.dims import image_size
from mmlab.gemma.gemma3.model import Gemma3Engine
from mmlab.gemma.gemma3.processor import Gemma3Frontend
from mmlab.gemma.presets import Preset
from mmlab.gemma.tokenizer import (
    BOI_ID,
    BOS_ID,
    EOI_ID,
    EOS_ID,
    IMAGE_ID,
    PAD_ID,
    byte_level_tokenizer,
)
from mmlab.gemma.weights import made

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

# A new Gemma 3 has zeros in this projection: it would answer every image alike.
PROJECTOR_STD: Final = 0.2


def frontend(name: str, source: Preset | Path) -> Gemma3Frontend:
    """Configuration, image processor (the torchvision one) and tokenizer; no model."""
    from transformers import Gemma3Config, Gemma3ImageProcessor, Gemma3Processor

    if isinstance(source, Preset):
        side = source.vision["image_size"]
        processor = Gemma3Processor(
            image_processor=Gemma3ImageProcessor(size={"height": side, "width": side}),
            tokenizer=byte_level_tokenizer(source.vocab_size),
            image_seq_length=source.tokens_per_image,
        )
        return Gemma3Frontend(name, processor, preset_config(source))
    with readable(name):
        config = Gemma3Config.from_pretrained(source, local_files_only=True)
        processor = Gemma3Processor.from_pretrained(source, local_files_only=True)
        # By its own class: the processor's choice of a backend differs between releases.
        images = Gemma3ImageProcessor.from_pretrained(source, local_files_only=True)
        processor.image_processor = images
    wanted = image_size(config)
    if (images.size["height"], images.size["width"]) != (wanted, wanted):
        raise UsageError(
            f"model {name!r}: its image processor makes {images.size['height']} x"
            f" {images.size['width']} pixels, its vision tower wants {wanted} x {wanted}"
        )
    return Gemma3Frontend(name, processor, config)


def engine(
    name: str, source: Preset | Path, device: torch.device, dtype: torch.dtype, seed: int
) -> Gemma3Engine:
    """The model on its device; see `weights.made`."""
    from transformers import Gemma3ForConditionalGeneration

    model = made(Gemma3ForConditionalGeneration, preset_model, name, source, device, dtype, seed)
    return Gemma3Engine(name, model)


def preset_config(preset: Preset) -> Gemma3Config:
    """The transformers configuration of a preset."""
    from transformers import Gemma3Config

    return Gemma3Config(
        text_config={
            **preset.text,
            **preset.text_settings,
            "vocab_size": preset.vocab_size,
            "max_position_embeddings": preset.max_length,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
            "tie_word_embeddings": preset.tied,
        },
        vision_config={
            **preset.vision,
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
        },
        mm_tokens_per_image=preset.tokens_per_image,
        boi_token_index=BOI_ID,
        eoi_token_index=EOI_ID,
        image_token_index=IMAGE_ID,
        tie_word_embeddings=preset.tied,
    )


def preset_model(preset: Preset) -> Gemma3ForConditionalGeneration:
    """Random weights, on the default device and in the default dtype."""
    from transformers import Gemma3ForConditionalGeneration

    model = Gemma3ForConditionalGeneration(preset_config(preset))
    projection = model.model.multi_modal_projector.mm_input_projection_weight
    torch.nn.init.normal_(projection, std=PROJECTOR_STD)
    return model
