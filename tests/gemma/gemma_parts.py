"""What several tests of models share."""

from __future__ import annotations

import torch


def of_images(features: torch.Tensor | None) -> dict[str, torch.Tensor] | None:
    """(n, tokens, hidden) of encoded images, as `generate` takes them."""
    return None if features is None else {"image": features.flatten(0, 1)}
