"""What both halves of a model must agree on: sizes, placeholders, and how long a request may be.

Read once from the configuration, so that frontend and engine check a request by the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mmlab.errors import UsageError

PROMPT: Final = "prompt"  # the modality of embeddings that a caller brings along
EMBED_ID: Final = -1  # stands in the token ids where one of their rows goes; no id of a vocabulary


@dataclass(frozen=True)
class Dims:
    """Sizes of a model. `placeholders`: the token id of each modality that it takes."""

    placeholders: Mapping[str, int]
    hidden_size: int  # of the text model, and so of a placeholder's embedding
    vocab_size: int
    max_length: int  # positions of prompt and answer together

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
