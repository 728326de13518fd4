"""Threads, nested calls and lifetimes: no frame is wrong, no memory goes while it is looked at."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch
from wire_messages import assert_same, message, owned, ref

import mmlab
from mmlab import BatchedField, FieldElem, KwargsItem, KwargsItems
from mmlab.wire import FrameSink

THREADS = 8


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def hammer(messages: int) -> None:
    """`messages` in all, by eight threads on one Encoder and one Decoder, contents checked."""
    encoder, decoder = mmlab.Encoder(64), mmlab.Decoder()
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def work(thread: int) -> None:
        try:
            start.wait()
            for n in range(messages // THREADS):
                tag = thread * 1_000_000 + n
                kind = n % 4
                if kind == 0:
                    obj: object = [torch.tensor([tag, i]) for i in range(3)] + [np.array([tag])]
                elif kind == 1:
                    obj = torch.full((20,), tag)
                elif kind == 2:
                    obj = {"tag": tag, "text": str(tag)}
                else:
                    obj = KwargsItems(
                        {
                            "i": [KwargsItem({"x": FieldElem(torch.tensor([tag]), BatchedField())})]
                            * 2
                        }
                    )
                frames = encoder.encode(obj, kind=kind, request_id=tag)
                assert mmlab.wire.read_envelope(frames[0])[1:3] == (kind, tag)
                got = decoder.decode(frames)
                if kind == 0:
                    assert [t.tolist() for t in got] == [[tag, 0], [tag, 1], [tag, 2], [tag]]  # type: ignore[attr-defined]
                elif kind == 1:
                    assert got.tolist() == [tag] * 20  # type: ignore[attr-defined]
                elif kind == 2:
                    assert got == obj
                else:
                    assert got["i"][1]["x"].data.tolist() == [tag]  # type: ignore[index]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_eight_threads_share_an_encoder_and_a_decoder(switching: None) -> None:
    hammer(20_000)


@pytest.mark.large
@pytest.mark.timeout(600)
def test_eight_threads_exchange_100000_messages(switching: None) -> None:
    hammer(100_000)


def test_threads_may_read_the_lazy_items_of_one_message(switching: None) -> None:
    parts = [torch.full((3000,), float(i)) for i in range(40)]
    items = KwargsItems({"i": [KwargsItem({"x": FieldElem(p, BatchedField())}) for p in parts]})
    frames = owned(mmlab.Encoder().encode(items))
    for copy in (False, True):
        got = mmlab.Decoder(copy=copy).decode(frames)
        wrong: list[int] = []

        def read() -> None:
            for i, item in enumerate(got["i"]):  # type: ignore[index]  # noqa: B023
                if not (item["x"].data == i).all():
                    wrong.append(i)  # noqa: B023

        threads = [threading.Thread(target=read) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class Nested(msgspec.Struct):
    """Decodes another message while it is being decoded itself."""

    inner: bytes
    tensor: torch.Tensor
    got: object = None

    def __post_init__(self) -> None:
        if self.inner and self.got is None:
            frames = msgspec.msgpack.decode(self.inner)
            self.got = decoder.decode(frames)


decoder = mmlab.Decoder()
nested_decoder = mmlab.Decoder(list[Nested])


def test_a_decode_inside_a_decode_keeps_both_messages_apart() -> None:
    inner = [torch.full((4,), 7.0), KwargsItem({"x": FieldElem(torch.ones(2), BatchedField())})]
    packed = msgspec.msgpack.encode(owned(mmlab.Encoder().encode(inner)))
    plain = msgspec.msgpack.encode(owned(mmlab.Encoder().encode("no tensor")))
    outer = [
        Nested(packed, torch.zeros(3), 0),
        Nested(plain, torch.ones(3), 0),
        Nested(b"", torch.full((3,), 2.0), 0),
    ]
    for one in outer:
        one.got = None  # from here on, a decode of it decodes what is inside
    got = nested_decoder.decode(owned(mmlab.Encoder().encode(outer)))
    assert [n.tensor.tolist() for n in got] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]  # type: ignore[attr-defined]
    assert_same(got[0].got[0], inner[0])  # type: ignore[index]
    assert got[0].got[1] == inner[1] and got[1].got == "no tensor"  # type: ignore[index]


class Angry(msgspec.Struct):
    tensor: torch.Tensor

    def __post_init__(self) -> None:
        raise RuntimeError("no")


def test_a_decode_that_fails_leaves_nothing_for_the_next_one() -> None:
    frames = owned(mmlab.Encoder().encode({"tensor": torch.ones(2)}))
    with pytest.raises(mmlab.WireError, match="no"):
        mmlab.Decoder(Angry).decode(frames)
    (text,) = mmlab.Encoder().encode("text")
    assert mmlab.Decoder().decode([text]) == "text"
    with pytest.raises(mmlab.WireError, match="without a tensor table"):
        mmlab.Decoder().decode(message(ref(0)))


class EncodingSink(FrameSink):
    """Encodes another message while its own is being placed."""

    def __init__(self, encoder: mmlab.Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.inner: list[object] = []

    def place(self, pieces):  # type: ignore[no-untyped-def]
        self.inner = self.encoder.encode([torch.full((9,), 9.0), np.ones(3)])
        return super().place(pieces)


def test_an_encode_inside_an_encode_keeps_both_messages_apart() -> None:
    encoder = mmlab.Encoder(0)
    sink = EncodingSink(encoder)
    obj = [torch.arange(5), torch.arange(9000), np.arange(4)]
    frames = encoder.encode(obj, sink=sink)
    assert_same(mmlab.Decoder().decode(frames), obj)
    assert_same(mmlab.Decoder().decode(sink.inner), [torch.full((9,), 9.0), np.ones(3)])  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [3, 60_000])
def test_decoded_tensors_keep_their_frames_alive(n: int) -> None:
    frames = owned(mmlab.Encoder(0).encode({"a": torch.arange(n), "b": np.arange(n)}))
    got = mmlab.Decoder().decode(frames)
    del frames
    gc.collect()
    churn = [bytes([0xEE]) * (n * 8) for _ in range(20)]
    assert_same(got, {"a": torch.arange(n), "b": np.arange(n)})
    del churn


def test_decoded_items_keep_their_frames_alive_even_where_they_are_not_made_yet() -> None:
    parts = [torch.full((3000,), float(i)) for i in range(4)]
    items = KwargsItems({"i": [KwargsItem({"x": FieldElem(p, BatchedField())}) for p in parts]})
    frames = owned(mmlab.Encoder().encode(items))
    got = mmlab.Decoder().decode(frames)
    del frames
    gc.collect()
    churn = [bytes([0xEE]) * 12_000 for _ in range(20)]
    assert got == items
    one = got["i"][2]["x"].data  # type: ignore[index]
    del got, churn
    gc.collect()
    churn = [bytes([0xEE]) * 12_000 for _ in range(20)]
    assert (one == 2).all() and churn


@pytest.mark.parametrize("n", [3, 60_000])
def test_encoded_frames_keep_the_tensors_memory_alive(n: int) -> None:
    tensors = {"a": torch.arange(n), "b": np.arange(n), "c": torch.arange(2 * n)[::2]}
    want = {"a": torch.arange(n), "b": np.arange(n), "c": torch.arange(2 * n)[::2]}
    frames = mmlab.Encoder(0).encode(tensors)
    del tensors
    gc.collect()
    churn = [torch.full((n,), -1) for _ in range(20)]
    assert_same(mmlab.Decoder().decode(frames), want)
    del churn


def test_frames_are_let_go_with_the_last_tensor_that_looks_at_them() -> None:
    frames = [bytearray(f) for f in mmlab.Encoder().encode(torch.arange(9000))]
    got = mmlab.Decoder().decode(frames)
    with pytest.raises(BufferError):
        frames[1].append(0)
    del got
    gc.collect()
    frames[1].append(0)


def test_a_copy_owns_its_bytes() -> None:
    message = {"a": torch.arange(3), "b": torch.arange(9000), "c": np.arange(4)}
    frames = [bytearray(f) for f in mmlab.Encoder(0).encode(message)]
    got = mmlab.Decoder(copy=True).decode(frames)
    for frame in frames:
        frame[:] = bytes(len(frame))
        frame.append(0)  # no view of it is left
    assert_same(got, message)
    assert got["a"].untyped_storage().nbytes() == 24  # type: ignore[index]
    got["c"][0] = 5  # type: ignore[index]


def test_encoding_leaves_the_message_as_it_was() -> None:
    leaf = torch.ones(3, requires_grad=True)
    strided = torch.arange(6).reshape(2, 3).t()
    message = [leaf, strided, {"a": (1, leaf)}]
    before = (leaf.clone(), strided.stride(), strided.clone())
    mmlab.Encoder(0).encode(message)
    assert leaf.requires_grad and leaf.grad is None and torch.equal(leaf, before[0])
    assert strided.stride() == before[1] and torch.equal(strided, before[2])
    assert message == [leaf, strided, {"a": (1, leaf)}]
