"""Plan, then write: what a plan says is what is written, into whatever memory is given."""

from __future__ import annotations

import pytest
import torch

import mmlab
from mmlab import BatchedField, BatchError, FieldElem, FlatField, KwargsItem, SharedField

WHOLE = torch.arange(24.0).reshape(4, 2, 3)
FIELDS = {
    "neighbours": (list(WHOLE), BatchedField(), 0),
    "apart": ([WHOLE[2], WHOLE[0]], BatchedField(), 1),
    "one": ([WHOLE[1]], BatchedField(), 0),
    "not dense": ([WHOLE[0].t(), WHOLE[1].t()], BatchedField(), 1),
    "padded": ([WHOLE[0], WHOLE[0, :, :2]], BatchedField(pad=-1.0), 1),
    "flat neighbours": ([WHOLE[0], WHOLE[1]], FlatField(), 0),
    "flat apart": ([WHOLE[2], WHOLE[0]], FlatField(1), 1),
    "flat ragged": ([WHOLE[0], WHOLE[0, :, :2]], FlatField(), 1),
    "flat without elements": ([WHOLE[0, :0], WHOLE[1, :0]], FlatField(), 1),
    "shared": ([WHOLE, WHOLE], SharedField(2, keep_on_cpu=True), 0),
    "zero rows": ([torch.zeros(0), torch.zeros(0)], BatchedField(), 1),
}


def batch_of(name: str) -> mmlab.Batch:
    values, field, _ = FIELDS[name]
    (batch,) = mmlab.group([("image", KwargsItem({"x": FieldElem(v, field)})) for v in values])
    return batch


@pytest.mark.parametrize("name", FIELDS)
def test_the_plan_tells_shape_dtype_bytes_and_copies_before_it_writes(name: str) -> None:
    batch = batch_of(name)
    plan = batch.plan("x")
    reduced = batch.reduce_key("x")
    assert plan is not None
    assert plan.key == "image.x" and plan.keep_on_cpu is (name == "shared")
    assert (plan.shape, plan.dtype) == (tuple(reduced.shape), reduced.dtype)
    assert plan.nbytes == reduced.nbytes
    assert plan.copies == FIELDS[name][2]
    owned = WHOLE.data_ptr() <= reduced.data_ptr() < WHOLE.data_ptr() + WHOLE.nbytes
    assert owned is (plan.copies == 0)


@pytest.mark.parametrize("name", FIELDS)
def test_every_reducer_writes_into_the_memory_it_is_given(name: str) -> None:
    batch = batch_of(name)
    plan = batch.plan("x")
    assert plan is not None
    want = batch.reduce_key("x").clone()
    padding = 64
    memory = torch.full((plan.nbytes + 2 * padding,), 0xA5, dtype=torch.uint8)
    out = memory[padding : padding + plan.nbytes].view(plan.dtype).view(plan.shape)
    assert batch.reduce_key("x", out) is out
    assert torch.equal(out, want)
    assert (memory[:padding] == 0xA5).all() and (memory[-padding:] == 0xA5).all()


@pytest.mark.parametrize("name", FIELDS)
def test_a_destination_may_have_strides(name: str) -> None:
    batch = batch_of(name)
    plan = batch.plan("x")
    assert plan is not None
    out = torch.zeros((*plan.shape, 2), dtype=plan.dtype)[..., 1]
    assert torch.equal(batch.reduce_key("x", out), batch.reduce_key("x"))


def test_a_destination_that_does_not_fit_is_refused_with_both_shapes() -> None:
    batch = batch_of("apart")
    for out in (torch.zeros(2, 3, 2), torch.zeros(2, 2, 3, dtype=torch.float64)):
        with pytest.raises(
            BatchError, match=r"image\.x: out is .*, the batch is torch.float32 \(2,"
        ):
            batch.reduce_key("x", out)


def test_a_list_has_no_plan_and_takes_no_destination() -> None:
    pairs = [("image", KwargsItem({"x": FieldElem(v, BatchedField())})) for v in (1, 2)]
    (batch,) = mmlab.group(pairs)
    assert batch.plan("x") is None
    with pytest.raises(BatchError, match="no single tensor"):
        batch.reduce_key("x", torch.zeros(2))


def test_a_whole_that_requires_grad_is_written_as_plain_values() -> None:
    whole = torch.ones(3, requires_grad=True)
    items = mmlab.KwargsItems.from_processor({"x": whole}, {"x": mmlab.batched("image")})
    (batch,) = mmlab.group(items.pairs())
    out = batch.reduce_key("x", torch.zeros(3))
    assert out.tolist() == [1, 1, 1] and not out.requires_grad  # type: ignore[attr-defined]
