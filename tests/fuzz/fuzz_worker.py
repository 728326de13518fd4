"""One process of the fuzzer: message after message, until count or seconds are over.

Which message it is at stands in a small file that the parent maps too: after a crash or a hang that
number is all that is needed to make the message again. What it finds it prints, a JSON object a
line; standard error stays free for the interpreter's own last words.
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import resource
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from fuzz_check import Checker, Finding, Often
from fuzz_messages import Base, draw_bases
from fuzz_mutate import mutate
from fuzz_parts import Frame

EPOCH = 25_000  # messages that begin from one set of bases
BASES = 400
HEADROOM = 1 << 30  # bytes of address space beyond what the libraries have taken
REPORT = 1.0  # seconds


def prepare(headroom: int = HEADROOM) -> None:
    """One thread, no room for a declared size of gigabytes, and warnings are failures."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + headroom
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Source:
    """Message number `k` of a seed: always the same one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = random.Random()
        self._epoch = -1
        self._bases: list[Base] = []

    def message(self, k: int) -> tuple[int, list[Frame]]:
        """Place in TYPES of the message it began from, and the frames."""
        if k // EPOCH != self._epoch:
            self._epoch = k // EPOCH
            self._bases = draw_bases(self.seed << 24 | self._epoch, BASES)
        self._rng.seed(self.seed << 48 | k)
        return mutate(self._rng, self._bases)


class Position:
    """The number of the message at hand, in a file that outlives this process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, k: int) -> None:
        struct.pack_into("<Q", self._map, 0, k)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="number of the first message")
    parser.add_argument("--step", type=int, required=True, help="from one message to the next")
    parser.add_argument("--end", type=int, required=True, help="number to end before")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--position", type=Path, required=True)
    return parser.parse_args()


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def counts_of(checker: Checker) -> dict[str, object]:
    counts = checker.counts
    plain = {name: getattr(counts, name) for name in counts.__slots__}
    return {n: dict(v) if n in ("errors", "checks") else v for n, v in plain.items()}


def main() -> int:
    args = arguments()
    with Checker(Often()) as checker:
        prepare()
        loop(args, checker)
        report(counts=counts_of(checker), done=True)
    return 0


def loop(args: argparse.Namespace, checker: Checker) -> None:
    """Message after message."""
    source, position = Source(args.seed), Position(args.position)
    began = last = time.monotonic()
    for k in range(args.first, args.end, args.step):
        position.set(k)
        kind, frames = source.message(k)
        try:
            checker.check(frames, kind, k // args.step)
        except Finding as finding:
            trace = "".join(traceback.format_exception(finding)) if finding.__cause__ else ""
            report(finding=finding.kind, text=str(finding)[:2000], trace=trace[-4000:], k=k)
        now = time.monotonic()
        if now - last > REPORT:
            last = now
            report(counts=counts_of(checker))
            if now - began > args.seconds:
                break


if __name__ == "__main__":
    sys.exit(main())
