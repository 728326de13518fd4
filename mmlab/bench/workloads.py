"""Workloads by name or by file: which requests a strategy is measured on.

Those that ship with mmlab are the files of `data/workloads`; see `workload_files` for what stands
in one. `scale` shrinks what a prompt carries, never the number of prompts, so that a scaled run
asks the same question of a smaller machine.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmlab import shipped
from mmlab.bench import workload_files
from mmlab.bench.workload_files import Group, Size
from mmlab.errors import UsageError, unknown

_ORDER = ("doc-mix", "single", "multi", "video", "audio", "ragged", "many-small")
_LEAST_FRAMES = 4  # of a scaled video
_LEAST_SECONDS = 1.0  # of a scaled recording
_FRAMES = 32
_FRAME_SIZE = (360, 640)
_SECONDS = 10.0


@dataclass(frozen=True)
class Clip:
    """What a video is like: its number of frames, and their height and width in pixels."""

    frames: int
    height: int
    width: int


@dataclass(frozen=True)
class Request:
    """One prompt and what it carries; `case` groups requests of equal size.

    `sizes`: one for each image, or () where 896 pixels are the longest side. `audios`: seconds.
    """

    case: str
    prompt: str
    num_images: int
    sizes: tuple[Size, ...] = ()
    videos: tuple[Clip, ...] = ()
    audios: tuple[float, ...] = ()

    @property
    def modalities(self) -> tuple[str, ...]:
        """Which of "image", "video" and "audio" it carries."""
        counts = {"image": self.num_images, "video": len(self.videos), "audio": len(self.audios)}
        return tuple(name for name, count in counts.items() if count)


@dataclass(frozen=True)
class Workload:
    """`mix`: also all prompts at once. `videos_from`, `audios_from`: folders of the user's own."""

    name: str
    question: str
    groups: tuple[Group, ...]
    mix: bool = False
    videos_from: Path | None = None
    audios_from: Path | None = None

    def requests(self, scale: float = 1.0) -> list[Request]:
        """The requests in order. Of what a prompt carries, `scale` leaves at least one image, four
        frames of a video, one second of a recording. UsageError on a scale <= 0 or > 1."""
        if not 0 < scale <= 1:
            raise UsageError(f"scale must be above 0 and at most 1, got {scale:g}")
        found: list[Request] = []
        for group in self.groups:
            images = max(1, round(group.images * scale)) if group.images else 0
            for prompt in range(group.prompts):
                sizes = group.image_sizes(images, prompt * images)
                clips, seconds = _clips(group, scale), _recordings(group, scale)
                case = _case(images, sizes, clips, seconds)
                text = _prompt(len(found), images, len(clips), len(seconds))
                found.append(Request(case, text, images, sizes, clips, seconds))
        return found


def _clips(group: Group, scale: float) -> tuple[Clip, ...]:
    frames = group.frames or _FRAMES
    frames = max(min(_LEAST_FRAMES, frames), round(frames * scale))
    return (Clip(frames, *(group.frame_size or _FRAME_SIZE)),) * group.videos


def _recordings(group: Group, scale: float) -> tuple[float, ...]:
    seconds = group.seconds or _SECONDS
    return (max(min(_LEAST_SECONDS, seconds), round(seconds * scale, 2)),) * group.audios


def _case(
    images: int, sizes: tuple[Size, ...], clips: tuple[Clip, ...], seconds: tuple[float, ...]
) -> str:
    """`4 images`, `6 images, mixed`, `1 video`, `30 s audio`: what is not usual is said."""
    parts = []
    if images:
        parts.append(f"{images} image{'s' * (images > 1)}{_sizes_text(sizes)}")
    if clips:
        clip = clips[0]
        frames = f", {clip.frames} frames" * (clip.frames != _FRAMES)
        size = f", {clip.height} x {clip.width}" * ((clip.height, clip.width) != _FRAME_SIZE)
        parts.append(f"{len(clips)} video{'s' * (len(clips) > 1)}{frames}{size}")
    if seconds:
        count = f"{len(seconds)} x " * (len(seconds) > 1)
        parts.append(f"{count}{seconds[0]:g} s audio")
    return " + ".join(parts)


def _sizes_text(sizes: tuple[Size, ...]) -> str:
    if not sizes:
        return ""
    first = sizes[0]
    if isinstance(first, int):
        sides = [size for size in sizes if isinstance(size, int)]
        low, high = min(sides), max(sides)
        return f", {low} px" if low == high else f", {low} to {high} px"
    return ", mixed" if len(set(sizes)) > 1 else f", {first[0]} x {first[1]}"


def _prompt(number: int, images: int, videos: int, audios: int) -> str:
    """Every prompt differs, so that no two requests of a workload are the same."""
    if images:
        page = "this page" if images == 1 else f"these {images} pages"
        return f"Document {number + 1}: describe {page} in a few words."
    if videos:
        return f"Film {number + 1}: say in a few words what happens."
    return f"Recording {number + 1}: say in a few words what can be heard."


class _Shipped(Mapping[str, Workload]):
    """The workloads that ship with mmlab, each read when it is asked for."""

    def __getitem__(self, name: str) -> Workload:
        return _read(_files()[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(_files())

    def __len__(self) -> int:
        return len(_files())


WORKLOADS: Mapping[str, Workload] = _Shipped()


@functools.cache
def _files() -> dict[str, Path]:
    """name -> file, in the order of every table, and those that it does not know behind them."""
    data = shipped.folder("data")
    found = {path.stem: path for path in sorted(data.glob("workloads/*.toml"))} if data else {}
    known = [name for name in _ORDER if name in found]
    return {name: found[name] for name in [*known, *(n for n in found if n not in known)]}


def _read(path: Path, name: str) -> Workload:
    content = workload_files.read(path)

    def beside(folder: str | None) -> Path | None:
        return None if folder is None else path.parent / Path(folder).expanduser()

    return Workload(
        name,
        content.question,
        content.groups,
        content.mix,
        beside(content.videos_from),
        beside(content.audios_from),
    )


def is_path(name: str) -> bool:
    """Whether it stands for a file: it ends in .toml, or has a folder in it."""
    return name.endswith(".toml") or os.sep in name


def absolute(name: str) -> str:
    """A path made absolute, for processes that run in another folder; a name as it is."""
    return str(Path(name).expanduser().absolute()) if is_path(name) else name


def name_of(name_or_path: str) -> str:
    """What a workload is called in results: a file by its own name, without its folder."""
    return Path(name_or_path).name


def get(name_or_path: str | os.PathLike[str]) -> Workload:
    """A workload of that name, or of the file at that path, which then gives it its name.

    UsageError with the known names where there is none, or with the key where a file is malformed.
    """
    name = os.fspath(name_or_path)
    if is_path(name):
        path = Path(name).expanduser()
        return _read(path, name_of(name))
    if name not in WORKLOADS:
        raise unknown("workload", name, [*WORKLOADS, "a file of yours, PATH.toml"])
    return WORKLOADS[name]
