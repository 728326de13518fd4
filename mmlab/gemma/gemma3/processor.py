"""The frontend's half of a Gemma 3 model: every image becomes one square, or several crops too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from mmlab import pixels
from mmlab.fields import batched
from mmlab.gemma.frontend import FrontendModel
from mmlab.gemma.gemma3.dims import dims_of, image_size
from mmlab.gemma.images import Image, as_rgb
from mmlab.gemma.inputs import Outputs, Planned
from mmlab.gemma.normalize import described, one_image, steps_of

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3Processor


class Gemma3Frontend(FrontendModel):
    """Images only. pixel_values: (n, 3, size, size)."""

    def __init__(self, name: str, processor: Gemma3Processor, config: Gemma3Config) -> None:
        import transformers

        images, tokenizer = processor.image_processor, processor.tokenizer
        super().__init__(
            name,
            tokenizer,
            dims_of(config),
            (tokenizer.boi_token, tokenizer.image_token, tokenizer.eoi_token),
            f"{type(images).__name__} ({images.backend}), transformers {transformers.__version__}",
        )
        self.processor = processor
        self.image_size = image_size(config)
        self._steps = steps_of(images)

    def why_not_uint8(self) -> str | None:
        return described(self.processor.image_processor) if self._steps is None else None

    def plan(self, modality: str, values: Sequence[object], payload: torch.dtype) -> Planned:
        images = cast("Sequence[Image]", values)
        shape = (len(images), 3, self.image_size, self.image_size)
        return Planned(
            modality="image",
            text=self.processor.full_image_sequence * len(images),
            specs={"pixel_values": (shape, payload)},
            fields={"pixel_values": batched("image")},
            fill=partial(self._fill, images),
            steps=self._steps if payload == torch.uint8 else None,
        )

    def _fill(self, images: Sequence[Image], memory: Mapping[str, torch.Tensor]) -> Outputs:
        return {"pixel_values": self.pixel_values(images, memory["pixel_values"])}

    def pixel_values(
        self, images: Sequence[Image], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(n, 3, size, size), each image written into its place in `out` by the last step.

        The processor resizes; its rescaling and normalization are done while writing, so that no
        pass over the pixels is only there to move them. uint8 is left for the engine to do so.
        """
        if out is None:
            out = torch.empty((len(images), 3, self.image_size, self.image_size))
        processor, steps = self.processor.image_processor, self._steps
        for index, image in enumerate(images):
            rgb = as_rgb(image, index)
            if steps is None:
                out[index] = one_image(processor, rgb)
                continue
            raw = one_image(processor, rgb, do_rescale=False, do_normalize=False)
            if out.dtype == torch.uint8:
                out[index] = raw
            else:
                pixels.apply(steps, raw, out[index])
        return out
