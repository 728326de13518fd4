"""Small tensors of a batch: one staging buffer, one copy, each with its own bytes again."""

from __future__ import annotations

import pytest
import torch
from staging_fakes import FakeDevice

import mmlab
from mmlab.staging import PinnedBatcher, PinnedPool
from mmlab.staging.layout import SMALL


def pairs_of(values: dict[str, torch.Tensor]) -> list[tuple[str, mmlab.KwargsItem | None]]:
    config = {key: mmlab.batched("image") for key in values}
    return mmlab.KwargsItems.from_processor(values, config).pairs()


@pytest.mark.parametrize("mode", ["pin-after", "pinned", "pool", "direct"])
def test_small_keys_go_by_one_copy_and_large_ones_by_their_own(mode: str) -> None:
    device = FakeDevice()
    values = {
        "large": torch.rand(2, SMALL // 4),
        "a": torch.rand(2, 3),
        "mask": torch.tensor([[True], [False]]),
        "none": torch.empty(2, 0, 5),
        "ids": torch.arange(14).view(2, 7),
        "other": torch.rand(2, SMALL // 4),
        "half": torch.rand(2, 9).bfloat16(),
    }
    with PinnedBatcher(device, mode=mode, timeout=0) as batcher:
        staged = batcher.stage(pairs_of(values))
        assert len(device.copies) == 3
        assert staged.nbytes == sum(value.nbytes for value in values.values())
        device.complete_all()
        for key, value in values.items():
            found = staged.kwargs[key]
            assert isinstance(found, torch.Tensor)
            assert found.dtype == value.dtype
            assert torch.equal(found, value)
        assert list(staged.kwargs) == list(values)
        assert device.faults == []


def test_one_small_key_alone_is_no_bundle() -> None:
    device = FakeDevice()
    values = {"a": torch.rand(2, 3), "large": torch.rand(2, SMALL)}
    with PinnedBatcher(device, PinnedPool(1 << 20, device=device)) as batcher:
        staged = batcher.stage(pairs_of(values))
        device.complete_all()
        assert len(device.copies) == 2
        assert torch.equal(staged.kwargs["a"], values["a"])  # type: ignore[arg-type]


def test_the_buffer_is_not_filled_again_before_the_copy_of_all_has_finished() -> None:
    device = FakeDevice()
    pool = PinnedPool(1 << 12, device=device)
    with PinnedBatcher(device, pool, timeout=0) as batcher:
        first = batcher.stage(pairs_of({"a": torch.full((2, 300), 1.0), "b": torch.zeros(2, 1)}))
        with pytest.raises(mmlab.BackpressureTimeout):
            batcher.stage(pairs_of({"a": torch.full((2, 300), 2.0), "b": torch.ones(2, 1)}))
        device.complete_all()
        second = batcher.stage(pairs_of({"a": torch.full((2, 300), 2.0), "b": torch.ones(2, 1)}))
        device.complete_all()
        assert torch.equal(first.kwargs["b"], torch.zeros(2, 1))  # type: ignore[arg-type]
        assert torch.equal(second.kwargs["b"], torch.ones(2, 1))  # type: ignore[arg-type]
