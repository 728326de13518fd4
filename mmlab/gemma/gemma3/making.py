"""How the Gemma 3 family is made: from a preset's dimensions, or from a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch

from mmlab.errors import UsageError
from mmlab.gemma.checkpoint import quiet, readable
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

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

ATTENTION: Final = "sdpa"  # fused kernels on CPU and GPU that take the mask of the image blocks
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
    """The model on its device. `seed` is for presets, whose weights are the same on any device."""
    if isinstance(source, Preset):
        model = preset_model(source, seed)
        # Parameters only: rotary frequencies are buffers, and lose their meaning in bfloat16.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    else:
        model = _checkpoint_model(name, source, dtype)
    model.set_attn_implementation(ATTENTION)
    module: torch.nn.Module = model
    module.to(device)
    return Gemma3Engine(name, model)


def preset_config(preset: Preset) -> Gemma3Config:
    """The transformers configuration of a preset."""
    from transformers import Gemma3Config

    return Gemma3Config(
        # Tied embeddings would make the replies to different images alike.
        text_config={
            **preset.text,
            "vocab_size": preset.vocab_size,
            "max_position_embeddings": preset.max_length,
            "pad_token_id": PAD_ID,
            "eos_token_id": EOS_ID,
            "bos_token_id": BOS_ID,
            "tie_word_embeddings": False,
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
        tie_word_embeddings=False,
    )


def preset_model(preset: Preset, seed: int) -> Gemma3ForConditionalGeneration:
    """Random weights, float32 on the CPU. The global random state is left as it was."""
    from transformers import Gemma3ForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gemma3ForConditionalGeneration(preset_config(preset))
        projection = model.model.multi_modal_projector.mm_input_projection_weight
        torch.nn.init.normal_(projection, std=PROJECTOR_STD)
    return model


def _checkpoint_model(
    name: str, source: Path, dtype: torch.dtype
) -> Gemma3ForConditionalGeneration:
    from transformers import Gemma3ForConditionalGeneration

    with readable(name), quiet():
        loaded = Gemma3ForConditionalGeneration.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,  # the other format of weights is a pickle
            local_files_only=True,
            output_loading_info=True,
        )
    model, info = cast("tuple[Gemma3ForConditionalGeneration, dict[str, list[str]]]", loaded)
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise UsageError(
            f"model {name!r}: {len(missing)} of its weights are not in the checkpoint,"
            f" the first is {missing[0]}"
        )
    return model
