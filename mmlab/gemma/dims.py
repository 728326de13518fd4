"""What both halves of a model must agree on: sizes, and how long a request may be.

Read once from the configuration, so that frontend and engine check a request by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from mmlab.errors import UsageError

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig


@dataclass(frozen=True)
class Dims:
    """Sizes of a model with an image input."""

    image_size: int  # pixels of a side
    image_token_id: int
    tokens_per_image: int
    hidden_size: int  # of the text model, and so of an image token
    vocab_size: int
    max_length: int  # positions of prompt and answer together

    @classmethod
    def of(cls, config: Gemma3Config) -> Dims:
        """Those of a Gemma 3 configuration."""
        text = cast("Gemma3TextConfig", config.text_config)
        vision = cast("SiglipVisionConfig", config.vision_config)
        return cls(
            image_size=cast(int, vision.image_size),
            image_token_id=cast(int, config.image_token_id),
            tokens_per_image=cast(int, config.mm_tokens_per_image),
            hidden_size=text.hidden_size,
            vocab_size=text.vocab_size,
            max_length=text.max_position_embeddings,
        )

    def check_length(self, num_tokens: int, max_new_tokens: int) -> None:
        """UsageError unless a prompt of `num_tokens` and its answer fit into the positions."""
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
            got = type(max_new_tokens).__qualname__
            raise UsageError(f"max_new_tokens: got {got} {max_new_tokens!r}, wanted an int")
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens: got {max_new_tokens}, wanted at least 1")
        if num_tokens + max_new_tokens > self.max_length:
            raise UsageError(
                f"request: {num_tokens} prompt tokens + {max_new_tokens} new ones are"
                f" {num_tokens + max_new_tokens}, the model has {self.max_length} positions:"
                " send fewer images, a shorter prompt or a smaller max_new_tokens"
            )
