"""Films by seed: the camera moves over a photograph, and a light passes over it.

Every frame differs from the one before, as in a film, and neighbours are alike, as in a film too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmlab.bench.workloads import Clip

if TYPE_CHECKING:
    from PIL import Image as PILImage

Frames = npt.NDArray[np.uint8]  # (frames, h, w, 3), RGB
Film = list["PILImage.Image"]  # frames of one size, as they were decoded


def synthesize(
    generator: np.random.Generator, photographs: Sequence[tuple[str, PILImage.Image]], clip: Clip
) -> Frames:
    """A pan over one of the photographs; the state of the generator says which and where."""
    _, photograph = photographs[int(generator.integers(len(photographs)))]
    size = np.array(photograph.size, dtype=np.float64)  # width, height
    window = _window(size, clip) * generator.uniform(0.5, 0.8)
    room = size - window
    start = room * generator.uniform(0.0, 0.3, 2)
    end = room * generator.uniform(0.7, 1.0, 2)
    mirrored = generator.random(2) < 0.5  # in either direction, on both axes
    start, end = np.where(mirrored, room - start, start), np.where(mirrored, room - end, end)
    light = generator.uniform(0.5, 2.0), generator.uniform()
    frames = np.empty((clip.frames, clip.height, clip.width, 3), np.uint8)
    for number, frame in enumerate(frames):
        done = number / max(1, clip.frames - 1)
        corner = start + (end - start) * done
        frame[:] = _lit(_cut(photograph, corner, window, clip), done, *light)
    return frames


def cut(generator: np.random.Generator, film: Film, clip: Clip) -> Frames:
    """Frames in even steps over a stretch of a film, all cut at one place. Where the film has
    fewer, some come twice."""
    length = max(1, round(len(film) * generator.uniform(0.6, 1.0)))
    first = int(generator.integers(0, len(film) - length + 1))
    size = np.array(film[0].size, dtype=np.float64)
    window = _window(size, clip) * generator.uniform(0.7, 1.0)
    corner = (size - window) * generator.uniform(0.0, 1.0, 2)
    places = first + np.arange(clip.frames) * length // clip.frames
    return np.stack([_cut(film[place], corner, window, clip) for place in places])


def _window(size: npt.NDArray[np.float64], clip: Clip) -> npt.NDArray[np.float64]:
    """The largest (width, height) of the clip's shape that fits."""
    shape = np.array([clip.width, clip.height], dtype=np.float64)
    return shape * float((size / shape).min())


def _cut(
    image: PILImage.Image,
    corner: npt.NDArray[np.float64],
    window: npt.NDArray[np.float64],
    clip: Clip,
) -> Frames:
    from PIL import Image

    box = (*corner, *np.minimum(corner + window, image.size))
    resized = image.resize((clip.width, clip.height), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized)


def _lit(frame: Frames, done: float, waves: float, phase: float) -> Frames:
    """Darker by up to 30 % where the light is not; it wanders across once in a film."""
    across = np.linspace(0, waves, frame.shape[1], dtype=np.float32)
    light = 0.85 + 0.15 * np.cos(2 * np.pi * (across - np.float32(done + phase)))
    lit: Frames = (frame * light[None, :, None].astype(np.float32)).astype(np.uint8)
    return lit
