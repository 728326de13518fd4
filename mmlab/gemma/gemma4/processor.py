"""The frontend's half of a Gemma 4 model: images, videos and sound, in this order before the text.

The model's own processor is asked: for patches, features, the frames it samples, and the text that
stands for each of them. What it makes of many inputs in one call is what is made here of one after
the other, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch

from mmlab.fields import batched, flat
from mmlab.gemma.audios import Samples, as_audio
from mmlab.gemma.dims import Dims
from mmlab.gemma.frontend import FrontendModel
from mmlab.gemma.gemma4.features import Features, Mask
from mmlab.gemma.gemma4.patches import Patches
from mmlab.gemma.images import Pixels, as_rgb
from mmlab.gemma.inputs import Outputs, Planned
from mmlab.gemma.normalize import described
from mmlab.gemma.videos import as_video

if TYPE_CHECKING:
    from transformers import Gemma4Processor

FPS: Final = 24  # what the processor takes where nobody says; it writes times into the prompt


class Gemma4Frontend(FrontendModel):
    """pixel_values (n, 2520, 768), pixel_values_videos (frames, 630, 768), input_features
    (n, frames, 128), with the usual settings; positions, masks and counts beside them."""

    def __init__(self, name: str, processor: Gemma4Processor, dims: Dims) -> None:
        import transformers

        images, tokenizer = processor.image_processor, processor.tokenizer
        markers = [tokenizer.boi_token, tokenizer.image_token, tokenizer.eoi_token]
        markers += [processor.boa_token, processor.audio_token, processor.eoa_token]
        super().__init__(
            name,
            tokenizer,
            dims,
            [marker for marker in (*markers, processor.video_token) if marker],
            f"{type(images).__name__} ({images.backend}), transformers {transformers.__version__}",
        )
        self.processor = processor
        self._images = Patches(images)
        self._videos = Patches(processor.video_processor)
        self._features = (
            Features(processor.feature_extractor) if "audio" in self.modalities else None
        )

    def why_not_uint8(self) -> str | None:
        for patches in (self._images, self._videos):
            if patches.steps is None:
                return described(patches.processor)
        return None

    def plan(self, modality: str, values: Sequence[object], payload: torch.dtype) -> Planned:
        if modality == "image":
            return self._plan_images(values, payload)
        if modality == "video":
            return self._plan_videos(values, payload)
        return self._plan_audios(values, payload)

    def _plan_images(self, values: Sequence[object], payload: torch.dtype) -> Planned:
        patches, count = self._images, len(values)
        images = [_checked(value, index) for index, value in enumerate(values)]
        tokens = [
            patches.tokens(*_size(image), f"images[{index}]") for index, image in enumerate(images)
        ]
        counted = {"num_soft_tokens_per_image": tokens}
        texts = [self.processor.replace_image_token(counted, index) for index in range(count)]
        return Planned(
            modality="image",
            text="".join(texts),
            specs={
                "pixel_values": ((count, patches.max_patches, patches.values), payload),
                "image_position_ids": ((count, patches.max_patches, 2), torch.int64),
            },
            fields={
                "pixel_values": batched("image"),
                "image_position_ids": batched("image"),
                "num_soft_tokens_per_image": batched("image", keep_on_cpu=True),
            },
            fill=partial(self._fill_images, images, tokens),
            steps=patches.steps if payload == torch.uint8 else None,
        )

    def _fill_images(
        self, images: Sequence[object], tokens: list[int], memory: Mapping[str, torch.Tensor]
    ) -> Outputs:
        values, positions = memory["pixel_values"], memory["image_position_ids"]
        for index, image in enumerate(images):
            here = slice(index, index + 1)
            self._images.write(as_rgb(image, index)[np.newaxis], values[here], positions[here])
        return {**memory, "num_soft_tokens_per_image": torch.tensor(tokens)}

    def _plan_videos(self, values: Sequence[object], payload: torch.dtype) -> Planned:
        from transformers.video_utils import VideoMetadata

        patches = self._videos
        videos: list[Pixels] = []
        texts: list[str] = []
        for index, value in enumerate(values):
            video = as_video(value, index)
            frames = self._sampled(len(video))
            videos.append(video if len(frames) == len(video) else video[frames])
            tokens = patches.tokens(video.shape[1], video.shape[2], f"videos[{index}]")
            metadata = VideoMetadata(len(video), fps=FPS, frames_indices=frames)
            counted = {"num_soft_tokens_per_video": [tokens], "video_metadata": [metadata]}
            texts.append(self.processor.replace_video_token(counted, 0))
        sizes = [len(video) for video in videos]
        return Planned(
            modality="video",
            text="".join(texts),
            specs={
                "pixel_values_videos": ((sum(sizes), patches.max_patches, patches.values), payload),
                "video_position_ids": ((sum(sizes), patches.max_patches, 2), torch.int64),
            },
            fields={
                "pixel_values_videos": flat("video", sizes),
                "video_position_ids": flat("video", sizes),
                "num_frames_per_video": batched("video", keep_on_cpu=True),
            },
            fill=partial(self._fill_videos, videos),
            steps=patches.steps if payload == torch.uint8 else None,
        )

    def _sampled(self, frames: int) -> list[int]:
        """Which frames the processor takes: all where there are no more than it samples."""
        from transformers.video_utils import VideoMetadata

        processor = self.processor.video_processor
        most = processor.num_frames
        if not processor.do_sample_frames or most is None or frames <= most:
            return list(range(frames))
        metadata = VideoMetadata(frames, fps=FPS)
        return [int(at) for at in processor.sample_frames(metadata=metadata, num_frames=most)]

    def _fill_videos(self, videos: Sequence[Pixels], memory: Mapping[str, torch.Tensor]) -> Outputs:
        sizes = [len(video) for video in videos]
        values = torch.split(memory["pixel_values_videos"], sizes)
        positions = torch.split(memory["video_position_ids"], sizes)
        for video, out, places in zip(videos, values, positions, strict=True):
            self._videos.write(video, out, places)
        return {**memory, "num_frames_per_video": torch.tensor(sizes)}

    def _plan_audios(self, values: Sequence[object], payload: torch.dtype) -> Planned:
        features = cast(Features, self._features)
        clips = [as_audio(value, index, features.rate) for index, value in enumerate(values)]
        for index, clip in enumerate(clips):
            features.check(clip, index)
        masks = features.masks([len(clip) for clip in clips])
        counted = {"input_features_mask": masks}
        texts = [self.processor.replace_audio_token(counted, index) for index in range(len(clips))]
        dtype = torch.bfloat16 if payload == torch.bfloat16 else torch.float32
        return Planned(
            modality="audio",
            text="".join(texts),
            specs={
                "input_features": ((*masks.shape, features.bins), dtype),
                "input_features_mask": (masks.shape, torch.bool),
            },
            fields={
                "input_features": batched("audio", pad=0.0),
                "input_features_mask": batched("audio", pad=False),
            },
            fill=partial(self._fill_audios, clips, masks),
        )

    def _fill_audios(
        self, clips: Sequence[Samples], masks: Mask, memory: Mapping[str, torch.Tensor]
    ) -> Outputs:
        values, mask = memory["input_features"], memory["input_features_mask"]
        cast(Features, self._features).write(clips, masks, values, mask)
        return memory


def _checked(image: object, index: int) -> object:
    """Arrays as they will be used; files stay unread, their sizes are known."""
    from PIL import Image as PILImage

    lazy = isinstance(image, PILImage.Image) and 0 not in image.size
    return image if lazy else as_rgb(image, index)


def _size(image: object) -> tuple[int, int]:
    from PIL import Image as PILImage

    if isinstance(image, PILImage.Image):
        return image.height, image.width
    height, width, _ = cast(Pixels, image).shape
    return height, width
