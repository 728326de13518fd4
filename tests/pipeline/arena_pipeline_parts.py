"""What the tests of pipelines with an arena share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pipeline_parts import wait_for

from mmlab import KwargsItems, batched
from mmlab.arena import Arena
from mmlab.pipeline import Pipeline
from mmlab.pipeline.lending import Lender

KIB, MIB = 1 << 10, 1 << 20
MEMFD = "/memfd:mmlab-arena"


def arena_of(pipeline: Pipeline) -> Arena:
    assert pipeline.arena is not None
    return pipeline.arena


def lender_of(pipeline: Pipeline) -> Lender:
    assert isinstance(pipeline._link._outgoing, Lender)
    return pipeline._link._outgoing


def is_empty(pipeline: Pipeline) -> bool:
    """Whether every lease has come back, within a few seconds."""

    def empty() -> bool:
        stats = pipeline.stats()
        return stats["arena_leases"] == stats["arena_live_nbytes"] == 0

    return wait_for(empty)


def pixels_of(pixels: torch.Tensor) -> KwargsItems:
    return KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})


def random_items(nbytes: int, count: int = 1) -> KwargsItems:
    """`count` items of random bytes, `nbytes` together."""
    return pixels_of(torch.randint(0, 256, (count, nbytes // count), dtype=torch.uint8))


@contextmanager
def frozen(pipeline: Pipeline) -> Iterator[None]:
    """The engine does nothing meanwhile: what is sent stays under way."""
    os.kill(pipeline.engine_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pipeline.engine_pid, signal.SIGCONT)


def mappings(pid: int | str, inode: int) -> list[str]:
    """Permissions of the maps that a process has of an arena."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    found = [line.split() for line in lines if MEMFD in line]
    return [fields[1] for fields in found if int(fields[4]) == inode]


def mapped_anywhere(inode: int) -> list[str]:
    """Processes that map the arena."""
    pids = [path.name for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if mappings(pid, inode)]


def spied(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """Every message that goes over the socket from here on."""
    messages: list[list[bytes]] = []
    sender = pipeline._link._sender
    assert sender is not None
    send = sender.send

    def spy(frames: list[bytes]) -> object:
        messages.append([bytes(frame) for frame in frames])
        return send(frames)

    monkeypatch.setattr(sender, "send", spy)
    return messages
