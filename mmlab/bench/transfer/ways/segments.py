"""SGLang's way: a named segment of shared memory for each tensor, mapped copy-on-write.

The sender makes it, fills it (one copy) and forgets it; the receiver maps it, removes its name, and
stacks (the other copy). Until then the name is all that holds it, and a process that dies in
between leaks it. Here the names lie in a directory of this measurement's own in /dev/shm: it goes
with the pair of processes, and after a SIGKILL with the next start of mmlab.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from mmlab.bench.transfer.packets import Case, Folder, Line
from mmlab.bench.transfer.payload import DTYPES, nbytes_of
from mmlab.bench.transfer.ways.base import Outlet, PlainReceiver, Sender
from mmlab.bench.transfer.ways.shm import check_shm

IN_FLIGHT = 3  # payloads that lie in segments at most


class Segment(msgspec.Struct, array_like=True):
    """What is sent of a tensor."""

    name: str
    dtype: str
    shape: list[int]
    nbytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Segment]).decode


class IntoSegments(Sender):
    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self._made = 0

    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        check_shm(IN_FLIGHT * nbytes_of(case))
        super().prepare(case, sources)
        self.outlet.line.tell(Folder(str(self.outlet.segments)))

    def build(self, batch: torch.Tensor) -> list[torch.Tensor]:
        return list(batch)

    def send(self, message: object) -> None:
        assert isinstance(message, list)
        self.push([_encode([self._written(tensor) for tensor in message])])

    def _written(self, tensor: torch.Tensor) -> Segment:
        self._made += 1
        name = f"mmlab-{os.getpid()}-{self._made}"
        fd = os.open(self.outlet.segments / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(fd, tensor.nbytes)
            with mmap.mmap(fd, tensor.nbytes) as memory:
                into = torch.frombuffer(memory, dtype=tensor.dtype)
                into.copy_(tensor.reshape(-1))
                del into  # nothing may look at the mapping any more
        finally:
            os.close(fd)
        return Segment(name, _name(tensor.dtype), list(tensor.shape), tensor.nbytes)


class FromSegments(PlainReceiver):
    def prepare(self, case: Case, line: Line) -> None:
        self._folder = Path(line.hear(Folder).path)

    def batch(self, frames: Sequence[memoryview]) -> torch.Tensor:
        return torch.stack([self._mapped(segment) for segment in _decode(frames[0])])

    def _mapped(self, segment: Segment) -> torch.Tensor:
        path = self._folder / segment.name
        fd = os.open(path, os.O_RDONLY)
        try:
            memory = mmap.mmap(fd, segment.nbytes, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
            path.unlink()
        # The tensor holds the mapping, which is unmapped with it.
        return torch.frombuffer(memory, dtype=DTYPES[segment.dtype]).view(segment.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


SENDER, RECEIVER = IntoSegments, FromSegments
