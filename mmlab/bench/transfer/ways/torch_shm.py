"""torch.multiprocessing: the batch moves into shared memory of torch's, its items' places are sent.

Copies: one into the shared memory, one by `stack`. torch's strategy is "file_descriptor": the
memory has no name, and the receiver fetches its descriptor from a thread of the sender, which
knows it by an authentication key that both have.
"""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # teaches ForkingPickler what a tensor is

from mmlab.bench.transfer.packets import Case, Key, Line
from mmlab.bench.transfer.payload import nbytes_of
from mmlab.bench.transfer.ways.base import Outlet, PlainReceiver, Sender
from mmlab.bench.transfer.ways.shm import check_shm

IN_FLIGHT = 3  # payloads that lie in shared memory at most


def alias(batch: torch.Tensor) -> torch.Tensor:
    """The same memory in a storage of its own: moving that to shared memory copies, and leaves the
    batch where it is. A processor's output is such memory, made for one message."""
    return torch.from_numpy(batch.view(torch.uint8).numpy()).view(batch.dtype)


def lend_key(outlet: Outlet) -> None:
    """Before anything is shared: the receiver may fetch descriptors from this process, at a socket
    that lies in the pair's directory and goes with it."""
    me = multiprocessing.current_process()
    me._config["tempdir"] = str(outlet.directory)  # type: ignore[attr-defined]
    torch.multiprocessing.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
    outlet.line.tell(Key(bytes(me.authkey)))


def take_key(line: Line) -> None:
    """What `lend_key` announces."""
    torch.multiprocessing.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call]
    multiprocessing.current_process().authkey = line.hear(Key).key


class Share(Sender):
    def prepare(self, case: Case, sources: Sequence[torch.Tensor]) -> None:
        check_shm(IN_FLIGHT * nbytes_of(case))
        super().prepare(case, sources)
        lend_key(self.outlet)

    def build(self, batch: torch.Tensor) -> list[torch.Tensor]:
        return list(alias(batch))

    def send(self, message: object) -> None:
        assert isinstance(message, list)
        message[0].share_memory_()  # one view moves all
        with io.BytesIO() as out:
            ForkingPickler(out).dump(message)
            self.push([out.getvalue()])


class Attach(PlainReceiver):
    def prepare(self, case: Case, line: Line) -> None:
        take_key(line)

    def batch(self, frames: Sequence[memoryview]) -> torch.Tensor:
        return torch.stack(ForkingPickler.loads(frames[0]))


SENDER, RECEIVER = Share, Attach
