"""Photographs by seed: all different, the same again, and plain words about broken folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmlab.bench import images
from mmlab.errors import UsageError


def save(path: Path, colour: int, size: tuple[int, int] = (64, 48)) -> None:
    pixels = np.random.default_rng(colour).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_128_images_are_all_different_and_the_same_again_by_seed() -> None:
    shipped = images.photographs()
    first, again, other = (shipped.draw(128, seed, size=64) for seed in (7, 7, 8))
    assert len({image.tobytes() for image in first.images}) == 128
    assert all(np.array_equal(a, b) for a, b in zip(first.images, again.images, strict=True))
    assert not any(
        np.array_equal(a, b)
        for a, b in zip(first.images, other.images, strict=True)
        if a.shape == b.shape
    )
    assert len(set(first.names)) == len(shipped.sources) >= 10


def test_an_image_is_rgb_bytes_with_the_longest_side_asked_for() -> None:
    for image in images.load(12, 0).images:
        assert image.dtype == np.uint8
        assert image.ndim == 3 and image.shape[2] == 3
        assert max(image.shape[:2]) == 896
        assert image.std() > 5  # a photograph, not one colour


def test_a_seed_may_have_several_parts() -> None:
    shipped = images.photographs()
    one, two = shipped.draw(3, [1, 0], size=32), shipped.draw(3, [1, 1], size=32)
    assert one.images[0].tobytes() != two.images[0].tobytes()


def test_a_folder_of_the_users_own_is_read_in_all_its_formats(tmp_path: Path) -> None:
    suffixes = ("jpg", "png", "webp", "bmp", "tiff", "PNG")
    for colour, suffix in enumerate(suffixes):
        save(tmp_path / f"page{colour}.{suffix}", colour)
    (tmp_path / "deeper").mkdir()
    save(tmp_path / "deeper" / "page.gif", 99)
    (tmp_path / "notes.txt").write_text("not an image")
    found = images.load(20, 0, tmp_path)
    assert found.skipped == []
    assert set(found.names) == {f"page{n}.{s}" for n, s in enumerate(suffixes)} | {"page.gif"}
    assert len({image.tobytes() for image in found.images}) == 20


def test_rotated_photographs_stand_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to view
    Image.new("RGB", (64, 32), "white").save(tmp_path / "a.jpg", exif=exif)
    assert images.load(1, 0, tmp_path).images[0].shape == (896, 448, 3)


def test_a_file_that_is_no_image_is_skipped_by_name_or_refused(tmp_path: Path) -> None:
    save(tmp_path / "good.png", 1)
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of the kind")
    (tmp_path / "cut.jpg").write_bytes(b"")
    found = images.load(3, 0, tmp_path)
    assert [path.name for path, _ in found.skipped] == ["bad.png", "cut.jpg"]
    assert all(reason for _, reason in found.skipped)
    assert set(found.names) == {"good.png"}
    with pytest.raises(UsageError, match=r"bad\.png cannot be decoded"):
        images.load(3, 0, tmp_path, strict=True)


def test_a_truncated_photograph_is_noticed_when_its_pixels_are_read(tmp_path: Path) -> None:
    save(tmp_path / "good.png", 1)
    save(tmp_path / "short.png", 2, (512, 512))
    whole = (tmp_path / "short.png").read_bytes()
    (tmp_path / "short.png").write_bytes(whole[: len(whole) // 2])
    assert [path.name for path, _ in images.load(1, 0, tmp_path).skipped] == ["short.png"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is not a directory"),
        (lambda path: path.mkdir(), "has no image files"),
        (lambda path: (path.mkdir(), (path / "a.txt").touch()), "has no image files"),
        (lambda path: (path.mkdir(), (path / "a.jpg").touch()), "can be decoded"),
    ],
)
def test_a_folder_without_images_is_named(tmp_path: Path, make, words: str) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "pages"
    make(folder)
    with pytest.raises(UsageError, match=words) as caught:
        images.load(1, 0, folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plain_images_end_in_an_error_and_not_in_a_loop(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), "white").save(tmp_path / "dot.png")
    with pytest.raises(UsageError, match=r"'dot\.png' is too small or too plain"):
        images.load(2, 0, tmp_path)
