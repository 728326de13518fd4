"""Large batches are copied part by part past the caches; no byte differs, and none is beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from staging_fakes import FakeDevice, images

import mmlab
from mmlab.arena import stream
from mmlab.fields import FieldElem, KwargsItem
from mmlab.staging import PinnedBatcher, PinnedPool, writing
from mmlab.staging.writing import MOST_THREADS, PART_NBYTES

LARGE = stream.LARGE
Pairs = list[tuple[str, KwargsItem | None]]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all parts that were copied one by one."""
    seen: list[int] = []
    copy = stream.copy

    def watched(out: np.ndarray, source: np.ndarray, *, large: int = LARGE) -> None:
        seen.append(out.nbytes)
        copy(out, source, large=large)

    monkeypatch.setattr(writing.stream, "copy", watched)
    return seen


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_bytes(nbytes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))


def pairs_of(tensors: list[torch.Tensor], **options: bool) -> Pairs:
    field = mmlab.batched("image", **options).field
    return [("image", KwargsItem({"x": FieldElem(t, field)})) for t in tensors]


def staged_bytes(pairs: Pairs) -> tuple[torch.Tensor, PinnedPool]:
    pool = PinnedPool(16 * LARGE, pin=False)
    out = PinnedBatcher("cpu", pool).stage(pairs).kwargs["x"]
    assert isinstance(out, torch.Tensor)
    assert pool.stats().allocations == 1  # it lies in the pool
    return out.contiguous().view(-1).view(torch.uint8), pool


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("beyond", [0, 1, 63, 64, 127, 128, 129])
def test_every_byte_arrives_and_none_beside_it(beyond: int, parts: list[int]) -> None:
    nbytes = LARGE + beyond
    raw = [random_bytes(nbytes, seed) for seed in range(3)]
    out, _ = staged_bytes(pairs_of(raw))
    assert torch.equal(out, torch.cat(raw))
    assert parts == [nbytes] * 3


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.complex64],
)
def test_bits_are_kept_for_every_dtype(dtype: torch.dtype, parts: list[int]) -> None:
    raw = [random_bytes(LARGE, seed) for seed in range(2)]
    if dtype == torch.bool:
        raw = [r & 1 for r in raw]
    out, _ = staged_bytes(pairs_of([r.view(dtype) for r in raw]))
    assert torch.equal(out, torch.cat(raw))
    assert parts == [LARGE] * 2


@pytest.mark.usefixtures("one_thread")
def test_flat_parts_of_unequal_size_find_their_places(parts: list[int]) -> None:
    raw = [random_bytes(n * 1000, n) for n in (3000, 1, 2500)]
    field = mmlab.flat("audio", sizes=[1]).field
    pairs: Pairs = [("audio", KwargsItem({"x": FieldElem(r.view(-1, 1000), field)})) for r in raw]
    out, _ = staged_bytes(pairs)
    assert torch.equal(out, torch.cat(raw))
    assert parts == [r.nbytes for r in raw]


def conjugate(raw: torch.Tensor) -> torch.Tensor:
    return raw.view(torch.complex64).conj()


def transposed(raw: torch.Tensor) -> torch.Tensor:
    return raw.view(1024, -1).t()


def with_gradient(raw: torch.Tensor) -> torch.Tensor:
    return raw.long().double().requires_grad_()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("change", [conjugate, transposed])
def test_what_does_not_lie_as_it_reads_goes_by_torch(
    change: Callable[[torch.Tensor], torch.Tensor], parts: list[int]
) -> None:
    tensors = [change(random_bytes(LARGE, seed)) for seed in range(2)]
    wanted = torch.stack(tensors).resolve_conj().contiguous()
    out, _ = staged_bytes(pairs_of(tensors))
    assert torch.equal(out, wanted.view(-1).view(torch.uint8))
    assert parts == []


@pytest.mark.usefixtures("one_thread")
def test_gradients_are_left_behind_in_large_batches(parts: list[int]) -> None:
    tensors = [with_gradient(random_bytes(LARGE // 8, seed)) for seed in range(2)]
    out, _ = staged_bytes(pairs_of(tensors))
    assert torch.equal(out, torch.stack(tensors).detach().view(-1).view(torch.uint8))
    assert len(parts) == 2


@pytest.mark.usefixtures("one_thread")
def test_small_batches_and_small_elems_go_by_torch(parts: list[int]) -> None:
    staged_bytes(pairs_of([random_bytes(LARGE // 2 - 1, seed) for seed in range(2)]))
    small = PART_NBYTES - 1
    staged_bytes(pairs_of([random_bytes(small, seed) for seed in range(LARGE // small + 1)]))
    assert parts == []
    staged_bytes(pairs_of([random_bytes(PART_NBYTES, s) for s in range(LARGE // PART_NBYTES)]))
    assert len(parts) == LARGE // PART_NBYTES


def test_more_threads_than_were_measured_leave_it_to_torch(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = [random_bytes(LARGE, seed) for seed in range(2)]
    for threads, by_part in ((MOST_THREADS, True), (MOST_THREADS + 1, False)):
        parts.clear()
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(staged_bytes(pairs_of(raw))[0], torch.cat(raw))
        assert bool(parts) == by_part


@pytest.mark.usefixtures("one_thread")
def test_without_the_compiled_loop_numpy_copies(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "compiled", lambda: None)
    raw = [random_bytes(LARGE + 5, seed) for seed in range(2)]
    assert torch.equal(staged_bytes(pairs_of(raw))[0], torch.cat(raw))
    assert len(parts) == 2


def test_pin_after_puts_together_in_other_memory_than_the_copy_starts_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeDevice()
    first: list[int] = []
    stack = torch.stack

    def watched(tensors: list[torch.Tensor], *, out: torch.Tensor) -> torch.Tensor:
        if tensors[0].ndim == 3:  # the pixels
            first.append(out.data_ptr())
        return stack(tensors, out=out)

    monkeypatch.setattr(torch, "stack", watched)
    with PinnedBatcher(device, mode="pin-after") as batcher:
        staged = batcher.stage(images(1, 2))
        (copy,) = device.copies
        (stacked,) = first
        assert copy.source != stacked
        assert copy.source in device.pinned and stacked not in device.live
        assert (staged.copies, staged.copied_nbytes) == (2, 2 * staged.nbytes)
        device.complete_all()
    assert staged.kwargs["pixel_values"][1, 0, 0, 0] == 2  # type: ignore[index]


def test_pin_after_copies_a_batch_that_exists_once_and_a_pinned_one_never() -> None:
    device = FakeDevice()
    batch = torch.rand(4, 16)
    pinned = device.allocate(batch.nbytes, pin=True).view(torch.float32).view(4, 16)
    with PinnedBatcher(device, mode="pin-after") as batcher:
        for source, copies in ((batch, 1), (pinned, 0)):
            items = mmlab.KwargsItems.from_processor({"x": source}, {"x": mmlab.batched("image")})
            staged = batcher.stage(items.pairs())
            assert (staged.copies, staged.copied_nbytes) == (copies, copies * source.nbytes)
            assert staged.pinned
        device.complete_all()
    assert device.faults == []
