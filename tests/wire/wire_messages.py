"""Messages by hand, and comparisons by bytes, for the tests of the wire.

The layouts are written down here a second time on purpose: a change of format must not pass
unnoticed because both sides of a test changed with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch

import mmlab
from mmlab.dtypes import copyable

Buffer = bytes | bytearray | memoryview
RECORD = "<BBHIQI"  # code, dimensions, zero, frame, offset, count; extents (u64) follow


def envelope(
    body: int,
    table: int = 0,
    inline: int = 0,
    *,
    magic: bytes = b"mmlb",
    version: int = 1,
    kind: int = 0,
    reserved: int = 0,
    request_id: int = 0,
) -> bytes:
    return struct.pack(
        "<4sBBHQIIQ", magic, version, kind, reserved, request_id, body, table, inline
    )


def message(
    body: bytes, table: bytes = b"", inline: bytes = b"", frames: Sequence[Buffer] = ()
) -> list[Buffer]:
    """A message whose sizes are right, whatever stands in it."""
    head = envelope(len(body), len(table), len(inline)) + body + table
    if inline:
        head += bytes(-len(head) % 64) + inline
    return [head, *frames]


def record(
    code: int,
    shape: Sequence[int],
    frame: int = 1,
    offset: int = 0,
    count: int = 1,
    *,
    zero: int = 0,
    ndim: int | None = None,
) -> bytes:
    """One record of the tensor table."""
    n = len(shape) if ndim is None else ndim
    return struct.pack(RECORD, code, n, zero, frame, offset, count) + struct.pack(
        f"<{len(shape)}Q", *shape
    )


WIDE = 1 << 63  # added to the numbers of tensors inside values


def ext(code: int, data: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def ref(number: int) -> bytes:
    """A reference to a tensor."""
    return ext(1, struct.pack("<Q", number))


def value(packed: object) -> bytes:
    """A tagged value."""
    return ext(2, msgspec.msgpack.encode(packed))


def items(spec: object) -> bytes:
    return ext(3, msgspec.msgpack.encode(spec))


def item(spec: object) -> bytes:
    return ext(4, msgspec.msgpack.encode(spec))


def address(buffer: Buffer) -> int:
    """Where the bytes of a buffer begin."""
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def header_nbytes(frames: Sequence[Buffer]) -> int:
    return len(frames[0])


def payload_nbytes(frames: Sequence[Buffer]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames[1:])


def owned(frames: Sequence[Buffer]) -> list[bytes]:
    """The frames as they arrive elsewhere: bytes in other memory."""
    return [bytes(frame) for frame in frames]


def trip(obj: object, threshold: int | None = 256, **decoder: object) -> object:
    """`obj` as it comes out on the other side."""
    frames = mmlab.Encoder(threshold).encode(obj)
    return mmlab.Decoder(**decoder).decode(owned(frames))  # type: ignore[arg-type]


def decode(frames: list[Buffer], **settings: object) -> object:
    return mmlab.Decoder(**settings).decode(frames)  # type: ignore[arg-type]


def refused(frames: list[Buffer], error: str = ".") -> None:
    """However the frames are decoded, they are a WireError."""
    for settings in ({}, {"copy": True}, {"type": object}):
        with pytest.raises(mmlab.WireError, match=error):
            decode(frames, **settings)


def raw(tensor: torch.Tensor) -> bytes:
    """The values of a tensor as bytes, in row-major order."""
    plain = copyable(tensor.detach().resolve_conj().resolve_neg()).contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every bit pattern of the dtype may occur, NaNs included; bools are 0 or 1."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    ends = 2 if dtype is torch.bool else 256
    data = torch.randint(0, ends, (nbytes,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape) if nbytes else torch.empty(shape, dtype=dtype)


def assert_same(got: object, want: object, path: str = "") -> None:
    """Type, dtype, shape and bytes agree, everywhere in a nested value."""
    assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        assert raw(got) == raw(want), path
    elif isinstance(want, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path  # type: ignore[union-attr]
        assert got.tobytes() == want.tobytes(), path  # type: ignore[union-attr]
    elif isinstance(want, dict):
        assert isinstance(got, dict) and list(got) == list(want), path
        for key, part in want.items():
            assert_same(got[key], part, f"{path}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), path  # type: ignore[arg-type]
        for i, (a, b) in enumerate(zip(got, want, strict=True)):  # type: ignore[call-overload]
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(want, float):
        assert struct.pack("<d", got) == struct.pack("<d", want), path
    elif isinstance(want, slice):
        assert_same([got.start, got.stop, got.step], [want.start, want.stop, want.step], path)  # type: ignore[attr-defined]
    else:
        assert got == want, path
