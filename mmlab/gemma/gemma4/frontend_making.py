"""How a Gemma 4 frontend is made: from a preset's dimensions, or from a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from mmlab.errors import UsageError
from mmlab.gemma.checkpoint import readable
from mmlab.gemma.dims import EMBED_ID, PROMPT, Dims
from mmlab.gemma.gemma4.processor import Gemma4Frontend
from mmlab.gemma.presets import Preset
from mmlab.gemma.tokenizer import AUDIO_ID, AUDIO_VIDEO, IMAGE_ID, VIDEO_ID, byte_level_tokenizer

if TYPE_CHECKING:
    from transformers import Gemma4Config, Gemma4Processor, Gemma4TextConfig, Gemma4VisionConfig

# The configuration's name of an id -> the processor's name of its token.
IMAGE_TOKENS: Final = {
    "boi_token_id": "boi_token",
    "image_token_id": "image_token",
    "eoi_token_id": "eoi_token",
    "video_token_id": "video_token",
}
AUDIO_TOKENS: Final = {
    "boa_token_id": "boa_token",
    "audio_token_id": "audio_token",
    "eoa_token_index": "eoa_token",
}


def frontend(name: str, source: Preset | Path) -> Gemma4Frontend:
    """Processors (images: the torchvision one), tokenizer and dimensions; no model."""
    if isinstance(source, Preset):
        return Gemma4Frontend(name, preset_processor(source), _preset_dims(source))
    from transformers import Gemma4Config, Gemma4ImageProcessor, Gemma4Processor

    with readable(name):
        config = Gemma4Config.from_pretrained(source, local_files_only=True)
        processor = Gemma4Processor.from_pretrained(source, local_files_only=True)
        # By its own class: the processor's choice of a backend differs between releases.
        images = Gemma4ImageProcessor.from_pretrained(source, local_files_only=True)
        processor.image_processor = images
    check_agreement(name, processor, config)
    return Gemma4Frontend(name, processor, dims_of(config))


def preset_processor(preset: Preset) -> Gemma4Processor:
    """The settings of a Gemma 4 checkpoint, and a tokenizer of bytes."""
    from transformers import (
        Gemma4AudioFeatureExtractor,
        Gemma4ImageProcessor,
        Gemma4Processor,
        Gemma4VideoProcessor,
    )

    return Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(),
        tokenizer=byte_level_tokenizer(preset.vocab_size, AUDIO_VIDEO),
        video_processor=Gemma4VideoProcessor(),
    )


def dims_of(config: Gemma4Config) -> Dims:
    """What frontend and engine agree on."""
    text = cast("Gemma4TextConfig", config.text_config)
    placeholders = {"image": config.image_token_id, "video": config.video_token_id}
    if config.audio_config is not None:
        placeholders["audio"] = config.audio_token_id
    return Dims(
        placeholders={**cast("dict[str, int]", placeholders), PROMPT: EMBED_ID},
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        max_length=text.max_position_embeddings,
    )


def _preset_dims(preset: Preset) -> Dims:
    media = {"image": IMAGE_ID, "video": VIDEO_ID, "audio": AUDIO_ID}
    return Dims(
        placeholders={**media, PROMPT: EMBED_ID},
        hidden_size=preset.text["hidden_size"],
        vocab_size=preset.vocab_size,
        max_length=preset.max_length,
    )


def check_agreement(name: str, processor: Gemma4Processor, config: Gemma4Config) -> None:
    """UsageError where tokens or patches of the processor are not those of the configuration."""
    with_audio = config.audio_config is not None
    for key, attribute in {**IMAGE_TOKENS, **(AUDIO_TOKENS if with_audio else {})}.items():
        token, wanted = getattr(processor, attribute, None), getattr(config, key, None)
        got = None if token is None else processor.tokenizer.convert_tokens_to_ids(token)
        if got is None or got != wanted:
            raise UsageError(
                f"model {name!r}: its tokenizer has {attribute} {token!r} as id {got}, its"
                f" configuration says {key} {wanted}"
            )
    if with_audio and processor.feature_extractor is None:
        raise UsageError(f"model {name!r}: hears, but has no feature extractor")
    vision = cast("Gemma4VisionConfig", config.vision_config)
    for kind in ("image_processor", "video_processor"):
        for setting in ("patch_size", "pooling_kernel_size"):
            got, wanted = getattr(getattr(processor, kind), setting), getattr(vision, setting)
            if got != wanted:
                raise UsageError(
                    f"model {name!r}: its {kind} has {setting} {got}, its vision tower wants"
                    f" {wanted}"
                )
