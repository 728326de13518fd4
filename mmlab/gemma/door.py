"""The model's door: what the models take silently and answer wrongly is refused here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmlab.errors import EngineError
from mmlab.pixels import Step


def check_dtype(key: str, values: torch.Tensor, steps: Sequence[Step] | None) -> None:
    """EngineError unless they are floats, or uint8 with steps: models take all of it silently."""
    if steps is not None and values.dtype != torch.uint8:
        raise EngineError(
            f"{key}: got {values.dtype} with steps to normalize them, which are for uint8 alone"
        )
    if steps is None and not values.is_floating_point():
        raise EngineError(
            f"{key}: got {values.dtype}, wanted normalized floats: the model takes raw pixels"
            " without complaint and answers wrongly; rescale and normalize first"
        )
