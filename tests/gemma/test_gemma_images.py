"""Whatever is called an image becomes the right RGB array, or is refused by its index."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmlab.errors import UsageError
from mmlab.gemma.images import as_rgb

RGB = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
GREY = RGB[:, :, 0]
OPAQUE = np.dstack([RGB, np.full((5, 7), 255, np.uint8)])
CLEAR = np.dstack([RGB, np.zeros((5, 7), np.uint8)])
GREY_RGB = np.dstack([GREY, GREY, GREY])
WHITE = np.full((5, 7, 3), 255, np.uint8)


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (RGB, RGB),
        (GREY, GREY_RGB),
        (GREY[:, :, None], GREY_RGB),
        (OPAQUE, RGB),
        (CLEAR, WHITE),
        (Image.fromarray(RGB), RGB),
        (Image.fromarray(GREY), GREY_RGB),
        (Image.fromarray(OPAQUE), RGB),
        (Image.fromarray(CLEAR), WHITE),
        (Image.fromarray(GREY).convert("LA"), GREY_RGB),
        (Image.fromarray(GREY).convert("I"), GREY_RGB),
        (Image.fromarray(GREY).convert("F"), GREY_RGB),
        (Image.fromarray(GREY.astype(np.uint16) * 256 + 255), GREY_RGB),
        (Image.fromarray(np.where(GREY > 50, 255, 0).astype(np.uint8)).convert("1"), None),
    ],
)
def test_every_kind_of_image_becomes_rgb(image: Any, wanted: np.ndarray | None) -> None:
    got = as_rgb(image, 0)
    if wanted is None:
        wanted = np.repeat(np.where(GREY > 50, 255, 0).astype(np.uint8)[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous and got.flags.writeable


@pytest.mark.parametrize("mode", ["P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "La", "RGBa"])
def test_other_modes_of_pil_are_converted_as_pil_does(mode: str) -> None:
    source = Image.fromarray(RGB)
    step = {"PA": "P", "La": "LA", "RGBa": "RGBA"}.get(mode, "RGB")
    image = Image.new(mode, (7, 5)) if mode == "LAB" else source.convert(step).convert(mode)
    assert image.mode == mode
    wanted = image.convert("LA") if mode == "La" else image
    np.testing.assert_array_equal(as_rgb(image, 0), np.asarray(wanted.convert("RGB")))


def test_a_palette_with_transparency_is_laid_over_white() -> None:
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    palette.info["transparency"] = 0
    np.testing.assert_array_equal(as_rgb(palette, 0), [[[255, 255, 255], [40, 50, 60]]])


def test_transparency_that_means_nothing_is_refused_by_index() -> None:
    image = Image.new("RGB", (4, 4))
    image.info["transparency"] = "x"
    with pytest.raises(UsageError, match=r"images\[3\]: cannot be converted to RGB"):
        as_rgb(image, 3)


def test_half_transparency_is_the_same_from_array_and_pil() -> None:
    half = np.dstack([RGB, np.full((5, 7), 128, np.uint8)])
    np.testing.assert_array_equal(as_rgb(half, 0), as_rgb(Image.fromarray(half), 0))
    assert abs(int(as_rgb(half, 0)[0, 0, 0]) - (255 + int(RGB[0, 0, 0])) // 2) <= 1


def test_a_contiguous_rgb_array_is_not_copied_and_others_are_left_alone() -> None:
    own = RGB.copy()
    assert as_rgb(own, 0) is own
    locked = RGB.copy()
    locked.flags.writeable = False
    assert as_rgb(locked, 0).flags.writeable and not locked.flags.writeable
    mirrored = RGB[:, ::-1]
    np.testing.assert_array_equal(as_rgb(mirrored, 0), mirrored)


@pytest.mark.parametrize(
    ("image", "got"),
    [
        (RGB.astype(np.float32), "an array of float32"),
        (RGB > 5, "an array of bool"),
        (RGB[:, :, :2], r"an array of shape \(5, 7, 2\)"),
        (RGB.transpose(2, 0, 1), r"an array of shape \(3, 5, 7\)"),
        (RGB[None], r"an array of shape \(1, 5, 7, 3\)"),
        (RGB[0, 0], r"an array of shape \(3,\)"),
        (RGB[:0], r"an empty array of shape \(0, 7, 3\)"),
        (Image.new("RGB", (0, 4)), "an empty image of 0 x 4"),
        (None, "NoneType"),
        ([RGB], "list"),
        ("cat.png", r"str \(PIL.Image.open reads files\)"),
    ],
)
def test_anything_else_is_refused_with_index_got_and_wanted(image: object, got: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^images\[3\]: got {got}, wanted a PIL image or a uint8"
    ):
        as_rgb(image, 3)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("value", [-1, 300])
def test_values_that_pillow_would_clip_are_refused(dtype: type, value: int) -> None:
    image = Image.fromarray(np.full((2, 2), value, dtype))
    with pytest.raises(UsageError, match=rf"images\[0\].* mode [IF] .*{value}.*0\.\.255"):
        as_rgb(image, 0)


def test_a_truncated_file_is_named() -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.randint(0, 255, (64, 64, 3), np.uint8)).save(file, "PNG")
    image = Image.open(io.BytesIO(file.getvalue()[:3000]))
    with pytest.raises(UsageError, match=r"images\[1\]: cannot be decoded"):
        as_rgb(image, 1)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_subclass_of_ndarray_is_taken_as_the_array_it_is() -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    taken = as_rgb(np.asmatrix(grey), 0)
    assert type(taken) is np.ndarray
    assert np.array_equal(taken, as_rgb(grey, 0))
