"""Whatever a caller calls an image -> (h, w, 3) uint8, or an error that names which one is not.

Layout is never guessed: an array is height, width, channels. Guessing takes an image three pixels
high for one with its channels first, and nothing says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mmlab.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image as PILImage

Pixels: TypeAlias = npt.NDArray[np.uint8]
Image: TypeAlias = "PILImage.Image | npt.NDArray[np.uint8]"

WANTED: Final = "a PIL image or a uint8 array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)"


def as_rgb(image: object, index: int) -> Pixels:
    """(h, w, 3) uint8, C-contiguous and writable; `image` itself if it already is that.

    Transparency is laid over white. 16-bit grey keeps its upper eight bits.
    """
    from PIL import Image as PILImage

    if isinstance(image, PILImage.Image):
        return _from_pil(image, index)
    if not isinstance(image, np.ndarray):
        hint = " (PIL.Image.open reads files)" if isinstance(image, str | bytes) else ""
        raise _refused(index, f"got {type(image).__qualname__}{hint}")
    if type(image) is not np.ndarray:  # numpy.matrix keeps to two dimensions, whatever is asked
        image = np.asarray(image)
    if image.dtype != np.uint8:
        raise _refused(index, f"got an array of {image.dtype}")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise _refused(index, f"got an array of shape {image.shape}")
    if 0 in image.shape:
        raise _refused(index, f"got an empty array of shape {image.shape}")
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    if image.shape[2] == 4:
        return _from_pil(PILImage.fromarray(np.ascontiguousarray(image)), index)
    return np.require(image, requirements=["C", "W"])


def _from_pil(image: PILImage.Image, index: int) -> Pixels:
    from PIL import Image as PILImage

    if 0 in image.size:
        raise _refused(index, f"got an empty image of {image.width} x {image.height}")
    try:
        image.load()  # files are read this late
    except (OSError, SyntaxError, ValueError) as error:
        raise _refused(index, f"cannot be decoded ({error})") from error
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits at 255, which turns such an image white.
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        low, high = np.min(np.asarray(image)), np.max(np.asarray(image))
        if not (low >= 0 and high <= 255):
            raise _refused(
                index,
                f"got mode {image.mode} with values from {low} to {high}",
                "values in 0..255: scale it first",
            )
    try:
        if image.has_transparency_data:
            # Pillow has no way from "La" (premultiplied grey) to RGBA but this one.
            image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
            white = PILImage.new("RGBA", image.size, (255, 255, 255, 255))
            image = PILImage.alpha_composite(white, image)
        return np.array(image.convert("RGB"))
    except (TypeError, ValueError) as error:  # what `info` says of transparency may be anything
        raise _refused(index, f"cannot be converted to RGB ({error})") from error


def _refused(index: int, got: str, wanted: str = WANTED) -> UsageError:
    return UsageError(f"images[{index}]: {got}, wanted {wanted}")
