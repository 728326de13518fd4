"""Tensors: every dtype, shape and layout comes back with the same dtype, shape and bytes."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
import torch
from wire_messages import (
    address,
    assert_same,
    owned,
    payload_nbytes,
    random_tensor,
    raw,
    trip,
)

import mmlab
from mmlab.dtypes import CODE_OF_TORCH

DTYPES = sorted(CODE_OF_TORCH, key=str)


@pytest.mark.parametrize("threshold", [0, 256, None])
def test_every_dtype_keeps_its_bytes_and_costs_no_more(threshold: int | None) -> None:
    for dtype in DTYPES:
        tensor = random_tensor(dtype, 3, 4)
        frames = mmlab.Encoder(threshold).encode(tensor)
        assert_same(mmlab.Decoder().decode(owned(frames)), tensor, str(dtype))
        if threshold == 0:
            assert [len(frame) for frame in frames[1:]] == [12 * dtype.itemsize], dtype


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_every_dtype_is_packed_among_others(count: int) -> None:
    for dtype in DTYPES:
        tensors = [random_tensor(dtype, 5, 2) for _ in range(count)]
        message = [torch.ones(3), *tensors, torch.ones(1, dtype=torch.int8), *tensors[:1]]
        assert_same(trip(message), message, str(dtype))
        assert_same(trip(message, 0, copy=True), message, str(dtype))


def test_every_dtype_of_any_strides_is_made_dense() -> None:
    for dtype in DTYPES:
        base = random_tensor(dtype, 6, 8)
        for view in (base.t(), base[::2, 1::3], base[:, :3], base[2:3].expand(4, 8), base[1:]):
            assert_same(trip(view, 0), view, str(dtype))
            assert_same(trip([view, base, view], None), [view, base, view], str(dtype))
        large = random_tensor(dtype, 130, 70)
        assert_same(trip(large.t(), 0, copy=True), large.t(), str(dtype))


def test_one_element_of_every_dtype_with_a_stride_that_does_not_matter() -> None:
    for dtype in DTYPES:
        one = random_tensor(dtype, 4)[::2][:1]
        assert one.stride() == (2,) and one.is_contiguous()
        for threshold in (0, None):
            assert_same(trip(one, threshold), one, str(dtype))
            assert_same(trip([one, one[:], one[:0]], threshold), [one, one[:], one[:0]], str(dtype))
    leaf = torch.ones(4, requires_grad=True)[::2][:1]
    assert_same(trip(leaf, 0), torch.ones(1))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 7), (), (1,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_empty_and_0d_tensors_stay_what_they_are_among_others(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    odd = random_tensor(dtype, *shape)
    for place, threshold in itertools.product(range(3), (0, 3, 4, 5, 11, 12, 13, 1 << 20, None)):
        message = [torch.arange(3.0), torch.arange(5, dtype=torch.int16)]
        message.insert(place, odd)
        arrays = [t.numpy() for t in message if t.dtype is not torch.bfloat16]
        assert_same(trip(message, threshold), message)
        assert_same(trip([message, arrays], threshold), [message, arrays])
        assert_same(trip(odd, threshold), odd)


@pytest.mark.parametrize("threshold", [None, 0, 256, 65536])
def test_sizes_around_every_limit(threshold: int | None) -> None:
    for nbytes in (255, 256, 257, 8191, 8192, 8193, 65535, 65536, 65537):
        tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
        message = {"a": tensor, "b": [tensor[1:], tensor.clone()], "c": torch.ones(1)}
        assert_same(trip(message, threshold), message, str(nbytes))
        assert_same(trip(tensor, threshold), tensor, str(nbytes))


def test_the_payload_of_a_bfloat16_tensor_is_two_bytes_an_element() -> None:
    frames = mmlab.Encoder(0).encode(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert payload_nbytes(frames) == 24


def test_nan_payloads_and_negative_zeros_are_kept() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x400001, -(1 << 31)], dtype=torch.int32)
    tensor = bits.view(torch.float32)
    assert raw(trip(tensor)) == raw(bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [4, 40, 4000])
def test_conjugates_and_negatives_arrive_as_they_were_meant(n: int) -> None:
    whole = torch.randn(n, 8, dtype=torch.complex64)
    conj, neg = whole.conj(), whole.conj().imag
    assert conj.is_conj() and neg.is_neg()
    for message in (conj, neg, [conj, neg], list(conj), list(neg), [conj[0], whole[0], conj[1]]):
        want = (
            [t.resolve_conj().resolve_neg() for t in message]
            if isinstance(message, list)
            else message.resolve_conj().resolve_neg()
        )
        assert_same(trip(message), want)
        assert_same(trip(message, 0), want)


def test_zero_tensors_that_have_no_memory_yet_are_zeros() -> None:
    zeros = [torch._efficientzerotensor((n,)) for n in (3, 3, 3, 3, 3, 5000)]
    assert_same(trip(zeros), [torch.zeros(3)] * 5 + [torch.zeros(5000)])


@pytest.mark.parametrize("n", [2, 5000])
def test_leaves_and_parameters_arrive_as_plain_values(n: int) -> None:
    leaf = torch.ones(n, requires_grad=True)
    parameter = torch.nn.Parameter(torch.full((n,), 2.0))
    got = trip({"leaf": leaf, "parameter": parameter, "result": leaf * 3})
    want = {
        "leaf": torch.ones(n),
        "parameter": torch.full((n,), 2.0),
        "result": torch.full((n,), 3.0),
    }
    assert_same(got, want)
    assert not any(t.requires_grad for t in got.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [[1] * 64, [2, 5000], [1] * 63 + [3000]], ids=len)
def test_many_dimensions(shape: list[int]) -> None:
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    for message in (tensor, [tensor, tensor.clone()]):
        assert_same(trip(message), message)


def test_an_expanded_tensor_costs_its_shape_and_arrives_dense() -> None:
    tensor = torch.arange(3.0).expand(1000, 3)
    frames = mmlab.Encoder(0).encode(tensor)
    assert payload_nbytes(frames) == 12_000
    assert_same(mmlab.Decoder().decode(frames), tensor.contiguous())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float8_e5m2, torch.complex128]
)
def test_a_dense_tensor_is_sent_from_and_received_where_it_lies(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 100, 200)
    frames = mmlab.Encoder().encode({"x": tensor})
    assert len(frames) == 2 and address(frames[1]) == tensor.data_ptr()
    (got,) = mmlab.Decoder().decode(frames).values()  # type: ignore[attr-defined]
    assert got.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("shift", [1, 2, 4, 8, 15])
def test_frames_at_odd_addresses_are_read_right(shift: int) -> None:
    message = [
        torch.randn(40, dtype=torch.complex128),
        torch.arange(3000.0),
        torch.ones(7, dtype=torch.bool),
    ]
    frames = mmlab.Encoder(0).encode(message)
    moved = []
    for frame in frames:
        room = torch.empty(len(frame) + 64, dtype=torch.uint8)
        start = -room.data_ptr() % 64 + shift
        view = room.numpy()[start : start + len(frame)].data
        view[:] = bytes(frame)
        moved.append(view)
    got = mmlab.Decoder().decode(moved)
    assert_same(got, message)
    assert all(t.data_ptr() % t.element_size() == 0 for t in got)  # type: ignore[attr-defined]
    inline = [bytes(64)[:shift] + bytes(f) for f in mmlab.Encoder(None).encode(message)]
    assert_same(mmlab.Decoder().decode([memoryview(f)[shift:] for f in inline]), message)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
def test_frames_of_any_buffer_are_taken(kind) -> None:  # type: ignore[no-untyped-def]
    message = {"a": torch.arange(5000.0), "b": torch.ones(3)}
    frames = [kind(bytes(frame)) for frame in mmlab.Encoder().encode(message)]
    assert_same(mmlab.Decoder().decode(frames), message)
    assert_same(mmlab.Decoder().decode(tuple(frames)), message)
    shaped = [memoryview(bytes(f) + bytes(-len(f) % 8)).cast("B") for f in frames]
    del shaped[0]
    assert_same(mmlab.Decoder().decode([frames[0], *(s.cast("Q") for s in shaped)]), message)


def test_a_subclass_without_memory_of_its_own_is_no_surprise() -> None:
    class Named(torch.Tensor):
        pass

    tensor = torch.arange(3.0).as_subclass(Named)
    assert_same(trip(tensor), torch.arange(3.0))


def test_numbers_of_a_float_message_keep_their_bits() -> None:
    nan = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
    assert_same(trip([nan, -0.0, 5e-324]), [nan, -0.0, 5e-324])


def test_a_run_of_equal_tensors_ends_where_another_stands_between_them() -> None:
    between: dict[str, object] = {
        "large": torch.arange(9000),
        "small": torch.arange(3),
        "empty": torch.empty(0),
        "array": np.arange(4),
        "dtype": torch.ones(5, dtype=torch.int32),
    }
    for name, other in between.items():
        for n in (1, 2, 20):
            rows = [torch.full((5,), float(i)) for i in range(2 * n)]
            sent = [*rows[:n], other, *rows[n:]]
            for threshold in (None, 0, 256):
                got = trip(sent, threshold)
                assert_same(got, sent, name)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("count", [1, 3, 20])
def test_negatives_of_complex32_arrive_in_any_number(count: int) -> None:
    half = torch.randn(6).half().view(torch.complex32)
    sent = [torch._neg_view(half) for _ in range(count)]
    got = trip(sent, 0)
    assert isinstance(got, list)
    for tensor in got:
        assert torch.equal(torch.view_as_real(tensor), -torch.view_as_real(half))
