"""Whatever a caller calls a video -> (frames, h, w, 3) uint8, or an error that names what is wrong.

Frames come decoded: an array, or images of one size. Layout is never guessed, as with images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mmlab.errors import UsageError
from mmlab.gemma.images import Pixels, as_rgb

WANTED: Final = "a uint8 array (frames, h, w, 3) or a list of images of one size"


def as_video(value: object, index: int) -> Pixels:
    """(frames, h, w, 3) uint8, C-contiguous and writable; `value` itself if it already is that."""
    if isinstance(value, np.ndarray):
        return _from_array(np.asarray(value), index)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        hint = " (frames come decoded)" if isinstance(value, str | bytes) else ""
        raise _refused(index, f"got {type(value).__qualname__}{hint}")
    if not value:
        raise _refused(index, "got no frame")
    frames: list[Pixels] = []
    for number, frame in enumerate(value):
        try:
            frames.append(as_rgb(frame, number))
        except UsageError as error:
            why = str(error).split(": ", 1)[-1]
            raise UsageError(f"videos[{index}], frame {number}: {why}") from error
        if frames[number].shape != frames[0].shape:
            height, width, _ = frames[number].shape
            raise _refused(
                index,
                f"frame {number} is {height} x {width}, frame 0 is"
                f" {frames[0].shape[0]} x {frames[0].shape[1]}",
            )
    return np.stack(frames)


def _from_array(video: np.ndarray, index: int) -> Pixels:
    if video.dtype != np.uint8:
        raise _refused(index, f"got an array of {video.dtype}")
    if video.ndim != 4 or video.shape[3] != 3:
        raise _refused(index, f"got an array of shape {video.shape}")
    if 0 in video.shape:
        raise _refused(index, f"got an empty array of shape {video.shape}")
    return np.require(video, requirements=["C", "W"])


def _refused(index: int, got: str) -> UsageError:
    return UsageError(f"videos[{index}]: {got}, wanted {WANTED}")
