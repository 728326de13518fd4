"""A file that cannot be written is named, and nothing of it is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mmlab import MMLabError
from mmlab.cli.keeping import keep


def test_a_full_disk_is_said_with_the_path_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    keep(path, {"a": 1})
    real = Path.write_text

    def full(self: Path, text: str) -> int:
        real(self, text[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(MMLabError, match=rf"{path}: not written \(No space left on device\)"):
        keep(path, {"a": 2})
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]
    assert path.read_text() == '{\n "a": 1\n}'
