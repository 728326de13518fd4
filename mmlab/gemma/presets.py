"""Models that need no download: the real architecture and real input sizes, thin layers, seeded.

Transport and staging see what a grown model would send (896 x 896 pixels, 4,096 patches, 256
tokens an image), while two CPU cores answer in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Preset:
    """Dimensions of a model with random weights. `family` chooses the code that builds it."""

    family: str
    text: dict[str, int]
    vision: dict[str, int]
    vocab_size: int
    tokens_per_image: int
    max_length: int  # positions of prompt and answer together


PRESETS: Final[dict[str, Preset]] = {
    "gemma3-tiny": Preset(
        family="gemma3",
        text={
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            # head_dim would be usual (32), but random weights then attend to everything alike, and
            # 20 of 33 photographs are told apart; with 4 it is 29, and rounding flips no more.
            "query_pre_attn_scalar": 4,
            "sliding_window": 512,
        },
        vision={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 896,
            "patch_size": 14,
        },
        vocab_size=1024,
        tokens_per_image=256,
        # Attention masks grow with the square: 0.5 GB for 32 images, 2 GB here (62 images).
        max_length=16_384,
    ),
}
