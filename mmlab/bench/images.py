"""Photographs for a workload: every image different, all of them drawn by a seed.

Noise would do for counting bytes, but a vision model and an image processor should see what they
were made for. The sources are photographs that scikit-image and matplotlib ship, found as files
without importing either package, or a folder of the user's own; crops by seed make as many
different images of them as a workload needs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmlab.bench.workload_files import Size
from mmlab.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image as PILImage

Pixels = npt.NDArray[np.uint8]  # (h, w, 3), RGB

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".avif"}
)
_MAX_FILES = 256  # of a folder
_MAX_SIDE = 1344  # half as much again as a model's 896, so that cuts stay sharp
_ATTEMPTS = 50  # cuts to try before an image counts as too plain
_SHIPPED = {
    "skimage": (
        "data",
        (
            "astronaut.png",
            "camera.png",
            "chelsea.png",
            "coffee.png",
            "hubble_deep_field.jpg",
            "ihc.png",
            "motorcycle_left.png",
            "motorcycle_right.png",
            "retina.jpg",
            "rocket.jpg",
        ),
    ),
    "matplotlib": ("mpl-data/sample_data", ("grace_hopper.jpg",)),
}


@dataclass(frozen=True)
class ImageSet:
    """`images[i]` is (h, w, 3) uint8 and cut from the file `names[i]`."""

    images: list[Pixels]
    names: list[str]
    skipped: list[tuple[Path, str]] = field(default_factory=list)  # (file, why), in order of names


@dataclass(frozen=True)
class Photographs:
    """Decoded sources, to draw image sets from; decoding once serves all repeats of a trial."""

    sources: list[tuple[str, PILImage.Image]]
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    whole_first: bool = False

    def draw(
        self,
        count: int,
        seed: int | list[int],
        *,
        size: int = 896,
        sizes: Sequence[Size] | None = None,
    ) -> ImageSet:
        """`count` different images; the same seed gives the same ones. Longest side `size` pixels,
        or of each image its own of `sizes`: a longest side, or (height, width).

        Sources come in random order, each as often as the others. Of each 45 to 95 % of both sides
        are cut at a random place, and half are mirrored; `whole_first` takes a source whole, the
        first time.
        """
        generator = np.random.default_rng(seed)
        order: list[int] = []
        while len(order) < count:
            order.extend(generator.permutation(len(self.sources)).tolist())
        images: list[Pixels] = []
        names: list[str] = []
        seen: set[bytes] = set()
        wanted = [size] * count if sizes is None else sizes
        for (position, index), target in zip(enumerate(order[:count]), wanted, strict=True):
            name, photograph = self.sources[index]
            for attempt in range(_ATTEMPTS):
                whole = self.whole_first and position < len(self.sources) and attempt == 0
                pixels = _cut(photograph, generator, target, whole=whole)
                if (key := pixels.tobytes()) not in seen:
                    break  # else the same file twice in a folder, or a plain one
            else:
                raise UsageError(
                    f"'{name}' is too small or too plain to cut another image from it: "
                    f"got {len(images)} different images, wanted {count}; give more images"
                )
            seen.add(key)
            images.append(pixels)
            names.append(name)
        return ImageSet(images, names, list(self.skipped))


def photographs(directory: Path | str | None = None, *, strict: bool = False) -> Photographs:
    """The shipped photographs, or every image file below `directory`.

    A file that cannot be decoded is listed in `skipped`; with `strict` it is a UsageError, as a
    folder is that is missing or has no image at all. Of more than 256 files as many are taken,
    evenly over their names, and pixels beyond 1,344 a side are dropped: 1.3 GB at most.
    """
    paths = _shipped_paths() if directory is None else _spread(image_files(directory))
    sources: list[tuple[str, PILImage.Image]] = []
    skipped: list[tuple[Path, str]] = []
    for path in paths:
        try:
            sources.append((path.name, _decode(path)))
        except Exception as error:  # a decoder raises whatever it likes on a broken file
            if strict:
                raise UsageError(f"{path} cannot be decoded: {_short(error)}") from error
            skipped.append((path, _short(error)))
    if not sources:
        raise UsageError(
            f"no image in {directory} can be decoded ({len(skipped)} tried, first: "
            f"{skipped[0][0].name}: {skipped[0][1]})"
        )
    return Photographs(sources, skipped, whole_first=directory is not None)


def load(
    count: int, seed: int, directory: Path | str | None = None, strict: bool = False
) -> ImageSet:
    """`count` different images by seed, from the shipped photographs or from `directory`."""
    return photographs(directory, strict=strict).draw(count, seed)


def image_files(directory: Path | str) -> list[Path]:
    """Image files below a folder, by name; UsageError where there is no folder or no image."""
    folder = Path(directory)
    if not folder.is_dir():
        what = "is not a directory" if folder.exists() else "does not exist"
        raise UsageError(f"image directory '{folder}' {what}")
    try:
        found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    except OSError as error:
        raise UsageError(f"image directory '{folder}' cannot be read: {error.strerror}") from error
    if not found:
        known = ", ".join(sorted(suffix.lstrip(".") for suffix in SUFFIXES))
        raise UsageError(f"image directory '{folder}' has no image files (known: {known})")
    return found


def _shipped_paths() -> list[Path]:
    paths = []
    for package, (folder, names) in _SHIPPED.items():
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            paths += [Path(place) / folder / name for name in names]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise UsageError(
            "no photographs found: install scikit-image (pip install 'mmlab[data]') "
            "or give a folder with --images DIR"
        )
    return found


def _spread(paths: list[Path]) -> list[Path]:
    if len(paths) <= _MAX_FILES:
        return paths
    return [paths[place * len(paths) // _MAX_FILES] for place in range(_MAX_FILES)]


def _decode(path: Path) -> PILImage.Image:
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGB")
    if max(upright.size) > _MAX_SIDE:
        upright.thumbnail((_MAX_SIDE, _MAX_SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return upright


def _cut(
    photograph: PILImage.Image, generator: np.random.Generator, size: Size, *, whole: bool
) -> Pixels:
    from PIL import Image

    width, height = photograph.size
    wide, high = width, height
    if not whole:
        wide, high = (max(1, round(s * generator.uniform(0.45, 0.95))) for s in (width, height))
    if isinstance(size, int):
        shrink = size / max(wide, high)
        target = (max(1, round(wide * shrink)), max(1, round(high * shrink)))
    else:  # as much of it as has the shape that is wanted
        target = (size[1], size[0])
        wide = max(1, min(wide, round(high * target[0] / target[1])))
        high = max(1, min(high, round(wide * target[1] / target[0])))
    if whole:
        left, top = (width - wide) // 2, (height - high) // 2
    else:
        left, top = (int(generator.integers(0, s + 1)) for s in (width - wide, height - high))
    box = (left, top, left + wide, top + high)
    cut = photograph.resize(target, Image.Resampling.BILINEAR, box=box)
    if not whole and generator.random() < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(cut)


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
