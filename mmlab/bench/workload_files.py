"""Workloads as files: TOML that says in a few lines which prompts carry what.

    question = "What does a video cost?"      # what the workload answers, in one sentence
    mix = true                                # afterwards also all prompts at once

    [[groups]]
    prompts = 4                               # each of them with:
    images = 2                                # in sizes = [[height, width], ...], taken in turn,
                                              # or with longest sides = [from, to]
    videos = 1                                # of frames = 32 and frame_size = [height, width]
    audios = 1                                # of seconds = 10

What is not understood is refused, so that a key that is misspelt never runs with a default in its
place.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from mmlab.errors import UsageError

Size = int | tuple[int, int]  # the longest side, or height and width, in pixels

_Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Side = Annotated[int, msgspec.Meta(ge=8, le=8192)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
_OF = {"images": ("sizes", "sides"), "videos": ("frames", "frame_size"), "audios": ("seconds",)}


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompts that carry alike: `images`, `videos` and `audios` are numbers for each prompt."""

    prompts: _Positive
    images: _Count = 0
    sizes: tuple[tuple[_Side, _Side], ...] | None = None
    sides: tuple[_Side, _Side] | None = None
    videos: _Count = 0
    frames: _Positive | None = None
    frame_size: tuple[_Side, _Side] | None = None
    audios: _Count = 0
    seconds: _Seconds | None = None

    def __post_init__(self) -> None:
        for what, keys in _OF.items():
            for key in keys:
                if getattr(self, key) is not None and not getattr(self, what):
                    raise ValueError(f"`{key}` is given without `{what}`: say how many a prompt")
        if not (self.images or self.videos or self.audios):
            raise ValueError("Expected a number of `images`, `videos` or `audios` above 0")
        if self.sizes is not None and self.sides is not None:
            raise ValueError("Expected `sizes` or `sides`, got both")
        if self.sizes == ():
            raise ValueError("Expected at least one [height, width] in `sizes`")
        if self.sides is not None and self.sides[0] > self.sides[1]:
            raise ValueError(f"Expected `sides` = [from, to], got {list(self.sides)}")

    def image_sizes(self, images: int, before: int) -> tuple[Size, ...]:
        """Of `images` images of one prompt, with `before` images before it; () for the default."""
        if self.sizes is not None:
            return tuple(self.sizes[(before + n) % len(self.sizes)] for n in range(images))
        if self.sides is not None:
            low, high = self.sides
            return tuple(low + (high - low) * n // max(1, images - 1) for n in range(images))
        return ()


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole file. `videos_from`, `audios_from`: folders of the user's own, beside the file."""

    question: Annotated[str, msgspec.Meta(min_length=1)]
    groups: Annotated[tuple[Group, ...], msgspec.Meta(min_length=1, max_length=1024)]
    mix: bool = False
    videos_from: str | None = None
    audios_from: str | None = None


def read(path: Path) -> Content:
    """UsageError names the file, the key, and what may stand there."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"workload file '{path}' cannot be read: {why}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are among them
        raise UsageError(f"workload file '{path}' is no TOML: {error}") from error
    try:
        return msgspec.convert(table, Content)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", "`").replace("Object ", "")
        keys = Group if "groups[" in text else Content
        what = "a group" if keys is Group else "a workload"
        known = ", ".join(keys.__struct_fields__)
        raise UsageError(f"workload file '{path}': {text}; keys of {what}: {known}") from error
