"""The user's own recordings and films: what a folder holds, decoded; what cannot be is listed.

A recording is a .wav file. A film is an animated .gif or .webp, or a folder with its frames as
image files, in order of their names.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from mmlab.bench.images import SUFFIXES
from mmlab.bench.media.audio import SAMPLE_RATE, Samples
from mmlab.bench.media.video import Film
from mmlab.errors import UsageError

T = TypeVar("T")
Skipped = list[tuple[Path, str]]  # (file, why)

_ANIMATED = frozenset({".gif", ".webp"})
_MAX_FILES = 64  # of a folder
_MAX_FRAMES = 256  # of a film, from its start
_MAX_SIDE = 640  # pixels of a frame: 0.3 GB for a film at most
_MAX_SECONDS = 600  # of a recording, from its start


def recordings(directory: Path, *, strict: bool = False) -> tuple[list[Samples], Skipped]:
    """The .wav files below a folder as float32 mono at 16 kHz. UsageError where there is none, or
    with `strict` where one cannot be decoded."""
    files = [path for path in _below(directory) if path.suffix.lower() == ".wav"]
    return _decoded(files, _recording, directory, ".wav file", strict)


def films(directory: Path, *, strict: bool = False) -> tuple[list[Film], Skipped]:
    """The animations and the folders of frames below a folder. UsageError as of `recordings`."""
    found = _below(directory)
    still = [p.parent for p in found if p.suffix.lower() in SUFFIXES - _ANIMATED]
    folders = {folder for folder in still if still.count(folder) > 1}
    animated = [path for path in found if path.suffix.lower() in _ANIMATED]
    return _decoded(sorted([*folders, *animated]), _film, directory, "film", strict)


def _below(directory: Path) -> list[Path]:
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise UsageError(f"media directory '{directory}' {what}")
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _decoded(
    paths: Iterable[Path], decode: Callable[[Path], T], directory: Path, what: str, strict: bool
) -> tuple[list[T], Skipped]:
    found: list[T] = []
    skipped: Skipped = []
    for path in list(paths)[:_MAX_FILES]:
        try:
            found.append(decode(path))
        except Exception as error:  # a decoder raises whatever it likes on a broken file
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            if strict:
                raise UsageError(f"{path} cannot be decoded: {why}") from error
            skipped.append((path, why))
    if not found:
        first = f", first: {skipped[0][0].name}: {skipped[0][1]}" if skipped else ""
        raise UsageError(f"no {what} in '{directory}' ({len(skipped)} cannot be decoded{first})")
    return found, skipped


def _recording(path: Path) -> Samples:
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are not sound
        rate, raw = wavfile.read(path)
    sound = np.asarray(raw)[: _MAX_SECONDS * rate]
    if sound.size == 0:
        raise ValueError("it is empty")
    samples: Samples = sound.astype(np.float32)
    if sound.dtype.kind == "u":  # 8 bits
        samples = (samples - np.float32(128)) / np.float32(128)
    elif sound.dtype.kind == "i":
        samples /= np.float32(-float(np.iinfo(sound.dtype).min))
    if samples.ndim == 2:
        samples = samples.mean(axis=1, dtype=np.float32)
    if not np.isfinite(samples).all():
        raise ValueError("it has samples that are no numbers")
    if rate != SAMPLE_RATE:
        common = math.gcd(rate, SAMPLE_RATE)
        samples = resample_poly(samples, SAMPLE_RATE // common, rate // common)
    return np.clip(samples, -1, 1).astype(np.float32)


def _film(path: Path) -> Film:
    from PIL import Image, ImageSequence

    if path.is_dir():
        names = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES - _ANIMATED)
        frames = []
        for name in names[:_MAX_FRAMES]:
            with Image.open(name) as opened:
                frames.append(opened.convert("RGB"))
    else:
        with Image.open(path) as opened:
            if getattr(opened, "n_frames", 1) < 2:
                raise ValueError("it is no animation")
            shown = zip(range(_MAX_FRAMES), ImageSequence.Iterator(opened), strict=False)
            frames = [frame.convert("RGB") for _, frame in shown]
    shrink = min(1.0, _MAX_SIDE / max(frames[0].size))
    width, height = (max(1, round(side * shrink)) for side in frames[0].size)
    return [frame.resize((width, height)) for frame in frames]
