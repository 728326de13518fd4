"""The sizes of a Gemma 3 configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mmlab.gemma.dims import EMBED_ID, PROMPT, Dims

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig


def dims_of(config: Gemma3Config) -> Dims:
    """What frontend and engine agree on."""
    text = cast("Gemma3TextConfig", config.text_config)
    return Dims(
        placeholders={"image": cast(int, config.image_token_id), PROMPT: EMBED_ID},
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        max_length=text.max_position_embeddings,
    )


def image_size(config: Gemma3Config) -> int:
    """Pixels of a side, as the vision tower wants them."""
    return cast(int, cast("SiglipVisionConfig", config.vision_config).image_size)


def tokens_per_image(config: Gemma3Config) -> int:
    """Placeholders of one image, or one crop."""
    return cast(int, config.mm_tokens_per_image)
