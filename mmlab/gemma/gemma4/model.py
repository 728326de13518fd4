"""The engine's half of a Gemma 4 model: encoders of images, videos and sound, and what its prefill
wants besides.

Pictures come as patches in their own aspect ratio, so that each has its own number of tokens;
layers get inputs of their own for every token, which for a placeholder are those of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import torch

from mmlab import pixels
from mmlab.errors import EngineError
from mmlab.gemma.door import check_dtype
from mmlab.gemma.engine import EngineModel, Masks
from mmlab.gemma.gemma4.frontend_making import dims_of
from mmlab.gemma.gemma4.positions import PatchGrid
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import (
        Gemma4AudioConfig,
        Gemma4ForConditionalGeneration,
        Gemma4Model,
        Gemma4TextModel,
        Gemma4VisionConfig,
    )

# As many patches at once: two images of 2,520, or eight frames of 630. More cost memory alone.
PATCHES_AT_ONCE: Final = 5_040
TYPES: Final = {"image": 1, "video": 2, "audio": 3}  # mm_token_type_ids, as the processor says them


class Gemma4Engine(EngineModel):
    """Images, videos and sound."""

    def __init__(self, name: str, model: Gemma4ForConditionalGeneration) -> None:
        super().__init__(name, model, dims_of(model.config))
        self.model = model
        self.grid = PatchGrid.of(cast("Gemma4VisionConfig", model.config.vision_config))
        audio = cast("Gemma4AudioConfig | None", model.config.audio_config)
        self.bins = 0 if audio is None else audio.subsampling_conv_channels[0]  # mel, of a frame

    def features(
        self, modality: str, kwargs: Mapping[str, object], steps: Sequence[Step] | None
    ) -> torch.Tensor:
        if modality == "audio":
            return self._audio(kwargs, steps)
        return self._images(kwargs, steps) if modality == "image" else self._videos(kwargs, steps)

    def extra(self, ids: torch.Tensor, masks: Masks, embeds: torch.Tensor) -> dict[str, object]:
        types = torch.zeros_like(ids)
        for modality, number in TYPES.items():
            if modality in masks:
                types = types.masked_fill(masks[modality], number)
        found: dict[str, object] = {"mm_token_type_ids": types}
        if self.model.config.get_text_config().hidden_size_per_layer_input:
            text = cast("Gemma4TextModel", self.model.model.language_model)
            found["per_layer_inputs"] = text.get_per_layer_inputs(ids, embeds)
        return found

    def _images(self, kwargs: Mapping[str, object], steps: Sequence[Step] | None) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        tokens: list[int] = []
        for patches, places in _pairs(kwargs, "pixel_values", "image_position_ids"):
            tokens += self.grid.check("pixel_values", patches, "image_position_ids", places)
            parts += self._pictures("pixel_values", patches, places, steps)
        said = kwargs.get("num_soft_tokens_per_image")
        if isinstance(said, torch.Tensor) and said.tolist() != tokens:
            raise EngineError(
                f"num_soft_tokens_per_image: got {said.tolist()}, the positions say {tokens}"
            )
        return self._joined(parts)

    def _videos(self, kwargs: Mapping[str, object], steps: Sequence[Step] | None) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        pairs = list(_pairs(kwargs, "pixel_values_videos", "video_position_ids"))
        frames = sum(len(patches) for patches, _ in pairs)
        said = kwargs.get("num_frames_per_video")
        if not isinstance(said, torch.Tensor) or said.dtype != torch.int64 or said.ndim != 1:
            raise EngineError(
                f"num_frames_per_video: got {_described(said)}, wanted torch.int64 (n,)"
            )
        counts: list[int] = said.tolist()
        if sum(counts) != frames or any(count < 1 for count in counts):
            raise EngineError(f"num_frames_per_video: got {counts} for {frames} frames")
        sizes = counts if len(pairs) == 1 else [len(patches) for patches, _ in pairs]
        if sizes != counts:
            raise EngineError(f"num_frames_per_video: got {counts} for videos of {sizes} frames")
        for patches, places in pairs:
            self.grid.check("pixel_values_videos", patches, "video_position_ids", places)
            own = counts if len(pairs) == 1 else [len(patches)]
            # A video alone and one among others go through in the same pieces.
            for video, where in zip(
                torch.split(patches, own), torch.split(places, own), strict=True
            ):
                parts += self._pictures("pixel_values_videos", video, where, steps)
        return self._joined(parts)

    def _pictures(
        self,
        key: str,
        patches: torch.Tensor,
        places: torch.Tensor,
        steps: Sequence[Step] | None,
    ) -> Iterator[torch.Tensor]:
        """(n, p, values), (n, p, 2) -> (tokens, hidden), some pictures at a time."""
        check_dtype(key, patches, steps)
        count = max(1, PATCHES_AT_ONCE // patches.shape[1]) if patches.numel() else 1
        for chunk, where in zip(
            torch.split(patches, count), torch.split(places, count), strict=True
        ):
            if not len(chunk):  # the split of none is one empty part
                return
            values = chunk.to(self.device)
            if steps is not None:
                values = pixels.apply(steps, values, torch.empty_like(values, dtype=torch.float32))
            # Frames too: what get_video_features does, under one name in all releases. float32
            # stays: the tower rounds after it has moved 0 to 1 to -1 to 1.
            output = self.model.get_image_features(values, where.to(self.device), return_dict=True)
            yield torch.cat(output.pooler_output)

    def _audio(self, kwargs: Mapping[str, object], steps: Sequence[Step] | None) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        tower = cast("Gemma4Model", self.model.model)
        for frames, mask in _pairs(kwargs, "input_features", "input_features_mask"):
            check_dtype("input_features", frames, steps)
            if frames.ndim != 3 or frames.shape[2] != self.bins or not frames.shape[1]:
                got = tuple(frames.shape)
                raise EngineError(
                    f"input_features: got shape {got}, wanted (n, frames, {self.bins})"
                )
            if mask.dtype != torch.bool or mask.shape != frames.shape[:2]:
                raise EngineError(
                    f"input_features_mask: got {mask.dtype} {tuple(mask.shape)}, wanted torch.bool"
                    f" {tuple(frames.shape[:2])}"
                )
            # One by one and without the padding at the end: what a clip becomes never depends on
            # its neighbors, whose length it was padded to.
            ends = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).tolist()
            for clip, real, end in zip(frames, mask, ends, strict=True):
                if not end:
                    continue
                output = tower.get_audio_features(
                    clip[None, :end].to(self.device, self.dtype),
                    real[None, :end].to(self.device),
                    return_dict=True,
                )
                parts.append(cast(torch.Tensor, output.pooler_output)[output.attention_mask])
        return self._joined(parts)

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if not parts:
            return torch.empty((0, self.dims.hidden_size), dtype=self.dtype, device=self.device)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pairs(
    kwargs: Mapping[str, object], first: str, second: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two keys that belong together: tensors, or lists of them where items differ in shape."""
    found = [kwargs.get(first), kwargs.get(second)]
    for key, value in zip((first, second), found, strict=True):
        wanted = value if isinstance(value, list) else [value]
        if not all(isinstance(each, torch.Tensor) for each in wanted):
            raise EngineError(f"{key}: got {_described(value)}, wanted a tensor or a list of them")
    if isinstance(found[0], torch.Tensor) and isinstance(found[1], torch.Tensor):
        yield found[0], found[1]
        return
    lists = [
        value if isinstance(value, list) else list(cast(torch.Tensor, value)) for value in found
    ]
    if len(lists[0]) != len(lists[1]):
        raise EngineError(f"{second}: got {len(lists[1])} items for {len(lists[0])} of {first}")
    for one, other in zip(*lists, strict=True):
        alone = one.ndim == 2  # an item of a batch; a video is a batch of frames
        yield (one[None], other[None]) if alone else (one, other)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__qualname__}"
