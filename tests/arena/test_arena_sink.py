"""A message through the arena: one copy or none, equal on the other side, where it was written."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from arena_parts import KIB, MIB, script

import mmlab
from mmlab.arena import Arena, ArenaReader, ArenaSink, Returned, unpack
from mmlab.errors import BackpressureTimeout, EncodeError, MMLabError, UsageError
from mmlab.fields import KwargsItems


class Trip:
    """Both ends in one process: what is encoded here is decoded from the reader's own mapping."""

    def __init__(self, nbytes: int = 16 * MIB) -> None:
        self.arena = Arena(nbytes)
        self.ended: deque[Returned] = deque()
        self.reader = ArenaReader(self.arena.fileno(), self.ended.append)
        self.extents: list[tuple[int, int]] = []
        assert self.reader.address != self.arena._base

    def __call__(self, message: object, threshold: int | None = 256, **more: object) -> object:
        sink = ArenaSink(self.arena, timeout=0, **more)  # type: ignore[arg-type]
        frames = mmlab.Encoder(threshold).encode(message, sink=sink)
        if len(frames) == 1:
            return mmlab.Decoder().decode(frames)
        frame0, raw = frames
        assert sink.lease is not None
        sink.lease.expect(1)
        sink.lease.release()
        descriptor = unpack(raw)
        self.extents = descriptor.extents
        return mmlab.Decoder().decode([frame0, *self.reader.view(descriptor)])

    def place(self, tensor: torch.Tensor) -> int:
        """Its offset in the reader's mapping."""
        offset = tensor.data_ptr() - self.reader.address
        assert 0 <= offset < self.reader.size
        return offset

    def settle(self) -> None:
        """All returns are passed on; nothing is live then."""
        while self.ended:
            assert self.arena.give_back(self.ended.popleft())


@pytest.fixture
def trip() -> Iterator[Trip]:
    made = Trip()
    yield made
    made.settle()
    stats = made.arena.stats()
    made.reader.close()
    made.arena.close()
    assert stats.live_nbytes == stats.leases == stats.stale_returns == 0, stats


def images(n: int, *shape: int) -> KwargsItems:
    """Items that do not lie side by side."""
    tensors = [torch.randn(*shape) for _ in range(2 * n)][::2]
    return KwargsItems.from_processor(
        {"pixel_values": tensors}, {"pixel_values": mmlab.batched("image")}
    )


@pytest.mark.parametrize("shape", [(3, 64, 64), (3, 57, 53), (3000,), (3, 5)])
def test_items_of_one_request_arrive_as_their_batch(trip: Trip, shape: tuple[int, ...]) -> None:
    """Also where an item is no multiple of 64 bytes."""
    items = images(8, *shape)
    got = trip(items, 0)
    assert isinstance(got, KwargsItems) and got == items
    batch = got.reduce()["pixel_values"]
    assert isinstance(batch, torch.Tensor)
    expected = torch.stack([item["pixel_values"].data for item in items["image"]])  # type: ignore[misc]
    assert torch.equal(batch, expected)
    assert trip.place(batch) == trip.extents[0][0]  # nothing was copied here
    first = got["image"][0]["pixel_values"].data
    assert isinstance(first, torch.Tensor) and first.data_ptr() == batch.data_ptr()


def test_flat_items_of_different_length_arrive_as_their_batch(trip: Trip) -> None:
    parts = [torch.randn(n, 1001) for n in (4, 9, 4)]
    items = KwargsItems.from_processor(
        {"patches": torch.cat(parts)}, {"patches": mmlab.flat("image", sizes=[4, 9, 4])}
    )
    apart = KwargsItems({"image": [type(item)(dict(item)) for item in items["image"]]})
    for message in (items, apart):
        got = trip(message)
        assert isinstance(got, KwargsItems)
        batch = got.reduce()["patches"]
        assert isinstance(batch, torch.Tensor) and torch.equal(batch, torch.cat(parts))
        assert trip.place(batch) == trip.extents[0][0]
        del got, batch
        trip.settle()


def test_anything_that_can_be_sent_arrives_equal(trip: Trip) -> None:
    message = {
        "large": torch.randn(300, 100),
        "bf16": torch.randn(9000).bfloat16(),
        "strided": torch.randn(100, 200).t(),
        "bytes": torch.arange(999, dtype=torch.uint8),
        "small": [torch.full((40,), i) for i in range(50)],
        "array": np.arange(5000.0),
        "tiny": torch.ones(2),
        "none": torch.zeros(0, 3),
        "text": "describe",
    }
    for threshold in (0, 256, 100_000):
        got = trip(message, threshold)
        assert isinstance(got, dict)
        for key in ("large", "bf16", "strided", "bytes", "tiny", "none"):
            assert torch.equal(got[key], message[key]), key  # type: ignore[arg-type]
        assert all(torch.equal(a, b) for a, b in zip(got["small"], message["small"], strict=True))
        assert np.array_equal(got["array"], message["array"]) and got["text"] == "describe"
        if threshold < 100_000:
            for key in ("large", "bf16", "strided", "bytes"):
                assert trip.place(got[key]) % 64 == 0
        del got
        trip.settle()
    assert trip("only text") == "only text" and not trip.ended


def test_what_lies_in_the_arena_is_sent_by_its_place_alone(trip: Trip) -> None:
    batch = trip.arena.empty((4, 3, 100, 100), torch.float32)
    batch.copy_(torch.randn(4, 3, 100, 100))
    place = trip.arena.where(batch)
    before = trip.arena.stats().live_nbytes
    items = KwargsItems.from_processor(
        {"pixel_values": list(batch)}, {"pixel_values": mmlab.batched("image")}
    )
    got = trip(items)
    assert trip.arena.stats().live_nbytes == before  # no byte of payload was taken
    assert trip.extents == [(place, batch.nbytes)] and isinstance(got, KwargsItems)
    received = got.reduce()["pixel_values"]
    assert isinstance(received, torch.Tensor) and torch.equal(received, batch)
    assert trip.place(received) == place
    del items, batch  # the producer's own tensor is gone before the reader has finished
    gc.collect()
    assert trip.arena.stats().live_nbytes == before
    del got, received
    trip.settle()
    assert trip.arena.stats().live_nbytes == 0


def test_parts_in_place_and_parts_that_are_copied_go_in_one_message(trip: Trip) -> None:
    inside = trip.arena.empty((2, 5000), torch.float32)
    small = trip.arena.empty((100,), torch.int64)
    inside.copy_(torch.randn(2, 5000))
    small.copy_(torch.arange(100))
    outside = torch.randn(7000)
    message = [outside, inside[1], small, inside[0], inside.t(), outside[:2500]]
    got = trip(message)
    assert isinstance(got, list)
    place = trip.arena.where(inside)
    assert place is not None
    assert all(torch.equal(a, b) for a, b in zip(got, message, strict=True))
    assert [trip.place(got[i]) for i in (1, 3)] == [place + 20_000, place]
    assert trip.place(got[2]) == trip.arena.where(small)
    assert len(trip.extents) == 3  # its own, and two that it refers to
    assert trip.place(got[4]) not in range(place, place + 40_000)  # not dense: copied
    del got, message, inside, small


def test_a_small_view_of_a_large_place_refers_to_its_own_bytes(trip: Trip) -> None:
    large = trip.arena.empty((MIB,), torch.float32)
    large.fill_(1)
    got = trip(large[1000:4000])
    assert trip.extents == [(3968, 12_032)] and isinstance(got, torch.Tensor)
    assert trip.place(got) == 4000 and torch.equal(got, torch.ones(3000))
    del got, large


def test_memory_that_is_shared_is_copied_once(trip: Trip) -> None:
    base = torch.arange(20_000.0)
    message = [base[5000:], base, base.view(100, 200), base.view(torch.uint8)[4:], base[:9000]]
    got = trip(message)
    assert isinstance(got, list)
    start = trip.place(got[1])
    assert [trip.place(t) - start for t in got] == [20_000, 0, 0, 4, 0]
    assert trip.extents == [(start, base.nbytes)]
    assert all(torch.equal(a, b) for a, b in zip(got, message, strict=True))
    del got


def test_a_fragmented_arena_gives_every_piece_an_extent(trip: Trip) -> None:
    blocks = [trip.arena.reserve(MIB) for _ in range(16)]
    del blocks[::2]
    message = [torch.randn(200_000) for _ in range(6)] + [torch.ones(10)]
    got = trip(message, 0)
    assert isinstance(got, list) and len(trip.extents) == 7
    assert all(torch.equal(a, b) for a, b in zip(got, message, strict=True))
    assert [trip.place(t) for t in got] == [offset for offset, _ in trip.extents]
    del got, blocks


def test_large_pieces_begin_at_whole_pages(trip: Trip) -> None:
    got = trip([torch.ones(100), torch.ones(50_000), torch.ones(3, 3), torch.ones(2, 40_000)], 0)
    assert isinstance(got, list)
    assert [trip.place(t) % 4096 for t in (got[1], got[3])] == [0, 0]
    assert all(trip.place(t) % 64 == 0 for t in got)
    del got


def test_a_message_goes_into_a_reservation_made_before() -> None:
    with Arena(MIB) as arena:
        message = [torch.ones(10_000), torch.full((10_000,), 2.0)]
        lease = arena.reserve(100 * KIB)
        sink = ArenaSink(arena, lease)
        mmlab.Encoder().encode(message, sink=sink)
        assert sink.lease is lease and arena.stats().leases == 1
        assert lease.array()[:40_000].view(np.float32).sum() == 10_000
        small = arena.reserve(64 * KIB)
        with pytest.raises(MMLabError, match=r"80000 B .* needed, the reservation has 65536 B"):
            mmlab.Encoder().encode(message, sink=ArenaSink(arena, small))
        assert small.extents and arena.stats().leases == 2
        with pytest.raises(MMLabError, match="make one for each"):
            mmlab.Encoder().encode(message, sink=sink)


def test_a_message_that_finds_no_room_holds_nothing() -> None:
    with Arena(MIB) as arena:
        inside = arena.empty((100_000,), torch.float32)
        before = arena.stats()
        message = [inside, torch.ones(200_000)]
        with pytest.raises(BackpressureTimeout, match="no room") as caught:
            mmlab.Encoder().encode(message, sink=ArenaSink(arena, timeout=0.01))
        with pytest.raises((UsageError, EncodeError), match=rf"B needed, .* has {MIB} B"):
            mmlab.Encoder().encode(torch.ones(MIB), sink=ArenaSink(arena))
        assert caught.tb  # a traceback that is kept, as a log keeps it, keeps no bytes
        after = arena.stats()
        assert (after.live_nbytes, after.leases) == (before.live_nbytes, before.leases)


def test_kept_tensors_stay_valid_while_the_arena_is_filled_three_times_over(trip: Trip) -> None:
    kept = trip({"x": torch.arange(300_000.0)})
    assert isinstance(kept, dict)
    part = kept["x"][100:200]
    del kept
    for i in range(3 * 16):
        got = trip(torch.full((262_144,), float(i)))
        assert isinstance(got, torch.Tensor) and got.eq(i).all()
        del got
        trip.settle()
    assert torch.equal(part, torch.arange(100.0, 200.0))
    del part


def test_a_write_into_a_received_tensor_ends_the_writer_and_changes_nothing() -> None:
    done = script(
        """
import torch, mmlab
torch.set_num_threads(1)
arena = Arena(MIB)
sink = ArenaSink(arena)
frame0, raw = mmlab.Encoder().encode(torch.ones(10_000), sink=sink)
child = os.fork()
if not child:
    with ArenaReader(arena.fileno(), print) as reader:
        got = mmlab.Decoder().decode([frame0, *reader.view(unpack(raw))])
        print("read", int(got.sum()), flush=True)
        got.add_(1)
    os._exit(0)
print("signal", os.WTERMSIG(os.waitpid(child, 0)[1]))
print("still", int(sink.lease.array()[:40_000].view(np.float32).sum()))
"""
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["read 10000", "signal 11", "still 10000"]
