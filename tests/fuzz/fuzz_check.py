"""What must hold for all frames: a valid object or a WireError, in bounded time and memory.

`Checker.check` decodes one message as plain Python and as its type, walks the result, makes its
batches, and from time to time measures the decode's memory or sends the result round once more.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

import msgspec
import torch
from fuzz_messages import TYPES
from fuzz_resident import Resident
from fuzz_same import canonical
from fuzz_walk import Broken, Walk, reduce_all

import mmlab
from mmlab.wire import Buffer

DECODE_SECONDS = 1.0  # of processor time, for a message of up to some megabytes
TOTAL_SECONDS = 20.0
LONGEST_ERROR = 500  # characters
SLACK = 1 << 20


class Finding(Exception):
    """What no message may do. `kind` is one word for it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Often:
    """Each check is made on every n-th message; 1 is always, 0 never."""

    read: int = 4
    again: int = 12
    resident: int = 40
    traced: int = 200


@dataclass(slots=True)
class Counts:
    """What came of the messages so far."""

    messages: int = 0
    decodes: int = 0
    valid: int = 0
    tensors: int = 0
    items: int = 0
    batches: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def bound(frames: Sequence[Buffer]) -> int:
    """Bytes that a decode may allocate: payload + 80 x frame 0 + 1 MiB."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    return sum(sizes[1:]) + 80 * sizes[0] + SLACK if sizes else SLACK


def reason_of(error: mmlab.WireError) -> str:
    """A short name for why a message was refused: where, or which library said no."""
    text, cause = str(error), error.__cause__
    if isinstance(cause, msgspec.MsgspecError):
        for word in ("recursion", "truncated", "trailing", "utf-8", "malformed", "Expected"):
            if word.lower() in text.lower():
                return f"msgpack: {word.lower()}"
        return f"msgpack: {type(cause).__name__}"
    if cause is not None and text.startswith("frame 0: ") and not text.endswith("of 32 bytes"):
        return f"caught: {type(cause).__name__}"
    for word, label in REASONS:
        if word in text:
            return label
    return "items"


REASONS = (
    ("not an mmlab message", "envelope: magic"),
    ("format version", "envelope: version"),
    ("reserved bits", "envelope: reserved bits"),
    ("its envelope declares", "envelope: sizes"),
    ("wanted an envelope", "envelope: too short"),
    ("max_nbytes", "envelope: max_nbytes"),
    ("would become", "growth"),
    ("cannot refer to them all", "table: more tensors than references"),
    ("dimensions in", "table: dimensions"),
    ("left for a record", "table: cut"),
    ("unknown dtype code", "table: dtype"),
    ("payload in frame", "table: frame"),
    ("wanted a multiple of", "table: alignment"),
    ("table[", "table: sizes"),
    ("tensor reference", "reference"),
    ("extension type", "extension type"),
    ("nested deeper", "depth"),
    ("value", "value"),
)


class Checker:
    """Checks messages one after another and counts what came of them. A context manager."""

    def __init__(self, often: Often) -> None:
        self.often = often
        self.counts = Counts()
        self._plain = mmlab.Decoder()
        self._copy = mmlab.Decoder(copy=True)
        self._typed = [mmlab.Decoder(kind) for kind in TYPES]
        self._files = ExitStack()
        self._resident = self._files.enter_context(Resident())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def due(self, what: str, n: int) -> bool:
        every = getattr(self.often, what)
        if not every or n % every:
            return False
        self.counts.checks[what] += 1
        return True

    def check(self, frames: Sequence[Buffer], kind: int = 0, n: int = 0) -> bool:
        """True if a decoder took the message. `n` chooses what is measured. Raises Finding."""
        began = time.thread_time()
        self.counts.messages += 1
        if self.due("resident", n):
            self._resident_bound(frames)
        if self.due("traced", n):
            self._traced_bound(frames)
        decoder = self._copy if n % 5 == 0 else self._plain
        taken = self._one(decoder, frames, n, 0)
        if kind:
            taken |= self._one(self._typed[kind], frames, n, kind)
        if time.thread_time() - began > TOTAL_SECONDS:
            raise Finding("slow", f"{time.thread_time() - began:.1f} s for the whole walk")
        return taken

    def _decode(self, decoder: mmlab.Decoder, frames: Sequence[Buffer]) -> tuple[bool, object]:
        began = time.thread_time()
        try:
            return True, decoder.decode(frames)
        except mmlab.WireError as error:
            reason = reason_of(error)
            self.counts.errors[reason] += 1
            if reason == "caught: MemoryError" or "allocate" in str(error):
                raise Finding("allocation", f"a WireError out of: {error}") from error
            if len(str(error)) > LONGEST_ERROR:
                raise Finding("long error", f"{len(str(error))} characters") from error
            return False, None
        except Exception as error:
            raise Finding("exception", f"decode: {type(error).__name__}: {error}") from error
        finally:
            self.counts.decodes += 1
            took = time.thread_time() - began
            if took > DECODE_SECONDS:
                raise Finding("slow", f"{took:.1f} s for a decode")

    def _one(self, decoder: mmlab.Decoder, frames: Sequence[Buffer], n: int, kind: int) -> bool:
        taken, got = self._decode(decoder, frames)
        if not taken:
            return False
        self.counts.valid += 1
        walk = Walk(frames, self.due("read", n))
        try:
            walk.all(got)
            if walk.owned > bound(frames):
                raise Broken(f"{walk.owned} B of tensors in no frame, at most {bound(frames)} B")
            if decoder.copy and walk.borrowed:
                raise Broken(f"copy=True, and {walk.borrowed} tensors lie in a frame")
            self._batches(walk, decoder, frames, n)
            if not walk.many and self.due("again", n):
                self._again(got, kind, n)
        except Broken as error:
            raise Finding("broken", str(error)) from error
        except Exception as error:
            raise Finding("exception", f"walk: {type(error).__name__}: {error}") from error
        counts = self.counts
        counts.tensors += walk.tensors
        counts.items += walk.items
        return True

    def _batches(
        self, walk: Walk, decoder: mmlab.Decoder, frames: Sequence[Buffer], n: int
    ) -> None:
        twins: list[mmlab.KwargsItems | None] = [None] * len(walk.batches)
        if walk.batches and n % 3 == 0:
            other = Walk(frames, False)
            other.all(decoder.decode(frames))
            if len(other.batches) == len(twins):
                twins[:] = other.batches
        for items, twin in zip(walk.batches, twins, strict=True):
            self.counts.batches += reduce_all(items, twin)

    def _again(self, got: object, kind: int, n: int) -> None:
        """What was taken can be sent, and comes out as it went in."""
        try:
            wanted = canonical(got)
        except RecursionError:
            return
        frames = mmlab.Encoder((None, 0, 256)[n % 3]).encode(got)
        found = canonical(self._typed[kind].decode([bytes(frame) for frame in frames]))
        if found != wanted:
            raise Broken("sent once more, it comes out as something else")

    def _traced_bound(self, frames: Sequence[Buffer]) -> None:
        tracemalloc.start(1)
        try:
            kept = self._decode(self._plain, frames)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        del kept
        if peak > bound(frames):
            raise Finding("memory", f"{peak} B of Python's, at most {bound(frames)} B")

    def _resident_bound(self, frames: Sequence[Buffer]) -> None:
        """Resident memory counts whole pages and other threads: an excess must show three times."""
        grown = []
        for _ in range(3):
            before = self._resident.reset()
            kept = self._decode(self._plain, frames)
            grown.append(self._resident.peak() - before)
            del kept
            if grown[-1] <= bound(frames):
                return
        raise Finding("memory", f"{grown} B resident, at most {bound(frames)} B")


def replay(frames: Sequence[Buffer], kind: int = 0) -> Counts:
    """Every check on one message, as any decoder. Raises Finding."""
    torch.set_num_threads(1)
    with Checker(Often(1, 1, 1, 1)) as checker:
        for place in sorted({0, kind}) if kind else range(len(TYPES)):
            for n in (0, 1, 3):
                checker.check(frames, place, n)
        return checker.counts
