"""What requests carry: all different, the same again by seed, in the sizes that were declared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mmlab.bench import media, workloads
from mmlab.bench.media import Media
from mmlab.bench.workloads import WORKLOADS

SCALE = 0.25


def everything(drawn: list[Media]) -> list[npt.NDArray[np.uint8] | npt.NDArray[np.float32]]:
    return [one for each in drawn for one in (*each.images, *each.videos, *each.audios)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_media_are_all_different_and_the_same_again_by_seed(name: str) -> None:
    workload = workloads.get(name)
    requests = workload.requests(SCALE)
    sources = media.load(workload)
    first, again, other = (
        [one.tobytes() for one in everything(sources.draw(requests, seed))]
        for seed in ([7, 0], [7, 0], [7, 1])
    )
    assert first == again
    assert len(set(first)) == len(first) >= len(requests)
    assert not set(first) & set(other)


@pytest.mark.parametrize("name", WORKLOADS)
def test_media_are_as_their_request_says(name: str) -> None:
    workload = workloads.get(name)
    requests = workload.requests(SCALE)
    for request, drawn in zip(requests, media.load(workload).draw(requests, [0]), strict=True):
        assert len(drawn.images) == request.num_images
        for image, size in zip(drawn.images, request.sizes or (896,) * 99, strict=False):
            assert image.dtype == np.uint8 and image.shape[2] == 3
            assert (max(image.shape[:2]) if isinstance(size, int) else image.shape[:2]) == size
        assert drawn.sized == bool(request.sizes)
        shapes = [(clip.frames, clip.height, clip.width, 3) for clip in request.videos]
        assert [video.shape for video in drawn.videos] == shapes
        assert all(video.dtype == np.uint8 for video in drawn.videos)
        lengths = [(round(seconds * 16_000),) for seconds in request.audios]
        assert [audio.shape for audio in drawn.audios] == lengths
        assert all(audio.dtype == np.float32 for audio in drawn.audios)


def test_whatever_more_is_drawn_the_first_requests_carry_the_same() -> None:
    """The mix sends the first requests of a sequence again, which drew more than those."""
    for name in ("video", "audio"):
        workload = workloads.get(name)
        requests, sources = workload.requests(0.1), media.load(workload)
        few = everything(sources.draw(requests[:2], [3]))
        more = everything(sources.draw(requests, [3]))
        assert all(np.array_equal(a, b) for a, b in zip(few, more, strict=False))


def test_a_film_moves_and_its_neighbouring_frames_are_alike() -> None:
    workload = workloads.get("video")
    drawn = media.load(workload).draw(workload.requests(), [0])
    for (film,) in (each.videos for each in drawn):
        frames = film.astype(np.float32)
        steps = np.abs(np.diff(frames, axis=0)).mean(axis=(1, 2, 3))
        assert (steps > 0.1).all()  # no frame is the one before
        assert steps.max() < np.abs(frames[-1] - frames[0]).mean()
        assert film.std() > 5


def test_a_recording_is_loud_enough_not_clipped_and_glides() -> None:
    workload = workloads.get("audio")
    drawn = media.load(workload).draw(workload.requests(0.25), [0])
    for (sound,) in (each.audios for each in drawn):
        assert 0.45 < np.abs(sound).max() < 1
        halves = [np.abs(np.fft.rfft(half)) for half in sound.reshape(2, -1)]
        assert np.argmax(halves[0]) != np.argmax(halves[1])


def test_sources_hold_only_what_a_workload_needs() -> None:
    audio = media.load(workloads.get("audio"))
    assert audio.photographs is None and audio.recordings is None
    video = media.load(workloads.get("video"))
    assert video.photographs is not None and video.films is None
