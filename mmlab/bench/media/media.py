"""Everything that the requests of a workload carry, drawn by seed from sources that are read once.

No two images, films or recordings of one drawing are the same, so that no cache can answer for
another request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from mmlab.bench import images
from mmlab.bench.images import Photographs, Pixels
from mmlab.bench.media import audio, files, video
from mmlab.bench.media.audio import Samples
from mmlab.bench.media.video import Film, Frames
from mmlab.bench.workloads import Clip, Request, Workload
from mmlab.errors import UsageError

T = TypeVar("T", npt.NDArray[np.uint8], npt.NDArray[np.float32])
_VIDEO, _AUDIO = 0x71DE0, 0xA0D10  # behind the parts of a seed
_IMAGE_SIDE = 896
_ATTEMPTS = 50  # drawings to try before a film counts as too plain


@dataclass(frozen=True)
class Media:
    """What one request carries. `sized`: its images have sizes that the workload has chosen."""

    images: Sequence[Pixels] = ()
    videos: Sequence[Frames] = ()
    audios: Sequence[Samples] = ()
    sized: bool = False


@dataclass(frozen=True)
class Sources:
    """What media are drawn from: None for what a workload has no use for.

    `films` and `recordings` are the user's own; without them films are made of the photographs and
    recordings of nothing.
    """

    photographs: Photographs | None = None
    films: Sequence[Film] | None = None
    recordings: Sequence[Samples] | None = None
    skipped: list[tuple[Path, str]] = field(default_factory=list)  # (file, why)

    def draw(self, requests: Sequence[Request], seed: list[int]) -> list[Media]:
        """The media of these requests, all different; the same seed gives the same bytes."""
        pixels = iter(self._images(requests, seed))
        clips = [clip for request in requests for clip in request.videos]
        lengths = [seconds for request in requests for seconds in request.audios]
        films = iter(_different("video", clips, self._video, [*seed, _VIDEO]))
        sounds = iter(_different("audio", lengths, self._audio, [*seed, _AUDIO]))
        return [
            Media(
                list(islice(pixels, request.num_images)),
                list(islice(films, len(request.videos))),
                list(islice(sounds, len(request.audios))),
                sized=bool(request.sizes),
            )
            for request in requests
        ]

    def _images(self, requests: Sequence[Request], seed: list[int]) -> list[Pixels]:
        sizes = [s for r in requests for s in r.sizes or (_IMAGE_SIDE,) * r.num_images]
        if not sizes:
            return []
        assert self.photographs is not None  # `load` has seen that there are images
        return self.photographs.draw(len(sizes), seed, sizes=sizes).images

    def _video(self, generator: np.random.Generator, clip: Clip) -> Frames:
        if self.films is not None:
            film = self.films[int(generator.integers(len(self.films)))]
            return video.cut(generator, film, clip)
        assert self.photographs is not None
        return video.synthesize(generator, self.photographs.sources, clip)

    def _audio(self, generator: np.random.Generator, seconds: float) -> Samples:
        if self.recordings is None:
            return audio.synthesize(generator, seconds)
        recording = self.recordings[int(generator.integers(len(self.recordings)))]
        return audio.cut(generator, recording, seconds)


W = TypeVar("W", Clip, float)


def _different(
    what: str, wanted: Sequence[W], make: Callable[[np.random.Generator, W], T], seed: list[int]
) -> list[T]:
    """One of each that is wanted; UsageError where the sources do not have so many."""
    generator = np.random.default_rng(seed)
    made: list[T] = []
    seen: set[int] = set()
    for one in wanted:
        for _ in range(_ATTEMPTS):
            drawn = make(generator, one)
            key = xxhash.xxh3_64_intdigest(np.ascontiguousarray(drawn).data)
            if key not in seen:
                break
        else:
            raise UsageError(
                f"the {what} files are too short or too plain to cut another from them: got "
                f"{len(made)} different ones, wanted {len(wanted)}; give more of them"
            )
        seen.add(key)
        made.append(drawn)
    return made


def load(
    workload: Workload, directory: Path | str | None = None, *, strict: bool = False
) -> Sources:
    """What `workload` needs. `directory`: images of the user's own, which are read in any case."""
    carried = {modality for request in workload.requests() for modality in request.modalities}
    photographs, films, recordings = None, None, None
    skipped: list[tuple[Path, str]] = []
    if "video" in carried and workload.videos_from is not None:
        films, more = files.films(workload.videos_from, strict=strict)
        skipped += more
    if "audio" in carried and workload.audios_from is not None:
        recordings, more = files.recordings(workload.audios_from, strict=strict)
        skipped += more
    if directory is not None or "image" in carried or ("video" in carried and films is None):
        photographs = images.photographs(directory, strict=strict)
        skipped = [*photographs.skipped, *skipped]
    return Sources(photographs, films, recordings, skipped)
