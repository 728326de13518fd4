"""Recordings and films of the user's own, and plain words about those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from mmlab.bench import media, workloads
from mmlab.bench.media import files
from mmlab.errors import UsageError

WORKLOAD = """
question = "Mine?"
videos_from = "films"
audios_from = "sounds"
[[groups]]
prompts = 3
videos = 1
frames = 6
frame_size = [32, 48]
audios = 1
seconds = 0.5
"""


def tone(rate: int, hertz: float = 440.0, seconds: float = 1.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def pictures(count: int) -> list[Image.Image]:
    generator = np.random.default_rng(count)
    drawn = generator.integers(0, 256, (count, 40, 60, 3), dtype=np.uint8)
    return [Image.fromarray(one) for one in drawn]


def save_frames(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number, picture in enumerate(pictures(count)):
        picture.save(folder / f"{number:03}.png")


def save_gif(path: Path, count: int) -> None:
    first, *rest = pictures(count)
    first.save(path, save_all=True, append_images=rest)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "f4"])
def test_a_recording_of_any_rate_and_kind_is_the_same_tone(
    tmp_path: Path, rate: int, kind: str
) -> None:
    wave = tone(rate)
    scale = {"u1": 127, "i2": 2**15 - 1, "i4": 2**31 - 1, "f4": 1}[kind]
    raw = (wave * scale + (128 if kind == "u1" else 0)).astype(kind)
    wavfile.write(tmp_path / "a.wav", rate, np.stack([raw, raw], axis=1))  # stereo
    (found,), skipped = files.recordings(tmp_path)
    assert skipped == [] and found.dtype == np.float32 and len(found) == 16_000
    inner = slice(1_000, -1_000)  # a filter rings at the ends
    assert np.abs(found - tone(16_000))[inner].max() < 0.02


def test_what_cannot_be_decoded_is_skipped_by_name_or_refused(tmp_path: Path) -> None:
    wavfile.write(tmp_path / "good.wav", 16_000, tone(16_000).astype(np.float32))
    wavfile.write(tmp_path / "nan.wav", 16_000, np.full(100, np.nan, np.float32))
    wavfile.write(tmp_path / "none.wav", 16_000, np.zeros(0, np.int16))
    (tmp_path / "bad.wav").write_bytes(b"RIFF and no more")
    (tmp_path / "notes.txt").write_text("no sound")
    found, skipped = files.recordings(tmp_path)
    assert len(found) == 1
    assert [path.name for path, _ in skipped] == ["bad.wav", "nan.wav", "none.wav"]
    assert all(why for _, why in skipped)
    with pytest.raises(UsageError, match=r"bad\.wav cannot be decoded"):
        files.recordings(tmp_path, strict=True)


def test_films_are_animations_and_folders_of_frames(tmp_path: Path) -> None:
    save_frames(tmp_path / "walk", 5)
    save_frames(tmp_path / "deeper" / "run", 3)
    save_gif(tmp_path / "wave.gif", 4)
    pictures(1)[0].save(tmp_path / "still.gif")
    found, skipped = files.films(tmp_path)
    assert [len(film) for film in found] == [3, 5, 4]  # by name
    assert [(path.name, why) for path, why in skipped] == [
        ("still.gif", "ValueError: it is no animation")
    ]


@pytest.mark.parametrize("read", [files.recordings, files.films])
def test_a_folder_that_has_nothing_is_named(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        read(tmp_path / "file")
    with pytest.raises(UsageError, match=f"in '{tmp_path}'"):
        read(tmp_path)


def test_a_workload_file_takes_them_from_folders_beside_it(tmp_path: Path) -> None:
    save_frames(tmp_path / "films" / "walk", 10)
    (tmp_path / "sounds").mkdir()
    wavfile.write(tmp_path / "sounds" / "a.wav", 8_000, tone(8_000).astype(np.float32))
    (tmp_path / "sounds" / "b.wav").write_bytes(b"")
    (tmp_path / "mine.toml").write_text(WORKLOAD)
    workload = workloads.get(tmp_path / "mine.toml")
    sources = media.load(workload)
    assert sources.photographs is None and [p.name for p, _ in sources.skipped] == ["b.wav"]
    requests = workload.requests()
    first, again = (sources.draw(requests, [5]) for _ in range(2))
    for kind in ("videos", "audios"):
        drawn = [getattr(each, kind)[0] for each in first]
        assert len({one.tobytes() for one in drawn}) == 3
        assert all(
            np.array_equal(one, getattr(each, kind)[0])
            for one, each in zip(drawn, again, strict=True)
        )
    assert first[0].videos[0].shape == (6, 32, 48, 3) and first[0].audios[0].shape == (8_000,)


def test_plain_files_end_in_an_error_and_not_in_a_loop(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    wavfile.write(tmp_path / "sounds" / "a.wav", 16_000, np.zeros(100, np.int16))
    path = tmp_path / "mine.toml"
    path.write_text('question = "q"\naudios_from = "sounds"\n[[groups]]\nprompts = 2\naudios = 1\n')
    workload = workloads.get(path)
    with pytest.raises(
        UsageError, match=r"audio files are too short or too plain.*got 1 .*wanted 2"
    ):
        media.load(workload).draw(workload.requests(), [0])
