"""The envelope: 32 bytes that can be read without the body, and every way they can be wrong."""

from __future__ import annotations

import struct

import msgspec
import pytest
import torch
from wire_messages import assert_same, envelope, message, record, ref

import mmlab
from mmlab import WireError
from mmlab.wire import Envelope, read_envelope

BODY = msgspec.msgpack.encode("text")


def decode(frames: object, **settings: object) -> object:
    return mmlab.Decoder(**settings).decode(frames)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [0, 1, 255])
@pytest.mark.parametrize("request_id", [0, 1, (1 << 64) - 1])
@pytest.mark.parametrize("obj", ["text", torch.arange(5), [torch.arange(5), torch.zeros(9000)]])
def test_kind_and_request_id_stand_in_front_of_every_message(
    obj: object, kind: int, request_id: int
) -> None:
    frames = mmlab.Encoder().encode(obj, kind=kind, request_id=request_id)
    found = read_envelope(frames[0])
    assert isinstance(found, Envelope)
    assert (found.version, found.kind, found.request_id) == (1, kind, request_id)
    assert_same(decode(frames), obj)


def test_kind_and_id_of_an_undecodable_message_can_be_read() -> None:
    frame = envelope(5, kind=7, request_id=99) + b"\xc1" * 5
    assert read_envelope(frame)[1:3] == (7, 99)
    with pytest.raises(WireError):
        decode([frame])


def test_the_layout_is_the_documented_one() -> None:
    (frame,) = mmlab.Encoder().encode("text", kind=3, request_id=0x0102)
    assert bytes(frame[:16]) == b"mmlb\x01\x03\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00"
    assert bytes(frame[32:]) == BODY


@pytest.mark.parametrize("size", [0, 1, 31])
def test_less_than_an_envelope_is_refused(size: int) -> None:
    frame = envelope(0)[:size]
    for act in (lambda: read_envelope(frame), lambda: decode([frame])):
        with pytest.raises(WireError, match=rf"frame 0: got {size} bytes, wanted .* 32"):
            act()


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (envelope(5, magic=b"\x80\x04\x95\x00") + BODY, r"frame 0: starts with .*, wanted b'mmlb'"),
        (envelope(5, version=0) + BODY, r"format version 0, this mmlab reads version 1"),
        (envelope(5, version=2) + BODY, r"format version 2, .*use the same mmlab on both sides"),
        (envelope(5, reserved=1) + BODY, r"reserved bits are 0x1"),
        (envelope(5, reserved=0x8000) + BODY, r"reserved bits are 0x8000"),
    ],
)
def test_another_format_is_refused_by_what_is_wrong(frame: bytes, error: str) -> None:
    for act in (
        lambda: read_envelope(frame),
        lambda: decode([frame]),
        lambda: decode([frame, b""]),
    ):
        with pytest.raises(WireError, match=error):
            act()


TABLE = record(2, [4])
REF = ref(0)


@pytest.mark.parametrize(
    "frames",
    [
        [envelope(4) + BODY],
        [envelope(6) + BODY],
        [envelope(5) + BODY + b"\x00"],
        [envelope((1 << 32) - 1) + BODY],
        [envelope(5, table=1) + BODY],
        [envelope(5, table=(1 << 32) - 1) + BODY],
        [envelope(5, inline=1) + BODY],
        [envelope(5, inline=(1 << 64) - 1) + BODY],
        [envelope(len(REF), len(TABLE)) + REF + TABLE],
        [envelope(len(REF), len(TABLE)) + REF + TABLE + b"\x00", bytes(4)],
        [envelope(len(REF), len(TABLE) - 1) + REF + TABLE[:-1], bytes(4)],
        [envelope(len(REF) - 1, len(TABLE)) + REF + TABLE, bytes(4)],
        [message(REF, record(2, [4], 0), bytes(4))[0] + b"\x00"],
        [message(REF, record(2, [4], 0), bytes(4))[0][:-1]],
    ],
)
def test_sizes_that_do_not_add_up_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode(frames)


def test_a_header_of_more_than_16_mib_is_refused() -> None:
    body = msgspec.msgpack.encode(bytes(16 << 20))
    for frames in ([envelope(len(body)) + body], [envelope(len(body)) + body, b"x"]):
        with pytest.raises(WireError, match="16777216"):
            decode(frames)


def test_more_bytes_than_the_decoder_takes_are_refused_with_both_numbers() -> None:
    for obj in ("x" * 1000, torch.zeros(9000), [torch.zeros(3)] * 3):
        frames = mmlab.Encoder().encode(obj)
        total = sum(memoryview(f).nbytes for f in frames)
        assert_same(decode(frames, max_nbytes=total), obj)
        with pytest.raises(WireError, match=rf"message has {total} B, at most {total - 1} B"):
            decode(frames, max_nbytes=total - 1)


@pytest.mark.parametrize(
    "frames",
    [[], (), None, 3, b"mmlb", bytearray(40), memoryview(b"x" * 40), "text", [None], ["a"]],
)
def test_what_is_no_list_of_frames_is_refused(frames: object) -> None:
    with pytest.raises(WireError):
        decode(frames)


def test_frames_that_are_no_bytes_are_refused_or_read_as_bytes() -> None:
    gaps = memoryview(bytes(80))[::2]
    with pytest.raises(WireError):
        decode([gaps])
    with pytest.raises(WireError):
        decode([*message(REF, TABLE), gaps])
    numbers = struct.pack("<4I", 1, 2, 3, 4)
    got = decode([*message(REF, record(6, [4])), memoryview(numbers).cast("I")])
    assert_same(got, torch.tensor([1, 2, 3, 4], dtype=torch.uint32))


def test_a_message_without_its_last_frames_says_that_they_are_missing() -> None:
    sent = {"a": torch.ones(5000), "b": torch.ones(9000)}
    frames = [bytes(frame) for frame in mmlab.Encoder(0).encode(sent)]
    for n in (1, 2):
        with pytest.raises(WireError, match=r"the message has .* some are missing"):
            mmlab.Decoder().decode(frames[:n])


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "frames: got none"),
        (None, "frames: got NoneType, wanted a list"),
        (7, "frames: got int, wanted a list"),
        (["a"], "frame 0: got str, wanted bytes"),
        ([mmlab.Encoder().encode(torch.ones(99))[0], None], "frame 1: got NoneType, wanted bytes"),
    ],
)
def test_what_is_no_message_at_all_is_said_in_plain_words(frames: object, said: str) -> None:
    with pytest.raises(WireError, match=said):
        mmlab.Decoder().decode(frames)  # type: ignore[arg-type]


def test_a_pickle_is_refused_wherever_it_stands(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import pickle

    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(marker), "w"))

    bomb = pickle.dumps(Bomb())
    ext_bomb = msgspec.msgpack.encode(msgspec.msgpack.Ext(2, bomb))
    for frames in (
        [bomb],
        message(bomb),
        message(ext_bomb),
        message(REF, TABLE, frames=[bomb[:3]]),
    ):
        with pytest.raises(WireError):
            decode(frames)
    assert not marker.exists()
