"""Staging on a CPU: what exists is passed through, what is written stays valid while it is held."""

from __future__ import annotations

import pytest
import torch
from staging_fakes import Pairs, images

import mmlab
from mmlab.errors import BackpressureTimeout, BatchError, MMLabError, UsageError
from mmlab.fields import FieldElem, KwargsItem
from mmlab.staging import MODES, PinnedBatcher, PinnedPool

KIB = 1 << 10


@pytest.fixture
def pool() -> PinnedPool:
    return PinnedPool(64 * KIB, pin=False)


@pytest.mark.parametrize("mode", MODES)
def test_batch_that_exists_is_passed_through_without_a_copy(mode: str) -> None:
    pixels = torch.rand(4, 3, 8, 8)
    items = mmlab.KwargsItems.from_processor(
        {"pixel_values": pixels}, {"pixel_values": mmlab.batched("image")}
    )
    with PinnedBatcher("cpu", mode=mode) as batcher:
        staged = batcher.stage(items.pairs())
        out = staged.kwargs["pixel_values"]
        assert isinstance(out, torch.Tensor)
        assert out.data_ptr() == pixels.data_ptr()
        assert out.shape == pixels.shape
        assert (staged.copies, staged.copied_nbytes, staged.nbytes) == (0, 0, pixels.nbytes)
        part = batcher.stage(items.pairs()[1:3]).kwargs["pixel_values"]
        assert isinstance(part, torch.Tensor)
        assert part.data_ptr() == pixels[1].data_ptr()
        if (stats := batcher.stats()) is not None:
            assert stats.allocations == 0


@pytest.mark.parametrize("mode", MODES)
def test_separate_items_are_written_once_each_mode_alike(mode: str) -> None:
    with PinnedBatcher("cpu", mode=mode) as batcher:
        staged = batcher.stage(images(1, 2, 3))
        (batch,) = staged.batches
        assert (batch.modality, batch.num_items, batch.indices) == ("image", 3, [0, 1, 2])
        pixels = batch.kwargs["pixel_values"]
        assert isinstance(pixels, torch.Tensor)
        assert pixels.shape == (3, 3, 8, 8)
        assert pixels[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert staged.device == torch.device("cpu")
        assert (staged.pinned, staged.copies, staged.copied_nbytes) == (False, 1, pixels.nbytes)
        assert staged.wait() is staged
        assert staged.done()


def test_batch_is_written_into_pool_memory(pool: PinnedPool) -> None:
    batcher = PinnedBatcher("cpu", pool)
    staged = batcher.stage(images(1, 2))
    address = staged.kwargs["pixel_values"].data_ptr()  # type: ignore[attr-defined]
    assert pool.stats().live == 1
    staged.release()
    assert pool.stats().live == 0
    again = batcher.stage(images(3, 4))
    assert again.kwargs["pixel_values"].data_ptr() == address  # type: ignore[attr-defined]
    assert batcher.stats() == pool.stats()
    assert pool.stats().allocations == 1


def test_tensors_stay_valid_as_long_as_they_are_held(pool: PinnedPool) -> None:
    batcher = PinnedBatcher("cpu", pool, timeout=0)
    staged = batcher.stage(images(7, 8))
    view = staged.kwargs["pixel_values"][1, 0]  # type: ignore[index]
    staged.release()
    with pytest.raises(MMLabError, match="after release"):
        _ = staged.kwargs
    del staged
    held = []
    with pytest.raises(BackpressureTimeout, match="handed out"):
        for value in range(100):
            held.append(batcher.stage(images(value, value)))
    assert view.tolist() == [[8.0] * 8] * 8
    for value, earlier in enumerate(held):
        pixels = earlier.kwargs["pixel_values"]
        assert isinstance(pixels, torch.Tensor)
        assert torch.all(pixels == value)
    del held, earlier, pixels, view
    assert pool.stats().live == 0


def test_engine_loop_needs_memory_for_two_batches_and_not_more(pool: PinnedPool) -> None:
    batcher = PinnedBatcher("cpu", pool, timeout=0)
    for value in range(50):
        staged = batcher.stage(images(value, value + 1))  # the last one is still referenced here
        assert staged.kwargs["pixel_values"][1, 0, 0, 0] == value + 1  # type: ignore[index]
    assert pool.stats().allocations == 2


def test_keys_that_stay_on_the_cpu_are_untouched(pool: PinnedPool) -> None:
    crops = torch.tensor([4, 1])
    items = mmlab.KwargsItems.from_processor(
        {"pixel_values": torch.rand(2, 3), "num_crops": crops},
        {
            "pixel_values": mmlab.batched("image"),
            "num_crops": mmlab.batched("image", keep_on_cpu=True),
        },
    )
    out = PinnedBatcher("cpu", pool).stage(items.pairs()).kwargs["num_crops"]
    assert isinstance(out, torch.Tensor)
    assert out.data_ptr() == crops.data_ptr()


def test_mixed_modalities_and_shapes_form_batches_in_order(pool: PinnedPool) -> None:
    audio = KwargsItem(
        {"features": FieldElem(torch.full((5,), 9.0), mmlab.flat("audio", sizes=[1]).field)}
    )
    pairs: Pairs = [*images(1, 2), ("audio", audio), ("audio", audio), *images(3)]
    staged = PinnedBatcher("cpu", pool).stage(pairs)
    assert [(b.modality, b.num_items, b.indices) for b in staged.batches] == [
        ("image", 2, [0, 1]),
        ("audio", 2, [2, 3]),
        ("image", 1, [4]),
    ]
    features = staged.batches[1].kwargs["features"]
    assert isinstance(features, torch.Tensor)
    assert features.tolist() == [9.0] * 10
    assert features.data_ptr() % 64 == 0
    assert pool.stats().live == 1  # one buffer for all that must live together
    with pytest.raises(BatchError, match=r"3 batches, wanted 1; read \.batches"):
        _ = staged.kwargs


def test_ragged_batches_are_lists_in_order(pool: PinnedPool) -> None:
    pairs = [*images(1), *images(2, shape=(3, 4, 4))]
    out = PinnedBatcher("cpu", pool).stage(pairs).kwargs["pixel_values"]
    assert isinstance(out, list)
    assert [tuple(t.shape) for t in out] == [(3, 8, 8), (3, 4, 4)]
    assert [t.data_ptr() for t in out] == [
        item["pixel_values"].data.data_ptr()  # type: ignore[union-attr, index]
        for _, item in pairs
    ]


def test_nothing_to_stage(pool: PinnedPool) -> None:
    staged = PinnedBatcher("cpu", pool).stage([("image", None)])
    assert staged.batches == []
    assert staged.kwargs == {}
    assert staged.timings["h2d"] == 0.0


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0, 3)])
def test_every_dtype_and_shape_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    field = mmlab.batched("image").field
    raw = [torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8) for _ in range(3)]
    tensors = [r.view(dtype).view(shape) for r in raw]
    pairs = [
        ("image", KwargsItem({"a": FieldElem(t, field), "b": FieldElem(t.clone(), field)}))
        for t in tensors
    ]
    with PinnedBatcher("cpu") as batcher:
        kwargs = batcher.stage(pairs).kwargs
    for key in ("a", "b"):
        out = kwargs[key]
        assert isinstance(out, torch.Tensor)
        assert (out.dtype, out.shape) == (dtype, (3, *shape))
        wanted = torch.stack([r.reshape(-1) for r in raw]).reshape(-1)
        assert out.reshape(-1).view(torch.uint8).tolist() == wanted.tolist()


def test_batch_larger_than_the_pool_is_refused_with_both_numbers() -> None:
    batcher = PinnedBatcher("cpu", PinnedPool(1000, pin=False))
    with pytest.raises(BatchError, match=r"stage\(2 image\).* 1536 B wanted.* has 1000 B"):
        batcher.stage(images(1, 2))


@pytest.mark.parametrize("mode", MODES)
def test_exception_in_mid_batch_returns_the_buffer(
    mode: str, pool: PinnedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmlab.reducers.reduction import Reduction

    batcher = PinnedBatcher("cpu", pool if mode == "pool" else None, mode=mode, timeout=0)
    run = Reduction.run

    def fail(self: Reduction, out: torch.Tensor | None = None) -> object:
        result = run(self, out)
        if self.plan is not None and self.plan.key == "image.pixel_values":
            raise RuntimeError("reducer failed")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Reduction, "run", fail)
        with pytest.raises(RuntimeError, match="reducer failed") as caught:
            batcher.stage(images(1, 2))
    if mode == "pool":
        assert pool.stats().allocations == 1
        assert pool.stats().live == 0  # though `caught` keeps the frames, and the tensors in them
    assert caught.value.__traceback__ is not None
    assert batcher.stage(images(5, 6)).kwargs["pixel_values"][0, 0, 0, 0] == 5  # type: ignore[index]


def test_gradients_are_left_behind(pool: PinnedPool) -> None:
    field = mmlab.batched("image").field
    pairs = [
        ("image", KwargsItem({"x": FieldElem(torch.full((2,), 1.0, requires_grad=True), field)}))
        for _ in range(2)
    ]
    out = PinnedBatcher("cpu", pool).stage(pairs).kwargs["x"]
    assert isinstance(out, torch.Tensor)
    assert not out.requires_grad
    assert out.tolist() == [[1.0, 1.0]] * 2


def test_timings_are_seconds_of_every_step(pool: PinnedPool) -> None:
    timings = PinnedBatcher("cpu", pool).stage(images(1, 2)).timings
    assert set(timings) == {"acquire", "reduce", "h2d"}
    assert timings["h2d"] == 0.0
    assert 0 < timings["reduce"] < 1
    assert 0 < timings["acquire"] < 1


def test_closing_the_batcher_closes_only_its_own_pool(pool: PinnedPool) -> None:
    with PinnedBatcher("cpu", pool) as batcher:
        pass
    assert batcher.stage(images(1, 2)).copies == 1
    with PinnedBatcher("cpu") as own:
        staged = own.stage(images(3, 4))
    assert staged.kwargs["pixel_values"][1, 0, 0, 0] == 4  # type: ignore[index]
    with pytest.raises(MMLabError, match="after close"):
        own.stage(images(1, 2))


def test_unknown_settings_are_named() -> None:
    with pytest.raises(UsageError, match="unknown staging mode 'pol': did you mean 'pool'"):
        PinnedBatcher("cpu", mode="pol")
    for device in ("gpu", "meta", "cpu:x"):
        with pytest.raises(UsageError, match=f"unknown device '{device}'"):
            PinnedBatcher(device)
    with pytest.raises(UsageError, match="a pool was given together with mode='pageable'"):
        PinnedBatcher("cpu", PinnedPool(1, pin=False), mode="pageable")
