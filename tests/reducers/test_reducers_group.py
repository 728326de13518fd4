"""`group`: the largest batches of consecutive items that agree, order kept, nobody taken down."""

from __future__ import annotations

import itertools

import pytest
import torch

import mmlab
from mmlab import (
    BatchedField,
    BatchError,
    FieldElem,
    FlatField,
    KwargsItem,
    KwargsItems,
    SharedField,
)


def one(**values: object) -> KwargsItem:
    return KwargsItem({key: FieldElem(value, BatchedField()) for key, value in values.items()})


def shared(value: object, batch_size: int = 1) -> KwargsItem:
    return KwargsItem(
        {
            "x": FieldElem(torch.zeros(1), BatchedField()),
            "s": FieldElem(value, SharedField(batch_size)),
        }
    )


def sizes(pairs: list[tuple[str, KwargsItem | None]]) -> list[tuple[str, int]]:
    return [(batch.modality, batch.num_items) for batch in mmlab.group(pairs)]


def test_items_of_many_requests_share_one_batch_in_order() -> None:
    requests = [
        KwargsItems.from_processor(
            {"x": torch.full((n, 2), float(r))}, {"x": mmlab.batched("image")}
        )
        for r, n in enumerate((2, 1, 3))
    ]
    pairs = [pair for items in requests for pair in items.pairs()]
    (batch,) = mmlab.group(pairs)
    assert batch.modality == "image" and batch.num_items == 6
    assert batch.indices == list(range(6)) and list(batch.keys()) == ["x"]
    assert batch.reduce()["x"][:, 0].tolist() == [0, 0, 1, 2, 2, 2]
    assert "6 items" in repr(batch)


def test_a_request_alone_is_its_own_tensor() -> None:
    whole = torch.zeros(5, 2)
    items = KwargsItems.from_processor({"x": whole}, {"x": mmlab.batched("image")})
    (batch,) = mmlab.group(items.pairs())
    assert batch.reduce()["x"] is whole and batch.plan("x").copies == 0  # type: ignore[union-attr]


def test_modalities_are_separate_batches_and_their_order_is_kept() -> None:
    image, clip = one(x=torch.zeros(1)), one(x=torch.zeros(1))
    pairs = [("image", image), ("image", image), ("audio", clip), ("image", image)]
    assert sizes(pairs) == [("image", 2), ("audio", 1), ("image", 1)]
    assert [b.indices for b in mmlab.group(pairs)] == [[0, 1], [2], [3]]


A = one(x=torch.zeros(1))
CUTS = {
    "dtype": one(x=torch.zeros(1, dtype=torch.float64)),
    "keys": one(x=torch.zeros(1), y=torch.zeros(1)),
    "key": one(y=torch.zeros(1)),
    "field": KwargsItem({"x": FieldElem(torch.zeros(1), FlatField())}),
    "keep_on_cpu": KwargsItem({"x": FieldElem(torch.zeros(1), BatchedField(keep_on_cpu=True))}),
    "kind": one(x=3),
}


@pytest.mark.parametrize("what", CUTS)
def test_a_batch_ends_where_something_disagrees(what: str) -> None:
    other = CUTS[what]
    assert sizes([("image", A), ("image", A), ("image", other), ("image", A)]) == [
        ("image", 2),
        ("image", 1),
        ("image", 1),
    ]


def test_shapes_may_differ_within_a_batch() -> None:
    pairs = [("image", one(x=torch.zeros(n))) for n in (1, 2, 1)]
    (batch,) = mmlab.group(pairs)
    assert [len(x) for x in batch.reduce()["x"]] == [1, 2, 1]


def test_equal_shared_values_of_several_requests_share_a_batch_and_are_kept_once() -> None:
    value = torch.tensor([1.0, float("nan")])
    pairs = [("image", shared(value, 3)), ("image", shared(value.clone(), 7))]
    (batch,) = mmlab.group(pairs)
    assert batch.reduce()["s"] is value


@pytest.mark.parametrize(
    "other",
    [torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2), 1.0],
)
def test_shared_values_that_differ_part_the_batch(other: object) -> None:
    value = torch.tensor([1.0, 0.0])
    pairs = [("image", shared(value)), ("image", shared(other)), ("image", shared(value))]
    assert [n for _, n in sizes(pairs)] == [1, 1, 1]


def test_one_request_of_mixed_dtypes_does_not_take_another_down() -> None:
    mixed = [torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(1)]
    bad = KwargsItems.from_processor({"x": mixed}, {"x": mmlab.batched("image")})
    good = KwargsItems.from_processor({"x": torch.ones(2, 1)}, {"x": mmlab.batched("image")})
    batches = list(mmlab.group([*bad.pairs(), *good.pairs()]))
    assert [b.num_items for b in batches] == [1, 1, 3]
    assert batches[2].reduce()["x"].tolist() == [[0], [1], [1]]


def test_none_entries_are_passed_over_and_break_no_batch() -> None:
    a, b = one(x=torch.tensor(1.0)), one(x=torch.tensor(2.0))
    (batch,) = mmlab.group([("image", None), ("image", a), ("image", None), ("image", b)])
    assert batch.indices == [1, 3] and batch.reduce()["x"].tolist() == [1, 2]
    assert sizes([("image", None), ("audio", None)]) == []


def test_none_entries_give_the_same_per_request_result_in_any_order() -> None:
    """The nesting of a batch is never guessed from its first element."""
    image = torch.arange(3.0)
    requests = {
        "empty, full": KwargsItems({"image": [None, one(x=image)]}),
        "full, empty": KwargsItems({"image": [one(x=image), None]}),
        "nothing": KwargsItems({"image": [None, None]}),
    }
    for order in itertools.permutations(requests):
        owners = [(name, pair) for name in order for pair in requests[name].pairs()]
        got: dict[str, list[list[float]]] = {name: [] for name in requests}
        for batch in mmlab.group([pair for _, pair in owners]):
            for index, row in zip(batch.indices, batch.reduce()["x"], strict=True):
                got[owners[index][0]].append(row.tolist())
        assert got == {"empty, full": [[0, 1, 2]], "full, empty": [[0, 1, 2]], "nothing": []}
    assert [items.reduce() for items in requests.values()][2] == {}


def test_what_is_no_item_is_refused_by_its_place() -> None:
    with pytest.raises(BatchError, match=r"pairs\[1\]: got dict, wanted a KwargsItem or None"):
        list(mmlab.group([("image", A), ("image", {"x": 1})]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (KwargsItems({"image": [A]}), r"pairs: got KwargsItems, wanted .*: items\.pairs\(\)"),
        (A, r"pairs: got KwargsItem, wanted .*items\.pairs\(\)"),
        ({"image": [A]}, r"pairs: got dict, wanted .*items\.pairs\(\)"),
        (None, r"pairs: got NoneType, wanted .*items\.pairs\(\)"),
        (5, r"pairs: got int"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused_at_the_call(pairs: object, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        mmlab.group(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (None, r"pairs\[1\]: got NoneType, wanted a pair .*items\.pairs\(\)"),
        (A, r"pairs\[1\]: got KwargsItem, wanted a pair"),
        ("image", r"pairs\[1\]: got str, wanted a pair"),
        (("image", A, A), r"pairs\[1\]: got tuple, wanted a pair"),
        ((None, A), r"pairs\[1\]: modality is None, wanted a name"),
        ((3, None), r"pairs\[1\]: modality is 3, wanted a name"),
        (("", A), r"pairs\[1\]: modality is ''"),
    ],
)
def test_what_is_no_pair_is_refused_by_its_place(pair: object, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        next(mmlab.group([("image", A), pair]))  # type: ignore[list-item]


def test_group_is_lazy_and_computes_each_reduction_once() -> None:
    pairs = [("image", A), ("audio", A)]
    batches = mmlab.group(iter(pairs))
    first = next(batches)
    assert first.modality == "image"
    assert first.reduction("x") is first.reduction("x")
    assert first.field("x") == BatchedField()
