"""A worker process seen from outside: what it prints, and that it neither crashes nor hangs."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

WORKER = Path(__file__).with_name("fuzz_worker.py")
STALL = 60.0  # seconds at one message before it counts as a hang; loaded machines are slow
START = 120.0  # seconds until the first message: torch is imported before


@dataclass(frozen=True, slots=True)
class Found:
    """A message that did what no message may do."""

    seed: int
    k: int
    kind: str
    text: str
    trace: str = ""

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.k}.msg"

    def save(self, folder: Path) -> None:
        """The message itself, for whoever has no use for the seed any more."""
        from fuzz_parts import save
        from fuzz_worker import Source

        _, frames = Source(self.seed).message(self.k)
        save(folder / self.name, frames)
        (folder / self.name).with_suffix(".txt").write_text(f"{self}\n{self.trace}", "utf-8")

    def __str__(self) -> str:
        return f"{self.kind}: {self.text:.300} (--seed {self.seed} --only {self.k})"


class Child:
    """Messages `first`, `first + step` ... of a seed, in a process that is started again as needed.

    A context manager: leaving it kills the process.
    """

    def __init__(
        self, path: Path, seed: int, first: int, step: int, end: int, seconds: float
    ) -> None:
        self.path, self.seed, self.step, self.end = path, seed, step, end
        self.until = time.monotonic() + seconds
        self.done = False
        self.restarts = 0
        self._earlier: list[dict[str, object]] = []  # of processes that crashed
        self._counts: dict[str, object] = {}
        self._start(first)

    def _start(self, first: int) -> None:
        self._position = self.path.with_suffix(".position")
        self._position.write_bytes(struct.pack("<Q", NOWHERE))
        self._at, self._since = NOWHERE, time.monotonic()
        self._text = b""
        self._out = self.path.with_suffix(".out").open("wb")
        self._in = self.path.with_suffix(".out").open("rb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-X", "faulthandler", WORKER),
                *("--seed", str(self.seed), "--first", str(first), "--step", str(self.step)),
                *("--end", str(self.end), "--position", self._position),
                *("--seconds", str(max(self.until - time.monotonic(), 0.0))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def all_counts(self) -> list[dict[str, object]]:
        return [*self._earlier, self._counts]

    def look(self) -> list[Found]:
        """What is new: findings it printed, or its own crash or hang."""
        if self.done:
            return []
        code = self._process.poll()
        found = self._read()
        if self.done:
            return found
        if code is None and not self._stalled():
            return found
        (k,) = struct.unpack("<Q", self._position.read_bytes())
        words = self._text.decode(errors="replace")[-2000:]
        if code is None:
            self._process.kill()
            self._process.wait()
            kind, text = "hang", f"no next message within {STALL:.0f} s"
        else:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            kind, text = "crash", name
        if k == NOWHERE:
            raise RuntimeError(f"the worker did not start ({kind}: {text}): {words}")
        found.append(Found(self.seed, k, kind, text, words))
        self._earlier.append(self._counts)
        self._counts = {}
        self._close()
        self.restarts += 1
        self._start(k + self.step)
        return found

    def _read(self) -> list[Found]:
        found = []
        self._text += self._in.read()
        *lines, self._text = self._text.split(b"\n")
        kept = []
        for line in lines:
            if not line.startswith(b"{"):  # of the interpreter's
                kept.append(line)
                continue
            said = json.loads(line)
            if "finding" in said:
                found.append(
                    Found(self.seed, said["k"], said["finding"], said["text"], said["trace"])
                )
            else:
                self._counts = said["counts"]
                self.done = "done" in said
        self._text = b"\n".join([*kept, self._text])
        return found

    def _stalled(self) -> bool:
        (at,) = struct.unpack("<Q", self._position.read_bytes())
        now = time.monotonic()
        if at != self._at:
            self._at, self._since = at, now
        return now - self._since > (START if at == NOWHERE else STALL)

    def _close(self) -> None:
        self._in.close()
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._close()


NOWHERE = (1 << 64) - 1  # position of a worker that has not begun
