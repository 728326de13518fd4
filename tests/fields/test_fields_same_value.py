"""`same_value`: equal means the same on the wire, so that one of two equal values may be sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab.fields.equal import same_value

NAN = float("nan")
T = torch.tensor([1 + 2j, 3 - 4j])
NEG = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # not yet negated in memory
UINT1 = torch.tensor([1, 0], dtype=torch.uint8).view(torch.uint1)

SAME = [
    (1, 1),
    (NAN, NAN),
    (np.float32(NAN), np.float32(NAN)),
    (np.array(1, ">i4"), np.array(1, ">i4")),
    (torch.tensor([NAN]), torch.tensor([NAN])),
    (torch.zeros(3).expand(2, 3), torch.zeros(2, 3)),
    (torch.zeros(0, 3), torch.zeros(0, 3)),
    (torch.tensor(2.0), torch.tensor(2.0)),
    (torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)),
    (T.conj(), torch.tensor([1 - 2j, 3 + 4j])),
    (NEG, torch.tensor([-2.0, 4.0])),
    (UINT1, UINT1.view(torch.uint8).clone().view(torch.uint1)),
    (torch.ones(4)[::2][:1], torch.ones(1)),
    ([1, (2, torch.ones(1))], [1, (2, torch.ones(1))]),
    ({"a": NAN}, {"a": NAN}),
    ("a", "a"),
    (None, None),
]
DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (np.float32(0), np.float32(-0.0)),
    (np.float32(1), np.float64(1)),
    (np.array(1, ">i4"), np.array(1, "<i4")),
    (np.zeros(2), np.zeros((2, 1))),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2), torch.zeros(1, 2)),
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (torch.arange(3), torch.tensor([0, 1, 3])),
    (T, T.conj()),
    (torch.zeros(2), np.zeros(2, np.float32)),
    ([1], (1,)),
    ([1], [1, 1]),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1, "b": 1}),
    (torch.zeros(2, device="meta"), torch.zeros(2, device="meta")),
    (torch.zeros(2).to_sparse(), torch.zeros(2).to_sparse()),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same_on_the_wire(a: object, b: object) -> None:
    assert same_value(a, b) and same_value(b, a) and same_value(a, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_on_the_wire(a: object, b: object) -> None:
    assert not same_value(a, b) and not same_value(b, a)
