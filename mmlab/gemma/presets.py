"""Models that need no download: the real architecture and real input sizes, weights by seed.

With the tiny ones transport and staging see what a grown model would send (896 x 896 pixels, 4,096
patches, 256 tokens an image), while two CPU cores answer in a fraction of a second. The others have
the dimensions of published models, for a GPU: their time is real, their answers are noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    audio: Mapping[str, int | list[int]] = field(default_factory=dict)  # {}: does not hear
    text_settings: Mapping[str, object] = field(default_factory=dict)  # those that are no sizes
    tied: bool = False  # embeddings and head in one; random ones answer different images alike
    large: bool = False  # drawn where it lives, in its own dtype


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
    "gemma4-tiny": Preset(
        family="gemma4",
        text={
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "global_head_dim": 32,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 16,
        },
        vision={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "position_embedding_size": 2560,
        },
        vocab_size=1024,
        tokens_per_image=280,  # at most
        max_length=16_384,
        audio={
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "subsampling_conv_channels": [128, 32],
            "output_proj_dims": 96,
        },
        text_settings={"final_logit_softcapping": 30.0},
    ),
    # 4.3 billion parameters: 0.42 of them see, 3.88 read. hidden_size, layers, intermediate_size
    # and sliding_window are of the published google/gemma-3-4b; no copy of its configuration is at
    # hand here, but together they give its published number of parameters (a test counts). Heads,
    # head_dim, vocabulary and the bases of the rotary frequencies are transformers' defaults
    # (Gemma3TextConfig). Positions of global layers divided by 8: published too, and not to be
    # checked by counting.
    "gemma3-4b": Preset(
        family="gemma3",
        text={
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 1024,
        },
        vision={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
        },
        vocab_size=262_208,
        tokens_per_image=256,
        max_length=131_072,
        text_settings={"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        tied=True,
        large=True,
    ),
    # 5.1 billion parameters, 2.8 of them in embeddings. Layers, hidden_size, both widths of the
    # FFN (the layers that share keys and values have twice the width), heads of 256 and 512, four
    # sliding layers before a global one, window and soft cap: google/gemma.cpp, pull request 919.
    # The 8 heads, and 1 of keys and values: https://apxml.com/models/gemma-4-e2b. vision and audio:
    # transformers' defaults, whose docstrings name this checkpoint; the width of the audio output
    # is the text's hidden_size in them. Not found in writing: that the last 20 layers share. The
    # published 5.1 billion fit (a test counts); no copy of the configuration is at hand here.
    "gemma4-e2b": Preset(
        family="gemma4",
        text={
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
            "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 20,
        },
        vision={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 16,
            "num_attention_heads": 12,
            "num_key_value_heads": 12,
            "head_dim": 64,
            "position_embedding_size": 10_240,
        },
        vocab_size=262_144,
        tokens_per_image=280,  # at most
        max_length=131_072,
        audio={
            "hidden_size": 1024,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "subsampling_conv_channels": [128, 32],
            "output_proj_dims": 1536,
        },
        text_settings={
            "final_logit_softcapping": 30.0,
            "use_double_wide_mlp": True,
            "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
        },
        tied=True,
        large=True,
    ),
}
