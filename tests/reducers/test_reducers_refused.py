"""Tensors that form no batch are refused by name: torch crashes on some of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import mmlab
from mmlab import BatchedField, BatchError, FieldElem, FlatField, KwargsItem, KwargsItems

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

PAD, FLAT = BatchedField(pad=0), FlatField()
META = torch.ones(2, 3, device="meta")
CPU = torch.ones(2, 3)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def items_of(values: list[torch.Tensor], field: mmlab.fields.Field) -> KwargsItems:
    return KwargsItems({"i": [KwargsItem({"x": FieldElem(v, field)}) for v in values]})


def batch_of(values: list[torch.Tensor], field: mmlab.fields.Field) -> mmlab.Batch:
    (batch,) = mmlab.group(items_of(values, field).pairs())
    return batch


QUANTIZED = """
import torch, mmlab
from mmlab import BatchError, BatchedField, FieldElem, FlatField, KwargsItem, KwargsItems

def q(scale, n=3):
    return torch.quantize_per_tensor(torch.ones(n, 2), scale, 0, torch.quint8)

def items(values, field):
    return KwargsItems({"i": [KwargsItem({"x": FieldElem(v, field)}) for v in values]})

wholes = [KwargsItems.from_processor({"x": q(s)}, {"x": mmlab.batched("i")}) for s in (0.1, 0.2)]
cases = [
    KwargsItems.from_processor({"x": [q(0.1), q(0.2)]}, {"x": mmlab.batched("i")}),
    items([q(0.1), q(0.2)], FlatField()),
    items([q(0.1), q(0.2, 4)], BatchedField(pad=0)),
    items(list(q(0.1)), BatchedField()),
    KwargsItems({"i": [item for whole in wholes for item in whole["i"]]}),
]
for case in cases:
    (batch,) = mmlab.group(case.pairs())
    for act in (case.reduce, batch.reduce, lambda: batch.plan("x"), lambda: batch.reduce_key("x")):
        try:
            act()
        except BatchError as error:
            print(error)
print("alive")
"""


def test_quantized_tensors_are_refused_before_torch_crashes_on_them() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", QUANTIZED], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *messages, last = done.stdout.splitlines()
    assert last == "alive" and len(messages) == 5 * 4
    for message in messages:
        assert message.startswith("i.x: elem 0 is a quantized tensor (torch.quint8)")
        assert "dequantize() it first" in message


REFUSED: dict[str, tuple[Callable[[], list[torch.Tensor]], str]] = {
    "meta": (lambda: [META, META], r"i\.x: elem 0 is a meta tensor.*on the CPU first"),
    "meta, CPU": (lambda: [META, CPU], r"i\.x: elem 0 is a meta tensor"),
    "CPU, meta": (lambda: [CPU, META], r"i\.x: elem 1 is on meta, elem 0 on cpu: .*move them"),
    "nested": (lambda: [nested(), nested()], r"i\.x: elem 0 is a nested tensor: .*unbind\(\)"),
    "CPU, nested": (lambda: [CPU, nested()], r"i\.x: elem 1 is a nested tensor"),
    "sparse": (lambda: [CPU.to_sparse()] * 2, r"i\.x: elem 0 is a torch\.sparse_coo tensor"),
}


@pytest.mark.parametrize("field", [BatchedField(), PAD, FLAT], ids=["batched", "pad", "flat"])
@pytest.mark.parametrize("name", REFUSED)
def test_elems_that_cannot_be_written_are_refused_by_name(
    name: str, field: BatchedField | FlatField
) -> None:
    make, message = REFUSED[name]
    values = make()
    for act in (
        items_of(values, field).reduce,
        lambda: batch_of(values, field).plan("x"),
        lambda: batch_of(values, field).reduce_key("x"),
    ):
        with pytest.raises(BatchError, match=message):
            act()


@pytest.mark.parametrize("field", [PAD, FLAT], ids=["pad", "flat"])
@pytest.mark.parametrize("values", [[META, META[:, :2]], [CPU, META[:, :2]], [META, CPU[:, :2]]])
def test_elems_that_cannot_be_padded_are_refused_by_name(
    values: list[torch.Tensor], field: BatchedField | FlatField
) -> None:
    with pytest.raises(BatchError, match=r"i\.x: elem \d is (a meta tensor|on meta)"):
        batch_of(values, field).plan("x")


def test_meta_tensors_that_need_no_writing_are_batched() -> None:
    whole = torch.ones(4, 2, 3, device="meta")
    assert batch_of(list(whole), BatchedField()).plan("x").shape == (4, 2, 3)  # type: ignore[union-attr]
    assert items_of([META], BatchedField()).reduce()["x"].shape == (1, 2, 3)  # type: ignore[attr-defined]
    assert items_of([META], FLAT).reduce()["x"] is META
    mixed = items_of([META, CPU[:1]], BatchedField()).reduce()["x"]
    assert isinstance(mixed, list) and [t.device.type for t in mixed] == ["meta", "cpu"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.quint8),
        nested,
        lambda: torch.nested.nested_tensor([CPU, CPU[:1]], layout=torch.jagged),
    ],
    ids=["quantized", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_whole_that_is_not_dense_is_handed_on_as_it_came(make: Callable[[], object]) -> None:
    whole = make()
    items = KwargsItems.from_processor({"x": whole}, {"x": mmlab.batched("i")})
    (batch,) = mmlab.group(items.pairs())
    assert items.reduce()["x"] is whole and batch.reduce()["x"] is whole
    assert batch.plan("x") is None


def test_a_part_of_a_nested_whole_is_a_list_of_its_elems() -> None:
    items = KwargsItems.from_processor({"x": nested()}, {"x": mmlab.batched("i")})
    (batch,) = mmlab.group(items.pairs()[1:])
    for got in (batch, KwargsItems({"i": items["i"][1:]})):
        assert got.reduce()["x"].tolist() == [[1, 1, 1]]  # type: ignore[attr-defined]


def test_shared_values_that_are_nested_are_not_compared() -> None:
    request = [
        KwargsItems.from_processor({"x": nested()}, {"x": mmlab.shared("i", 1)}) for _ in range(2)
    ]
    batches = list(mmlab.group([pair for items in request for pair in items.pairs()]))
    assert [batch.num_items for batch in batches] == [1, 1]


BAD_OUT = {
    "int": (lambda: 5, r"i\.x: out is int, wanted a dense tensor"),
    "array": (lambda: CPU.numpy(), r"i\.x: out is ndarray"),
    "meta": (
        lambda: torch.ones(2, 2, 3, device="meta"),
        r"i\.x: out is a .*strided tensor on meta",
    ),
    "sparse": (
        lambda: torch.ones(2, 2, 3).to_sparse(),
        r"i\.x: out is a .*sparse_coo tensor on cpu",
    ),
    "nested": (nested, r"i\.x: out is a nested tensor"),
}


@pytest.mark.parametrize("name", BAD_OUT)
@pytest.mark.parametrize("ready", [True, False])
def test_a_destination_that_is_no_dense_tensor_is_refused(name: str, ready: bool) -> None:
    values = list(torch.ones(2, 2, 3)) if ready else [CPU, CPU.clone()]
    make, message = BAD_OUT[name]
    with pytest.raises(BatchError, match=message):
        batch_of(values, BatchedField()).reduce_key("x", out=make())  # type: ignore[arg-type]


def test_a_meta_batch_is_not_written_into_a_destination() -> None:
    with pytest.raises(BatchError, match=r"i\.x: a meta tensor has no values"):
        batch_of([META], BatchedField()).reduce_key("x", out=torch.ones(1, 2, 3))


@pytest.mark.parametrize("key", ["zz", None, ["x"]])
@pytest.mark.parametrize("act", ["reduce_key", "plan", "reduction", "field"])
def test_an_unknown_key_is_refused_with_the_known_ones(act: str, key: object) -> None:
    batch = batch_of([CPU], BatchedField())
    with pytest.raises(BatchError, match=r"i: no key .* in this batch, wanted one of 'x'"):
        getattr(batch, act)(key)


@pytest.mark.gpu
@pytest.mark.parametrize("field", [BatchedField(), FLAT], ids=["batched", "flat"])
def test_elems_on_one_gpu_are_batched_and_mixed_devices_refused(
    field: BatchedField | FlatField,
) -> None:
    if torch.cuda.device_count() == 0:
        pytest.skip("no CUDA device")
    parts = [CPU.cuda(), 2 * CPU.cuda()]
    want = torch.stack if isinstance(field, BatchedField) else torch.cat
    assert torch.equal(items_of(parts, field).reduce()["x"].cpu(), want([CPU, 2 * CPU]))  # type: ignore[attr-defined]
    with pytest.raises(BatchError, match=r"i\.x: elem 1 is on cpu, elem 0 on cuda:0"):
        items_of([parts[0], CPU], field).reduce()
