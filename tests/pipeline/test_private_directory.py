"""The directory of the sockets: private, short, and swept when its owner is gone."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pipeline_parts import script

from mmlab import TransportError
from mmlab.pipeline import directory
from mmlab.pipeline.directory import LOCK, PREFIX, UNLOCKED_AGE, PrivateDirectory, sweep


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(directory, "_bases", lambda: [tmp_path])
    return tmp_path


def test_only_its_user_may_enter_and_closing_removes_it(
    base: Path, leftovers: Callable[..., list[str]]
) -> None:
    made = PrivateDirectory()
    assert made.path.parent == base
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    (made.path / "req").touch()
    made.close()
    made.close()
    assert not list(base.iterdir())
    assert not leftovers("fds")


def test_two_never_share_a_path(base: Path) -> None:
    one, two = PrivateDirectory(), PrivateDirectory()
    assert one.path != two.path
    assert one.path.exists()  # the second start has not swept the first
    one.close()
    two.close()


LEFT_BEHIND = """
import os, pathlib, signal, sys
from mmlab.pipeline import directory
directory._bases = lambda: [pathlib.Path(sys.argv[1])]
made = directory.PrivateDirectory()
(made.path / "req").touch()
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_owner_left_is_removed_by_the_next_start(base: Path) -> None:
    with script(LEFT_BEHIND, str(base)) as killed:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
    assert (left / "req").exists()
    left.chmod(0o1700)  # as Jupyter leaves it
    made = PrivateDirectory()
    assert not left.exists()
    assert list(base.iterdir()) == [made.path]
    made.close()


def test_a_sweep_leaves_alone_what_is_not_left_behind(base: Path) -> None:
    alive = PrivateDirectory()
    (base / f"{PREFIX}file").touch()
    readable = base / f"{PREFIX}readable"
    readable.mkdir(0o755)
    young = base / f"{PREFIX}young"  # just made, its lock still to come
    young.mkdir(0o700)
    elsewhere = base / "elsewhere"
    elsewhere.mkdir(0o700)
    (base / f"{PREFIX}link").symlink_to(elsewhere)
    assert sweep(base) == []
    old = time.time() - UNLOCKED_AGE - 1
    os.utime(young, (old, old))
    assert sweep(base) == [young]
    assert alive.path.exists() and elsewhere.exists() and readable.exists()
    alive.close()


def test_a_sweep_removes_files_only(base: Path) -> None:
    left = base / f"{PREFIX}left"
    left.mkdir(0o700)
    (left / LOCK).touch()
    (left / "folder").mkdir()
    (left / "folder" / "keep").touch()
    sweep(base)
    assert (left / "folder" / "keep").exists()


def test_a_long_temporary_directory_is_passed_over_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(directory, "_bases", lambda: [long, tmp_path])
    made = PrivateDirectory()
    assert made.path.parent == tmp_path
    made.close()


def test_without_any_place_the_error_names_the_limit_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, missing = tmp_path / ("x" * 120), tmp_path / "missing"
    monkeypatch.setattr(directory, "_bases", lambda: [long, missing])
    with pytest.raises(TransportError, match=r"(?s)set TMPDIR.*limit 107.*No such file"):
        PrivateDirectory()
