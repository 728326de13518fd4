"""Decoding with a type: Structs, dataclasses, items and tensors by msgspec's rules."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from wire_messages import assert_same, owned

import mmlab
from mmlab import KwargsItem, KwargsItems, WireError


class Request(msgspec.Struct):
    prompt: str
    mm: KwargsItems | None = None
    tokens: tuple[int, ...] = ()
    embeds: torch.Tensor | None = None


class Tagged(msgspec.Struct, tag=True, array_like=True):
    array: np.ndarray
    item: KwargsItem


@dataclasses.dataclass
class Sampling:
    temperature: float
    bias: torch.Tensor
    size: torch.Size
    dtype: torch.dtype
    span: slice
    scale: np.generic
    one: np.float32


ITEMS = KwargsItems.from_processor(
    {"x": torch.arange(12.0).reshape(3, 4)}, {"x": mmlab.batched("image")}
)
SAMPLING = Sampling(
    *(0.5, torch.ones(3), torch.Size([1, 2]), torch.bfloat16, slice(1, 2)),
    *(np.int8(3), np.float32(0.1)),
)


def trip(obj: object, type_: object) -> object:
    return mmlab.Decoder(type_).decode(owned(mmlab.Encoder().encode(obj)))


def test_structs_hold_items_and_tensors() -> None:
    got = trip(Request("hi", ITEMS, (1, 2), torch.arange(10)), Request)
    assert isinstance(got, Request)
    assert (got.prompt, got.mm, got.tokens) == ("hi", ITEMS, (1, 2))
    assert_same(got.embeds, torch.arange(10))
    assert trip(Request("hi"), Request) == Request("hi")


def test_structs_decode_without_a_type_as_dicts() -> None:
    got = trip(Request("hi", ITEMS, (1, 2)), None)
    assert got == {"prompt": "hi", "mm": ITEMS, "tokens": [1, 2], "embeds": None}


def test_tagged_array_like_structs() -> None:
    got = trip([Tagged(np.arange(4, dtype=">i2"), ITEMS["image"][1])], list[Tagged])
    assert_same(got[0].array, np.arange(4, dtype=">i2"))  # type: ignore[index]
    assert got[0].item == ITEMS["image"][1]  # type: ignore[index]


def test_dataclasses_hold_every_special_type() -> None:
    got = trip(SAMPLING, Sampling)
    assert isinstance(got, Sampling)
    for field in dataclasses.fields(Sampling):
        assert_same(getattr(got, field.name), getattr(SAMPLING, field.name), field.name)


@pytest.mark.parametrize(
    ("obj", "type_"),
    [
        (torch.arange(3), torch.Tensor),
        (np.arange(3), np.ndarray),
        (ITEMS, KwargsItems),
        (ITEMS["image"][0], KwargsItem),
        (None, KwargsItems | None),
        ([torch.ones(1), torch.zeros(2)], list[torch.Tensor]),
        ({"a": torch.ones(1)}, dict[str, torch.Tensor]),
        (torch.Size([2]), torch.Size),
        (2.5, np.generic),
        (True, np.generic),
    ],
)
def test_types_at_the_top(obj: object, type_: object) -> None:
    got = trip(obj, type_)
    if isinstance(obj, (KwargsItem, KwargsItems)):
        assert got == obj
    elif type_ is np.generic:
        assert isinstance(got, np.generic) and got == obj
    else:
        assert_same(got, obj)


@pytest.mark.parametrize(
    ("obj", "type_", "message"),
    [
        ({"prompt": 3}, Request, r"Expected `str`, got `int`"),
        (
            {"prompt": "a", "mm": torch.ones(1)},
            Request,
            r"Expected `KwargsItems`, got `Tensor` - at `\$.mm`",
        ),
        (
            {"prompt": "a", "embeds": ITEMS},
            Request,
            r"Expected `Tensor`, got `KwargsItems` - at `\$.embeds`",
        ),
        (np.ones(1), torch.Tensor, r"Expected `Tensor`, got `.*ndarray`"),
        (torch.ones(1), int, r"Expected `int`, got `ext`"),
        (["a"], torch.Size, r"."),
        ("a", np.generic, r"got str, wanted generic"),
    ],
)
def test_another_type_than_the_wanted_one_is_a_wire_error(
    obj: object, type_: object, message: str
) -> None:
    with pytest.raises(WireError, match=message):
        trip(obj, type_)
