"""The engine's half of a Gemma 3 model: its vision encoder, and what its prefill wants besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch

from mmlab import pixels
from mmlab.errors import EngineError
from mmlab.gemma.door import check_dtype
from mmlab.gemma.engine import EngineModel, Masks
from mmlab.gemma.gemma3.dims import dims_of, image_size, tokens_per_image
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import Gemma3ForConditionalGeneration

# More images at once cost memory (32: 620 MB on the tiny model, against 56) and save no time.
ENCODER_CHUNK: Final = 2


class Gemma3Engine(EngineModel):
    """Images of one size."""

    def __init__(self, name: str, model: Gemma3ForConditionalGeneration) -> None:
        super().__init__(name, model, dims_of(model.config))
        self.model = model
        self.image_size = image_size(model.config)
        self.tokens_per_image = tokens_per_image(model.config)

    def features(
        self, modality: str, kwargs: Mapping[str, object], steps: Sequence[Step] | None
    ) -> torch.Tensor:
        parts = [self.encode_images(part, steps).flatten(0, 1) for part in _pixel_values(kwargs)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @torch.inference_mode()
    def encode_images(
        self, pixel_values: torch.Tensor, steps: Sequence[Step] | None = None
    ) -> torch.Tensor:
        """(n, 3, size, size), any device -> (n, tokens, hidden) in the model's dtype."""
        self._check_pixels(pixel_values, steps)
        count = len(pixel_values)
        shape = (count, self.tokens_per_image, self.dims.hidden_size)
        features = torch.empty(shape, dtype=self.dtype, device=self.device)
        for at in range(0, count, ENCODER_CHUNK):
            chunk = pixel_values[at : at + ENCODER_CHUNK].to(self.device)
            if steps is not None:
                chunk = pixels.apply(steps, chunk, torch.empty_like(chunk, dtype=torch.float32))
            output = self.model.get_image_features(chunk.to(self.dtype), return_dict=True)
            features[at : at + ENCODER_CHUNK] = output.pooler_output
        return features

    def extra(self, ids: torch.Tensor, masks: Masks, embeds: torch.Tensor) -> dict[str, object]:
        # Image tokens see all of their own image, also what stands after them.
        is_image = masks.get("image", torch.zeros_like(ids, dtype=torch.bool))
        return {"token_type_ids": is_image.long()}

    def _check_pixels(self, pixel_values: torch.Tensor, steps: Sequence[Step] | None) -> None:
        if not isinstance(pixel_values, torch.Tensor):  # a ragged batch is a list
            got = type(pixel_values).__qualname__
            raise EngineError(f"pixel_values: got a {got}, wanted one tensor")
        check_dtype("pixel_values", pixel_values, steps)
        size = self.image_size
        if pixel_values.ndim != 4 or pixel_values.shape[1:] != (3, size, size):
            got = tuple(pixel_values.shape)
            raise EngineError(f"pixel_values: got shape {got}, wanted (n, 3, {size}, {size})")


def _pixel_values(kwargs: Mapping[str, object]) -> Iterator[torch.Tensor]:
    """(n, 3, h, w) each; images of different sizes come one by one."""
    value = kwargs.get("pixel_values")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list) and all(isinstance(image, torch.Tensor) for image in value):
        yield from (image.unsqueeze(0) for image in value)
    else:
        raise EngineError(f"image.pixel_values: got {type(value).__name__}, wanted a tensor")
