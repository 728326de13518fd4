"""Payload beyond the limits of msgpack (2**32 - 1) and of 32-bit sizes travels like any other."""

from __future__ import annotations

import psutil
import pytest
import torch
from wire_messages import address, header_nbytes

import mmlab

NBYTES = (4 << 30) + 1


@pytest.mark.large
@pytest.mark.timeout(300)
@pytest.mark.parametrize("threshold", [256, None], ids=["out of band", "inside frame 0"])
def test_a_tensor_of_4_gib_and_a_byte_arrives(threshold: int | None) -> None:
    if psutil.virtual_memory().available < 10 << 30:
        pytest.skip("needs 10 GiB of free memory")
    tensor = torch.zeros(NBYTES, dtype=torch.uint8)
    tensor[0], tensor[1 << 32], tensor[(1 << 31) - 1] = 1, 2, 3
    frames = mmlab.Encoder(threshold).encode({"x": tensor, "y": torch.ones(2)})
    if threshold is not None:
        assert len(frames) == 2 and header_nbytes(frames) < 1024
        assert address(frames[1]) == tensor.data_ptr()
    got = mmlab.Decoder().decode(frames)["x"]  # type: ignore[index]
    del frames
    assert got.shape == (NBYTES,)
    assert [int(got[i]) for i in (0, 1 << 32, (1 << 31) - 1, 1)] == [1, 2, 3, 0]
    assert int(got[:: 1 << 20].sum()) == 3


@pytest.mark.large
@pytest.mark.timeout(300)
def test_a_body_of_4_gib_is_refused_where_it_is_sent() -> None:
    """Bytes in the body are msgpack's: the limit is named by the encoder, not met by the engine."""
    if psutil.virtual_memory().available < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    with pytest.raises(mmlab.EncodeError, match=r"dict\['x'\]: 4294967297 B cannot be carried"):
        mmlab.Encoder().encode({"x": bytes(NBYTES)})
