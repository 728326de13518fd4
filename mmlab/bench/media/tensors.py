"""Media as tensors, for `echo`, which has no processor: in the shapes that real processors give.

Images are squares of one size, as Gemma 3's are, or in sizes of their own where the workload has
chosen them. Videos and audio have the keys, shapes and fields of Gemma 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmlab.bench.images import Pixels
from mmlab.bench.media.audio import Samples
from mmlab.bench.media.media import Media
from mmlab.bench.media.video import Frames
from mmlab.fields import FieldConfig, KwargsItems, batched, flat

PATCHES = (21, 30)  # of a frame, down and across
PATCH = 16  # pixels a side
_HOP, _WINDOW, _BINS = 160, 256, 128  # samples, samples, numbers of a step


def items_of(media: Media, size: int, payload: torch.dtype) -> KwargsItems | None:
    """The items of one request, pixels as `payload`; None where it carries nothing."""
    outputs: dict[str, object] = {}
    config: dict[str, FieldConfig] = {}
    if media.images:
        config["pixel_values"] = batched("image")
        outputs["pixel_values"] = (
            [_scaled(_planes(image), payload) for image in media.images]
            if media.sized
            else pixel_values(media.images, size, payload)
        )
    if media.videos:
        lengths = [len(frames) for frames in media.videos]
        outputs["pixel_values_videos"] = torch.cat([patches(v, payload) for v in media.videos])
        outputs["video_position_ids"] = _positions(sum(lengths))
        outputs["num_frames_per_video"] = torch.tensor(lengths)
        config["pixel_values_videos"] = flat("video", sizes=lengths)
        config["video_position_ids"] = flat("video", sizes=lengths)
        config["num_frames_per_video"] = batched("video", keep_on_cpu=True)
    if media.audios:
        features = [spectrum(samples) for samples in media.audios]
        outputs["input_features"] = features
        outputs["input_features_mask"] = [torch.ones(len(f), dtype=torch.bool) for f in features]
        config["input_features"] = batched("audio", pad=0)
        config["input_features_mask"] = batched("audio", pad=False)
    return KwargsItems.from_processor(outputs, config) if outputs else None


def pixel_values(
    images: Sequence[Pixels], size: int, payload: torch.dtype = torch.float32
) -> torch.Tensor:
    """(n, 3, size, size), floats in -1 .. 1 or raw uint8; one new storage for all of them."""
    from PIL import Image

    raw = payload == torch.uint8
    shape = (len(images), 3, size, size)
    out = torch.empty(shape, dtype=torch.uint8 if raw else torch.float32)
    for slot, image in zip(out, images, strict=True):
        square = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        slot.copy_(_planes(np.asarray(square)))
    return out if raw else out.sub_(127.5).div_(127.5).to(payload)


def patches(frames: Frames, payload: torch.dtype = torch.float32) -> torch.Tensor:
    """(frames, h, w, 3) -> (frames, 630, 768): 21 x 30 patches of 16 x 16 RGB, floats in 0 .. 1 or
    raw uint8."""
    from PIL import Image

    down, across = PATCHES
    size = (across * PATCH, down * PATCH)
    small = np.stack(
        [np.asarray(Image.fromarray(f).resize(size, Image.Resampling.BILINEAR)) for f in frames]
    )
    cut = small.reshape(len(frames), down, PATCH, across, PATCH, 3).swapaxes(2, 3)
    flattened = torch.from_numpy(cut.reshape(len(frames), down * across, PATCH * PATCH * 3))
    return flattened if payload == torch.uint8 else flattened.float().div_(255).to(payload)


def spectrum(samples: Samples) -> torch.Tensor:
    """(n,) at 16 kHz -> (steps of 10 ms, 128) float32: 999 steps of 10 s, 2,999 of 30 s."""
    padded = np.pad(samples, (0, max(0, _WINDOW - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    power = np.abs(np.fft.rfft(windows * np.hanning(_WINDOW))[:, :_BINS])
    return torch.from_numpy(np.log(power + 1e-3).astype(np.float32))


def _planes(image: Pixels) -> torch.Tensor:
    return torch.from_numpy(image.transpose(2, 0, 1).copy())


def _scaled(planes: torch.Tensor, payload: torch.dtype) -> torch.Tensor:
    return planes if payload == torch.uint8 else ((planes.float() - 127.5) / 127.5).to(payload)


def _positions(frames: int) -> torch.Tensor:
    """(frames, 630, 2) int64: across and down of every patch."""
    down, across = PATCHES
    y, x = torch.meshgrid(torch.arange(down), torch.arange(across), indexing="ij")
    grid = torch.stack([x.reshape(-1), y.reshape(-1)], dim=-1)
    return grid.expand(frames, -1, -1).contiguous()
