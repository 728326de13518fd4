"""The two halves of a way, and what their processes give them."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch

from mmlab.bench.transfer.packets import Case, Line, Return
from mmlab.bench.transfer.payload import DTYPES, fill
from mmlab.bench.transfer.ways import Way
from mmlab.fields import KwargsItems, batched
from mmlab.transports.base import Buffer, RequestSender

KEY = "pixel_values"


@dataclass(frozen=True)
class Outlet:
    """What the sender's process has: frames go out here, all else over the line."""

    frames: RequestSender
    line: Line
    directory: Path = Path()  # private, of the pair's sockets
    segments: Path = Path()  # private too, in /dev/shm, where a way needs it


class Sender(ABC):
    """The sending half. Subclasses encode and send; some keep their sources elsewhere."""

    local = False  # True: nothing is sent, and nobody acknowledges

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.batches: Sequence[torch.Tensor] = ()

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        """New messages are to come: any of `batches`, in rotation."""
        self.batches = sources

    def build(self, batch: torch.Tensor) -> object:
        """What a processor would hand over; not timed, made anew for every message."""
        return KwargsItems.from_processor({KEY: batch}, {KEY: batched("image")})

    def expected(self, batch: torch.Tensor) -> object:
        """What the receiver must have got of a message that was built from `batch`."""
        return batch

    @abstractmethod
    def send(self, message: object) -> None:
        """Encode and send; timed."""

    def returned(self, end: Return) -> None:  # noqa: B027 (most have nothing to free)
        """The receiver has no view of a message any more."""

    def drop(self) -> None:
        """Forget the case."""
        self.batches = ()

    def push(self, frames: Sequence[Buffer]) -> None:
        self.outlet.frames.send(frames)


class Receiver(Protocol):
    """The receiving half."""

    def prepare(self, case: Case, line: Line) -> None:
        """What the sender's `prepare` announces."""

    def batch(self, frames: Sequence[memoryview]) -> object:
        """The batch of a message; timed."""

    def returns(self) -> list[Return]:
        """What has ended since the last call."""

    def drop(self) -> None:
        """Forget the case."""


class PlainReceiver(Receiver):
    """One that decodes frames and keeps nothing; `batch` is its subclasses'."""

    def prepare(self, case: Case, line: Line) -> None:
        pass

    def returns(self) -> list[Return]:
        return []

    def drop(self) -> None:
        pass


def make_sender(way: Way, outlet: Outlet) -> Sender:
    module = importlib.import_module(f"mmlab.bench.transfer.ways.{way.module}")
    return cast(Sender, module.SENDER(outlet))


def make_receiver(way: Way) -> Receiver:
    module = importlib.import_module(f"mmlab.bench.transfer.ways.{way.module}")
    return cast(Receiver, module.RECEIVER())


def make_sources(case: Case) -> list[torch.Tensor]:
    """The batches of a case, touched, in ordinary memory."""
    batches = [torch.empty(case.shape, dtype=DTYPES[case.dtype]) for _ in range(case.sources)]
    for number, batch in enumerate(batches):
        fill(batch, number)
    return batches
