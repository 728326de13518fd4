"""One message again: its frames, and what comes of it."""

from __future__ import annotations

import traceback
from pathlib import Path

from fuzz_check import Finding, replay
from fuzz_messages import TYPES
from fuzz_parts import Frame, load
from fuzz_worker import Source, prepare


def one_again(seed: int | None, k: int | None, path: Path | None) -> int:
    """Print message `k` of `seed`, or the one saved at `path`, and check it; 1 if that finds it."""
    frames: list[Frame]
    if path is not None:
        kind, frames = 0, list(load(path))
        print(path)
    else:
        assert k is not None
        if seed is None:
            print("--only needs the --seed that the run printed")
            return 2
        kind, frames = Source(seed).message(k)
        print(f"seed {seed}, message {k}, which began as {TYPES[kind] or 'plain Python'}")
    for i, frame in enumerate(frames):
        shown = bytes(frame[:400]).hex(" ", 4)
        print(f"frame {i}: {len(frame)} B, {type(frame).__name__}: {shown}")
    prepare()
    try:
        counts = replay(frames, kind)
    except Finding as finding:
        print(f"FOUND {finding.kind}: {finding}")
        traceback.print_exception(finding)
        return 1
    print(f"{counts.valid} of {counts.decodes} decodes valid; {dict(counts.errors)}")
    return 0
