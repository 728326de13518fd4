"""Which requests a workload sends, whole and scaled, and what a file of one may say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mmlab.bench import workloads
from mmlab.bench.workloads import WORKLOADS, Clip
from mmlab.errors import UsageError

NAMES = ["doc-mix", "single", "multi", "video", "audio", "ragged", "many-small"]


@pytest.mark.parametrize(
    ("scale", "counts"),
    [
        (1.0, {4: 8, 8: 4, 16: 2, 32: 1}),
        (0.25, {1: 8, 2: 4, 4: 2, 8: 1}),
        (0.125, {1: 12, 2: 2, 4: 1}),  # half an image is one
        (0.001, {1: 15}),
    ],
)
def test_scale_shrinks_the_images_and_keeps_the_prompts(
    scale: float, counts: dict[int, int]
) -> None:
    requests = workloads.get("doc-mix").requests(scale)
    assert Counter(request.num_images for request in requests) == counts
    assert len({request.prompt for request in requests}) == 15
    assert {r.case for r in requests} == {f"{n} image{'s' * (n > 1)}" for n in counts}
    assert not any(request.sizes or request.videos or request.audios for request in requests)


def test_doc_mix_is_the_published_one() -> None:
    doc_mix = workloads.get("doc-mix")
    assert sum(r.num_images for r in doc_mix.requests()) == 128 and doc_mix.mix


def test_the_workloads_that_ship_stand_in_one_order_and_each_asks_a_question() -> None:
    assert list(WORKLOADS) == NAMES and len(WORKLOADS) == 7
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert workload.question.endswith("?") and "\n" not in workload.question


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.125, 0.001])
def test_a_scaled_workload_has_as_many_prompts_that_all_differ(name: str, scale: float) -> None:
    whole, scaled = (workloads.get(name).requests(s) for s in (1.0, scale))
    assert len(scaled) == len(whole) == len({request.prompt for request in scaled})
    for large, small in zip(whole, scaled, strict=True):
        assert small.modalities == large.modalities
        assert small.num_images <= large.num_images
        assert len(small.videos) == len(large.videos) and len(small.audios) == len(large.audios)


def test_a_video_is_scaled_in_frames_and_a_recording_in_seconds() -> None:
    video, audio = workloads.get("video"), workloads.get("audio")
    assert {r.case: r.videos for r in video.requests()} == {"1 video": (Clip(32, 360, 640),)}
    assert {r.case for r in video.requests(0.5)} == {"1 video, 16 frames"}
    assert {r.videos for r in video.requests(0.001)} == {(Clip(4, 360, 640),)}
    assert Counter(r.case for r in audio.requests()) == {"10 s audio": 4, "30 s audio": 4}
    assert {r.audios for r in audio.requests(0.5)} == {(5.0,), (15.0,)}
    assert {r.audios for r in audio.requests(0.001)} == {(1.0,)}


def test_ragged_images_keep_their_mixture_when_they_become_fewer() -> None:
    whole, one = (workloads.get("ragged").requests(scale) for scale in (1.0, 0.1))
    assert {request.case for request in whole} == {"6 images, mixed", "2 images, mixed"}
    assert len(set(whole[0].sizes)) == whole[0].num_images == 6
    assert {r.num_images for r in one} == {1}
    assert len({r.sizes for r in one}) == 6
    assert one[0].case == "1 image, 896 x 896"


def test_many_small_is_256_thumbnails() -> None:
    requests = workloads.get("many-small").requests()
    assert sum(r.num_images for r in requests) == 256
    sides = [side for r in requests for side in r.sizes]
    assert len(sides) == 256 and {64, 128} <= set(sides)
    assert {r.case for r in requests} == {"32 images, 64 to 128 px"}


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(UsageError, match="scale must be above 0 and at most 1"):
        workloads.get("single").requests(scale)


def test_an_unknown_workload_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown workload 'docmix': did you mean 'doc-mix'") as e:
        workloads.get("docmix")
    assert "single, multi" in str(e.value) and "PATH.toml" in str(e.value)


def test_a_file_of_the_users_own_works_where_a_name_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'question = "Mine?"\nvideos_from = "films"\n'
        "[[groups]]\nprompts = 2\nimages = 3\nsides = [100, 100]\nvideos = 2\nframes = 8\n"
        "audios = 2\nseconds = 2.5\n"
    )
    for given in (path, str(path)):
        mine = workloads.get(given)
        assert (mine.name, mine.question, mine.mix) == ("mine.toml", "Mine?", False)
        assert mine.videos_from == tmp_path / "films" and mine.audios_from is None
        (request, _) = mine.requests()
        assert request.case == "3 images, 100 px + 2 videos, 8 frames + 2 x 2.5 s audio"
        assert request.modalities == ("image", "video", "audio")


GROUP = "[[groups]]\nprompts = 1\n"
ASKS = "question = 'q'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{GROUP}images = 1", "missing required field `question`; keys of a workload: question"),
        (ASKS, "missing required field `groups`"),
        (f"question = ''\n{GROUP}images = 1", "length >= 1 - at `question`"),
        (f"{ASKS}groups = []", "length >= 1 - at `groups`"),
        (f"{ASKS}mixed = true\n{GROUP}", "unknown field `mixed`; keys of a workload"),
        (f"{ASKS}mix = 1\n{GROUP}images = 1", "Expected `bool`, got `int`"),
        (f"{ASKS}[[groups]]\nimages = 1", r"required field `prompts` - at `groups\[0\]`"),
        (f"{ASKS}{GROUP}image = 1", r"field `image` - at `groups\[0\]`; keys of a group: prompt"),
        (f"{ASKS}{GROUP}images = 'two'", r"Expected `int`, got `str` - at `groups\[0\].images`"),
        (f"{ASKS}{GROUP}images = -1", r">= 0 - at `groups\[0\].images`"),
        (f"{ASKS}{GROUP}images = 9999", "<= 1024"),
        (f"{ASKS}{GROUP.replace('1', '0')}images = 1", r">= 1 - at `groups\[0\].prompts`"),
        (ASKS + GROUP, r"`images`, `videos` or `audios` above 0 - at `groups\[0\]`"),
        (f"{ASKS}{GROUP}images = 1\nframes = 8", "`frames` is given without `videos`"),
        (f"{ASKS}{GROUP}videos = 1\nsizes = [[8, 8]]", "`sizes` is given without `images`"),
        (f"{ASKS}{GROUP}images = 1\nsizes = []", "at least one"),
        (f"{ASKS}{GROUP}images = 1\nsizes = [[8]]", r"length 2, got 1 - at `groups\[0\].sizes"),
        (f"{ASKS}{GROUP}images = 1\nsizes = [[8, 7]]", r">= 8 - at `groups\[0\].sizes\["),
        (f"{ASKS}{GROUP}images = 1\nsizes = [[8, 8]]\nsides = [8, 8]", "got both"),
        (f"{ASKS}{GROUP}images = 1\nsides = [9, 8]", "from, to"),
        (f"{ASKS}{GROUP}audios = 1\nseconds = 0", ">= 0.1"),
        (f"{ASKS}{GROUP}audios = 1\nseconds = nan", "`float`.*seconds"),
        ("question = ", "is no TOML: Invalid value"),
    ],
)
def test_a_malformed_file_is_refused_with_file_key_and_what_may_stand_there(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        workloads.get(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml' cannot be read: No such file"):
        workloads.get(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"binary\.toml' is no TOML"):
        workloads.get(tmp_path / "binary.toml")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
        workloads.get(f"{tmp_path}/")
