"""What is a video, and which one of them is none."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmlab import UsageError
from mmlab.gemma.videos import as_video

VIDEO = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)


def test_an_array_is_taken_as_it_is() -> None:
    assert as_video(VIDEO, 0) is VIDEO


def test_a_view_is_made_contiguous_and_a_read_only_one_writable() -> None:
    frozen = VIDEO.copy()
    frozen.flags.writeable = False
    for given in (VIDEO[:, ::-1], frozen):
        made = as_video(given, 0)
        assert np.array_equal(made, given)
        assert made.flags.c_contiguous and made.flags.writeable


def test_images_of_one_size_are_frames() -> None:
    pictures = [Image.fromarray(VIDEO[0]), VIDEO[1], VIDEO[2]]
    assert np.array_equal(as_video(pictures, 0), VIDEO)
    grey = as_video([VIDEO[0, :, :, 0]], 0)
    assert np.array_equal(grey[0], np.repeat(VIDEO[0, :, :, :1], 3, axis=2))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (VIDEO.astype(np.float32), r"videos\[4\]: got an array of float32, wanted"),
        (VIDEO[0], r"videos\[4\]: got an array of shape \(4, 5, 3\)"),
        (VIDEO.transpose(0, 3, 1, 2), r"videos\[4\]: got an array of shape \(3, 3, 4, 5\)"),
        (VIDEO[:0], r"videos\[4\]: got an empty array of shape \(0, 4, 5, 3\)"),
        ("film.mp4", r"videos\[4\]: got str \(frames come decoded\), wanted"),
        (7, r"videos\[4\]: got int, wanted"),
        ([], r"videos\[4\]: got no frame"),
        ([VIDEO[0], VIDEO[1, :2]], r"videos\[4\]: frame 1 is 2 x 5, frame 0 is 4 x 5"),
        ([VIDEO[0], VIDEO[1] / 255], r"videos\[4\], frame 1: got an array of float64"),
    ],
)
def test_what_is_no_video_is_named(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        as_video(value, 4)
