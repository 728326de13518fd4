"""The peer's two ends in one process: how often a byte is copied, and which memory is whose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from mmlab import KwargsItems, TransportError, batched
from mmlab.bench.peers import torch_shm
from mmlab.bench.peers.torch_shm import LITTLE, Sharer
from mmlab.bench.peers.torch_shm_receiver import SharedReceiver
from mmlab.pipeline.messages import Request
from mmlab.pipeline.serializers import make_serializer
from mmlab.staging import PinnedBatcher
from mmlab.transports import open_transport


def items_of(pixels: torch.Tensor | list[torch.Tensor]) -> KwargsItems:
    return KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})


class Ends:
    """Both ends, and what the far one decodes."""

    def __init__(self, sharer: Sharer, receiver: SharedReceiver, push: object) -> None:
        self.sharer, self.receiver, self.push = sharer, receiver, push
        self.serializer = make_serializer(
            "msgpack", insecure_pickle=False, private=True, max_nbytes=1 << 30
        )

    def carry(self, items: KwargsItems, number: int = 1) -> KwargsItems:
        frames, _ = self.sharer.dumps(Request([1], 1, items), number, items.nbytes, 1)
        self.push.send(frames)  # type: ignore[attr-defined]
        message = self.receiver.receive(5)
        assert message is not None and message.error is None
        assert message.nbytes >= items.nbytes
        arrived = self.serializer.loads(message.frames).mm
        assert arrived is not None
        return arrived


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    sharer = Sharer(tmp_path)
    with open_transport("inproc") as transport:
        pull = transport.bind_requests(None)
        receiver = SharedReceiver(pull, tmp_path, sharer.authkey)
        assert receiver.endpoint == pull.endpoint
        yield Ends(sharer, receiver, transport.connect_requests(pull.endpoint))
        receiver.close()
    sharer.close()
    sharer.close()


def mapped(tensor: torch.Tensor) -> str:
    """What file lies under that address in this process."""
    at = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= at < end:
            return line.split(maxsplit=5)[-1]
    return ""


@contextmanager
def batcher() -> Iterator[PinnedBatcher]:
    with PinnedBatcher("cpu", mode="pageable") as made:
        yield made


def test_one_copy_within_a_request_and_two_across_requests(ends: Ends) -> None:
    pixels = torch.rand(4, 3, 64, 64)
    arrived = ends.carry(items_of(pixels))
    with batcher() as stage:
        staged = stage.stage(arrived.pairs())
        batch = staged.kwargs["pixel_values"]
        assert isinstance(batch, torch.Tensor) and torch.equal(batch, pixels)
        assert staged.copies == 0 and "mmlab-torch-shm" in mapped(batch)
        other = ends.carry(items_of(pixels + 1), 2)
        staged = stage.stage([*arrived.pairs(), *other.pairs()])
        batch = staged.kwargs["pixel_values"]
        assert isinstance(batch, torch.Tensor) and torch.equal(batch[4:], pixels + 1)
        assert staged.copies == 1 and "mmlab-torch-shm" not in mapped(batch)


def test_the_engine_keeps_the_memory_after_the_frontend_let_go(ends: Ends) -> None:
    pixels = torch.rand(2, 3, 64, 64)
    arrived = ends.carry(items_of(pixels))
    assert ends.sharer.stats() == {"shm_requests": 1, "shm_waiting": 0}
    ends.sharer.release(1)
    ends.sharer.close()
    item = arrived["image"][1]
    assert item is not None and torch.equal(item["pixel_values"].data, pixels[1])  # type: ignore[arg-type]


def test_tensors_of_their_own_share_one_storage(ends: Ends) -> None:
    each = [torch.rand(3, 64, 64 + n) for n in range(20)]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    arrived = ends.carry(items_of(each))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
    for item, tensor in zip(arrived["image"], each, strict=True):
        assert item is not None and torch.equal(item["pixel_values"].data, tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [LITTLE - 1, LITTLE, LITTLE + 1])
def test_a_little_request_needs_no_memory(ends: Ends, nbytes: int) -> None:
    ends.carry(items_of(torch.zeros(1, nbytes, dtype=torch.uint8)))
    assert ends.sharer.stats()["shm_requests"] == (nbytes >= LITTLE)


def test_memory_that_cannot_be_had_is_an_error_with_its_size(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(fd: int, nbytes: int) -> torch.UntypedStorage:
        raise RuntimeError("no room")

    monkeypatch.setattr(torch_shm, "storage_of", refuses)
    items = items_of(torch.zeros(1, LITTLE, dtype=torch.uint8))
    with pytest.raises(TransportError, match=f"no shared storage of {LITTLE} B .no room"):
        ends.sharer.dumps(Request([1], 1, items), 5, items.nbytes, 1)
    ends.sharer.release(5)
    assert ends.sharer.stats()["shm_requests"] == 0
