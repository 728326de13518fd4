"""Each way of `mmlab bench transfer`, both halves in one process: the batch and where it lies."""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing import resource_sharer
from pathlib import Path

import pytest
import torch

from mmlab.bench.transfer import packets
from mmlab.bench.transfer.packets import Case, Line, Turn
from mmlab.bench.transfer.payload import DTYPES, nbytes_of, proof, stamp
from mmlab.bench.transfer.sender import _Loop
from mmlab.bench.transfer.ways import NAMES, WAYS
from mmlab.bench.transfer.ways.base import (
    Outlet,
    Receiver,
    Sender,
    make_receiver,
    make_sender,
    make_sources,
)
from mmlab.errors import MMLabError, TransportError
from mmlab.transports.base import Buffer, Sent

SENT = [name for name in NAMES if not WAYS[name].peer and name != "memcpy"]
IN_ARENA = ("arena", "arena-in-place")


class Frames:
    """Takes frames and delivers them as a socket does: in other memory."""

    def send(self, frames: Sequence[Buffer]) -> Sent:
        self.last = [memoryview(bytearray(frame)) for frame in frames]
        return Sent(0, len(frames), 0)

    def unreleased(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Both:
    """A way's sender and receiver."""

    def __init__(self, name: str, case: Case, folder: Path) -> None:
        self.line, theirs = Line.pair("receiver")
        self.theirs = Line(theirs, "sender")
        self.frames = Frames()
        outlet = Outlet(self.frames, self.line, folder, folder)
        self.sender: Sender = make_sender(WAYS[name], outlet)
        self.receiver: Receiver = make_receiver(WAYS[name])
        self.sender.prepare(case, make_sources(case))
        self.receiver.prepare(case, self.theirs)

    def trip(self, batch: torch.Tensor) -> torch.Tensor:
        self.sender.send(self.sender.build(batch))
        got = self.receiver.batch(self.frames.last)
        assert isinstance(got, torch.Tensor)
        return got

    def close(self) -> None:
        self.sender.drop()
        self.receiver.drop()
        self.line.close()
        self.theirs.close()
        resource_sharer.stop(timeout=5)  # torch-shm's thread, whose socket lies in `folder`


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, as sockets need it."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "tempdir", None)  # put back afterwards
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(params=SENT)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_batch_arrives_equal_and_every_message_is_another(
    name: str, dtype: str, folder: Path
) -> None:
    case = Case(3, dtype, 32, 2)
    both = Both(name, case, folder)
    seen = set()
    for number in range(1, 600, 100):
        batch = both.sender.batches[number % 2]
        stamp(batch, number)
        got = both.trip(batch)
        assert torch.equal(got, batch) and got.dtype == DTYPES[dtype] and got.shape == case.shape
        assert proof(got) == proof(batch)
        seen.add(proof(got).checksum)
        del got
        for end in both.receiver.returns():
            both.sender.returned(end)
    assert len(seen) == 6
    both.close()


@pytest.fixture
def both(name: str, folder: Path) -> Iterator[Both]:
    made = Both(name, Case(4, "float32", 64, 3), folder)
    yield made
    made.close()


def test_who_copies_and_who_does_not(both: Both, name: str) -> None:
    """Views lie in the frames, or in the arena, and the batch in place where it was written."""
    batch = both.sender.batches[0]
    got = both.trip(batch)
    inside = [
        frame
        for frame in both.frames.last
        if 0 <= got.data_ptr() - torch.frombuffer(frame, dtype=torch.uint8).data_ptr() < len(frame)
    ]
    assert bool(inside) == name.startswith("msgpack")
    if name in IN_ARENA:
        reader = both.receiver._reader  # type: ignore[attr-defined]
        arena = both.sender.arena  # type: ignore[attr-defined]
        offset = got.data_ptr() - reader.address
        assert 0 <= offset < reader.size
        assert (arena.where(batch) == offset) == (name == "arena-in-place")
        assert sum(len(frame) for frame in both.frames.last) < 1000  # only a place is sent
        del got
        gc.collect()
        (end,) = both.receiver.returns()
        both.sender.returned(end)
        with pytest.raises(TransportError, match="was returned and not expected"):
            both.sender.returned(end)


def test_the_memory_of_a_case_goes_with_it(both: Both, name: str) -> None:
    got = both.trip(both.sender.batches[0])
    both.receiver.drop()
    both.sender.drop()
    assert not both.sender.batches
    assert torch.isfinite(got).all()  # a view that is kept stays valid


def test_a_batch_that_is_not_the_one_that_was_sent_ends_the_measurement() -> None:
    class Silent(Sender):
        def send(self, message: object) -> None:
            pass

    line, theirs = Line.pair("receiver")
    receiver = Line(theirs, "sender")
    way = Silent(Outlet(Frames(), line))
    case = Case(2, "uint8", 32, 1)
    way.prepare(case, make_sources(case))
    wrong = way.batches[0].clone()
    stamp(wrong, 1)
    right = proof(wrong)
    wrong[1, 0, 0, 0] += 1
    loop = _Loop(line, line, {"arena": way})
    receiver.tell(packets.Ack())
    receiver.tell(proof(wrong))
    with pytest.raises(MMLabError, match=f"arena: the receiver's batch is .*{right.checksum}"):
        loop._turn(way, Turn("arena", 1))
    line.close()
    receiver.close()


def test_a_process_that_fails_or_ends_is_an_error_on_the_other_side() -> None:
    line, theirs = Line.pair("receiver")
    receiver = Line(theirs, "sender")
    receiver.tell(packets.Failed("receiver: no memory"))
    receiver.tell(packets.Idle())
    with pytest.raises(MMLabError, match="no memory"):
        line.any()
    with pytest.raises(TransportError, match="said Idle, wanted Ack"):
        line.hear(packets.Ack)
    receiver.close()
    with pytest.raises(TransportError, match="receiver has ended"):
        line.any()
    with pytest.raises(TransportError, match="cannot be told"):
        line.tell(packets.Ack())
    line.close()


def test_sizes_are_those_of_the_tensors() -> None:
    for dtype in DTYPES:
        case = Case(2, dtype, 16, 1)
        (batch,) = make_sources(case)
        assert nbytes_of(case) == batch.nbytes and batch.shape == case.shape
