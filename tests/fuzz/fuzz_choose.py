"""A small choice of many inputs that reaches every step of the decoder that all of them reach.

    python tests/fuzz/fuzz_choose.py tests/corpus /tmp/found [more folders]

A step is one line of mmlab after another one. Short inputs are looked at first and kept where they
take a step that no kept one takes; what is in the first folder is looked at too, and replaced.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from fuzz_build import build
from fuzz_check import Checker, Often

import mmlab

HOME = str(Path(mmlab.__file__).parent)
MOST = 200  # files

Step = tuple[str, int, int]


class Steps:
    """Which steps `checker` takes for an input."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self._taken: set[Step] = set()

    def of(self, data: bytes) -> set[Step]:
        kind, frames = build(data)
        self._taken = set()
        sys.settrace(self._enter)
        try:
            for n in (0, 1, 2):
                self.checker.check(frames, kind, n)
        finally:
            sys.settrace(None)
        return self._taken

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(HOME):
            return None
        last, taken = 0, self._taken

        def line(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal last
            taken.add((path, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line


def main() -> int:
    target, *folders = map(Path, sys.argv[1:])
    found = {file.read_bytes() for folder in (target, *folders) for file in folder.iterdir()}
    kept: list[bytes] = []
    seen: set[Step] = set()
    torch.set_num_threads(1)
    with Checker(Often(1, 1, 0, 0)) as checker:
        steps = Steps(checker)
        for data in sorted(found, key=lambda data: (len(data), data)):
            taken = steps.of(data)
            if not taken <= seen and len(kept) < MOST:
                seen |= taken
                kept.append(data)
    for file in target.iterdir():
        file.unlink()
    for data in kept:
        (target / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)
    size = sum(map(len, kept))
    print(f"{len(kept)} of {len(found)} inputs, {size} B, take all {len(seen)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
