"""Shared memory is sent once, small views cost their own bytes, small tensors are packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wire_messages import address, assert_same, header_nbytes, owned, payload_nbytes, trip

import mmlab
from mmlab.wire import Piece


def encode(obj: object, threshold: int | None = 256) -> list[bytes | bytearray | memoryview]:
    return mmlab.Encoder(threshold).encode(obj)


def test_a_small_view_of_a_huge_tensor_costs_its_own_bytes() -> None:
    parent = torch.zeros(10_000_000)
    frames = encode(parent[:1000])
    assert 4000 <= payload_nbytes(frames) <= 4000 + 1024 and header_nbytes(frames) < 1024
    got = mmlab.Decoder().decode(owned(frames))
    assert got.untyped_storage().nbytes() <= 4000 + 1024  # type: ignore[attr-defined]
    for view in (parent[5000:65_000], parent[:6_000_000:2000], parent[-1:]):
        frames = encode(view, 0)
        assert payload_nbytes(frames) == view.numel() * 4
        assert_same(mmlab.Decoder().decode(frames), view.contiguous())


@pytest.mark.parametrize("shape", [(8, 3, 32, 32), (8, 4, 4)], ids=["large", "small"])
def test_chunks_of_one_batch_cost_one_batch(shape: tuple[int, ...]) -> None:
    batch = torch.randn(shape)
    frames = encode(list(batch.chunk(8)), 0)
    assert len(frames) == 2 and payload_nbytes(frames) == batch.nbytes
    got = mmlab.Decoder().decode(frames)
    assert_same(torch.cat(got), batch)  # type: ignore[arg-type]
    if shape[1] == 3:
        assert [t.data_ptr() for t in got] == [c.data_ptr() for c in batch.chunk(8)]  # type: ignore[attr-defined]


def test_large_views_that_overlap_are_one_frame_and_overlap_again() -> None:
    base = torch.arange(20_000.0)
    views = [base[:9000], base[5000:], base[2000:8000], base]
    frames = encode(views)
    assert len(frames) == 2 and payload_nbytes(frames) == base.nbytes
    received = owned(frames)
    got = mmlab.Decoder().decode(received)
    assert_same(got, views)
    start = address(received[1])
    assert [t.data_ptr() - start for t in got] == [0, 20_000, 8000, 0]  # type: ignore[attr-defined]


def test_views_with_a_gap_between_them_do_not_send_the_gap() -> None:
    base = torch.arange(100_000.0)
    frames = encode([base[:3000], base[50_000:53_000]])
    assert len(frames) == 3 and payload_nbytes(frames) == 24_000


def test_views_of_other_dtypes_over_one_storage_are_one_frame_where_they_stay_aligned() -> None:
    base = torch.arange(40_000, dtype=torch.uint8)
    message = [base[:20_000], base[20_000:].view(torch.float32), base[1:39_997]]
    frames = encode(message)
    assert payload_nbytes(frames) <= 40_000 + 39_996
    got = trip(message)
    assert_same(got, message)
    assert all(t.data_ptr() % t.element_size() == 0 for t in got)  # type: ignore[attr-defined]


def test_storages_that_begin_at_one_address_but_end_at_others_are_kept_apart() -> None:
    array = np.arange(40_000, dtype=np.float32)
    message = [torch.from_numpy(array[:20_000]), torch.from_numpy(array), array[:20_000], array]
    assert_same(trip(message), message)


def test_an_aliased_tensor_is_sent_once_and_arrives_as_one_object() -> None:
    for n in (3, 30_000):
        tensor = torch.randn(n)
        frames = encode([tensor, {"a": tensor}, [tensor] * 50], 0)
        assert payload_nbytes(frames) == tensor.nbytes
        got = mmlab.Decoder().decode(frames)
        assert got[0] is got[1]["a"] is got[2][0] is got[2][49]  # type: ignore[index]


def test_a_thousand_small_tensors_are_one_frame_and_one_description() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensors = [torch.full((32,), i % 100, dtype=dtype) for i in range(1000)]
        frames = encode(tensors, 0)
        assert len(frames) == 2
        assert payload_nbytes(frames) == 32 * dtype.itemsize * 1000
        assert header_nbytes(frames) <= 12 * 1024
        assert_same(mmlab.Decoder().decode(frames), tensors)


def test_small_tensors_of_any_dtype_are_packed_each_at_its_alignment() -> None:
    dtypes = [torch.bool, torch.float64, torch.int8, torch.complex128, torch.bfloat16, torch.int32]
    message = [torch.ones(i % 7 + 1, dtype=dtypes[i % 6]) for i in range(60)]
    arrays = [np.ones(i % 5 + 1, d) for i, d in enumerate(("i1", ">f8", "c16", "?"))]
    for threshold in (0, None):
        frames = encode([message, arrays], threshold)
        assert len(frames) == (2 if threshold == 0 else 1)
        total = sum(memoryview(f).nbytes for f in frames)
        assert total <= sum(t.nbytes + 64 for t in message) + 64 * 4 + 8 * 1024
        got = mmlab.Decoder().decode(aligned(frames))
        assert_same(got, [message, arrays])
        first_of_each = {t.data_ptr() % 64 for t in got[0] if t.shape != (0,)}  # type: ignore[index]
        assert first_of_each == {0} or all(t.data_ptr() % t.element_size() == 0 for t in got[0])  # type: ignore[index]


def aligned(frames: list[bytes | bytearray | memoryview]) -> list[memoryview]:
    """The frames in memory that begins at a multiple of 64, as a receiver's does."""
    out = []
    for frame in frames:
        copy = torch.frombuffer(bytearray(frame), dtype=torch.uint8).clone()
        assert copy.data_ptr() % 64 == 0
        out.append(copy.numpy().data)
    return out


def test_packed_tensors_are_views_of_their_frame() -> None:
    message = [torch.ones(50, dtype=torch.float32), torch.ones(50, dtype=torch.float64)]
    frames = aligned(encode(message, 0))
    start = address(frames[1])
    for tensor in mmlab.Decoder().decode(frames):  # type: ignore[attr-defined]
        assert start <= tensor.data_ptr() < start + frames[1].nbytes
        assert (tensor.data_ptr() - start) % 64 == 0


def test_no_stale_memory_leaves_the_process_between_packed_tensors() -> None:
    """The bytes that only fill up to the next aligned place are zero."""
    for n in (1, 2, 5):
        message = [torch.full((n,), 0xEE, dtype=torch.uint8) for _ in range(2)]
        message += [torch.full((n + 1,), 0xEE, dtype=torch.uint8)]
        for threshold in (0, None):
            trash = [torch.full((4096,), 0xAB, dtype=torch.uint8) for _ in range(64)]
            del trash
            frames = encode(message, threshold)
            assert all(b"\xab" not in bytes(frame) for frame in frames)


@pytest.mark.parametrize("threshold", [1, 100, 256, 4096])
def test_the_threshold_decides_what_travels_inside_frame_0(threshold: int) -> None:
    below, at = (
        torch.zeros(threshold - 1, dtype=torch.uint8),
        torch.zeros(threshold, dtype=torch.uint8),
    )
    assert len(encode(below, threshold)) == 1
    assert len(encode(at, threshold)) == 2
    assert len(encode([at, at.clone(), torch.zeros(100_000)], None)) == 1


def test_frame_0_of_large_payload_is_small() -> None:
    frames = encode({"a": torch.zeros(1 << 20), "b": [torch.zeros(1 << 20)]})
    assert header_nbytes(frames) < 256


class Shelf:
    """A sink that takes payload into one place of its own, as an arena does."""

    def __init__(self) -> None:
        self.frames: list[bytes | bytearray | memoryview] = []
        self.store = bytearray(1 << 20)
        self.calls = 0

    def place(self, pieces: list[Piece]) -> list[tuple[int, int]]:
        self.calls += 1
        places, at = [], 0
        for piece in pieces:
            piece.write(memoryview(self.store)[at:])
            places.append((1, at))
            at += -(-piece.nbytes // 64) * 64
        return places


def test_a_sink_takes_the_payload_of_a_message_at_once() -> None:
    messages = [
        torch.randn(100),
        [torch.randn(100)] * 2,
        [torch.randn(100) for _ in range(9)],
        [torch.ones(2), np.arange(5000.0), torch.randn(300, 40).t(), torch.zeros(0)],
        mmlab.KwargsItems.from_processor({"x": torch.randn(3, 500)}, {"x": mmlab.batched("image")}),
    ]
    for message in messages:
        shelf = Shelf()
        (frame0,) = mmlab.Encoder(0).encode(message, sink=shelf)
        got = mmlab.Decoder().decode([frame0, memoryview(shelf.store)])
        assert shelf.calls == 1
        if isinstance(message, mmlab.KwargsItems):
            assert got == message
        else:
            assert_same(got, message)


class Failing(Shelf):
    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def place(self, pieces: list[Piece]) -> list[tuple[int, int]]:
        if self.error is not None:
            raise self.error
        return super().place(pieces)[1:]


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError, OSError, mmlab.UsageError])
def test_what_a_sink_raises_is_no_fault_of_the_message(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="shelf is full"):
        mmlab.Encoder(0).encode([torch.ones(3), torch.ones(9)], sink=Failing(kind("shelf is full")))


def test_a_sink_that_gives_too_few_places_is_named() -> None:
    with pytest.raises(mmlab.TransportError, match="Failing: 1 places, 2 pieces"):
        mmlab.Encoder(0).encode([torch.ones(3), torch.ones(9)], sink=Failing(None))


def test_a_long_run_of_small_tensors_is_cut_so_that_one_of_them_pins_16_mib() -> None:
    rows = [torch.full((8191,), i % 251, dtype=torch.uint8) for i in range(6400)]
    frames = encode(rows, 0)
    assert max(len(frame) for frame in frames[1:]) <= 16 << 20 and len(frames) == 5
    got = mmlab.Decoder().decode(frames)
    assert isinstance(got, list) and all(map(torch.equal, got, rows))
