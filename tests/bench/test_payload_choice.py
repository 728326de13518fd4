"""Which strategies a run takes by itself, and what tensors a trial sends for each payload."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab.bench import validate
from mmlab.bench.media.tensors import pixel_values
from mmlab.bench.spec import RunSettings
from mmlab.errors import UsageError
from mmlab.strategies import strategies


def test_by_itself_a_run_compares_what_sends_the_same_bytes() -> None:
    chosen = validate.parse_strategies("", "cpu")
    assert chosen == ("pickle", "msgpack-inline", "msgpack", "arena")
    assert {strategies()[name].payload for name in chosen} == {"float32"}
    assert validate.parse_strategies("arena-uint8, msgpack") == ("arena-uint8", "msgpack")


def test_the_budget_is_compared_with_the_largest_payload_of_the_strategies() -> None:
    nbytes = 32 * 3 * 896 * 896

    def check(*names: str) -> None:
        settings = RunSettings(
            strategies=names, device="cpu", model="echo", max_inflight_nbytes=nbytes
        )
        validate.validate(settings)

    check("arena-uint8")
    with pytest.raises(UsageError, match=f"{4 * nbytes} bytes.* over the budget"):
        check("arena-uint8", "arena")


def test_tensors_of_every_payload_are_of_the_same_photographs() -> None:
    images = [np.random.default_rng(n).integers(0, 256, (30, 40, 3), np.uint8) for n in range(2)]
    floats = pixel_values(images, 64)
    raw = pixel_values(images, 64, torch.uint8)
    assert raw.dtype == torch.uint8 and raw.shape == floats.shape == (2, 3, 64, 64)
    assert torch.equal((raw.float() - 127.5) / 127.5, floats)
    assert torch.equal(pixel_values(images, 64, torch.bfloat16), floats.to(torch.bfloat16))
