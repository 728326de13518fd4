"""Pictures as Gemma 4 takes them: patches in the picture's own aspect ratio, padded to a number.

How many tokens a picture is follows from its size, so it is known before a pixel is read. The
processors are asked for one picture or a few frames at a time, which keeps their temporaries small;
rescaling is done while the patches are written into the memory that was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch

from mmlab import pixels
from mmlab.errors import UsageError
from mmlab.gemma.images import Pixels
from mmlab.gemma.normalize import AS_IT_IS, RAW, all_values, steps_between
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import Gemma4ImageProcessor, Gemma4VideoProcessor

CHANNELS: Final = 3
FRAMES_AT_ONCE: Final = 4

_Run = Callable[..., Mapping[str, object]]


class Patches:
    """What an image processor and a video processor have in common. Frames are pictures too."""

    def __init__(self, processor: Gemma4ImageProcessor | Gemma4VideoProcessor) -> None:
        self.processor = processor
        self.pooling: int = processor.pooling_kernel_size
        self.patch: int = processor.patch_size
        self.max_patches: int = processor.max_soft_tokens * self.pooling**2
        self.values: int = self.patch**2 * CHANNELS
        self.video = "pixel_values_videos" in processor.model_input_names
        self.steps: tuple[Step, ...] | None = self._steps()

    def tokens(self, height: int, width: int, where: str) -> int:
        """Placeholders of a picture of that size."""
        from transformers.models.gemma4.image_processing_gemma4 import (
            get_aspect_ratio_preserving_size,
        )

        try:
            rows, columns = get_aspect_ratio_preserving_size(
                height, width, self.patch, self.max_patches, self.pooling
            )
        except ValueError as error:
            raise UsageError(f"{where}: {height} x {width} pixels: {error}") from error
        side = self.patch * self.pooling
        return (rows // side) * (columns // side)

    def write(self, pictures: Pixels, values: torch.Tensor, positions: torch.Tensor) -> None:
        """(n, h, w, 3) -> (n, max_patches, values) in the dtype of `values`, positions beside."""
        for start in range(0, len(pictures), FRAMES_AT_ONCE):
            here = slice(start, start + FRAMES_AT_ONCE)
            whole = self.steps is None
            made, places = self._run(pictures[here], {} if whole else RAW)
            if self.steps is None or values.dtype == torch.uint8:
                values[here] = made
            else:
                pixels.apply(self.steps, made, values[here])
            positions[here] = places

    def _run(
        self, pictures: Pixels, changes: Mapping[str, bool]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        run = cast(_Run, self.processor)
        if self.video:
            found = run(
                [pictures], input_data_format="channels_last", do_sample_frames=False, **changes
            )
            names = "pixel_values_videos", "video_position_ids"
        else:
            found = run(list(pictures), input_data_format="channels_last", **changes)
            names = "pixel_values", "image_position_ids"
        # Before 5.24 of transformers videos had a dimension of their own.
        values, positions = (cast(torch.Tensor, found[name]).flatten(0, -3) for name in names)
        return values, positions

    def _steps(self) -> tuple[Step, ...] | None:
        """Exact also for the zeros that pad: a step that moved 0 would give others."""
        side = self.patch * self.pooling
        shown = all_values(side * -(-16 // side))[np.newaxis]
        return steps_between(
            self.processor,
            lambda: self._run(shown, {**AS_IT_IS, **RAW})[0],
            lambda: self._run(shown, AS_IT_IS)[0],
        )
