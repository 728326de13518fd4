"""Views found by address: whatever lies where, the batch is what stack and cat would give."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from mmlab.reducers import joined_view, stacked_view

BASE = torch.arange(4 * 6 * 5.0).reshape(4, 6, 5)
OTHER = BASE.clone()
LAYOUTS = [
    BASE,
    BASE.transpose(0, 1),
    BASE.permute(2, 0, 1),
    BASE[:, 1:4],
    BASE[::2],
    BASE[:, :, ::2],
    BASE[1:2].expand(3, 6, 5),
    OTHER,
    OTHER[:, 2:],
    BASE.view(torch.int32),
]


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[torch.Tensor], int]:
    """Pieces of a few tensors along one dim: neighbours, overlaps, gaps, repeats and strangers."""
    dim = draw(st.integers(-3, 2))
    sources = draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=2))
    out = []
    for _ in range(draw(st.integers(1, 5))):
        source = draw(st.sampled_from(sources))
        extent = source.shape[dim]
        if out and draw(st.booleans()) and out[-1][0] is source:
            start = out[-1][2]  # behind the one before
        else:
            start = draw(st.integers(0, extent))
        stop = draw(st.integers(min(start, extent), extent))
        out.append((source, min(start, stop), stop))
    return [source.narrow(dim, a, b - a) for source, a, b in out], dim


@given(pieces())
def test_a_joined_view_is_the_concatenation(given_: tuple[list[torch.Tensor], int]) -> None:
    tensors, dim = given_
    view = joined_view(tensors, dim)
    if view is not None:
        assert len({t.dtype for t in tensors}) == 1
        assert torch.equal(view, torch.cat(tensors, dim))


@given(pieces())
def test_a_stacked_view_is_the_stack(given_: tuple[list[torch.Tensor], int]) -> None:
    tensors, _ = given_
    view = stacked_view(tensors)
    if view is not None:
        assert len({t.dtype for t in tensors}) == 1
        assert torch.equal(view, torch.stack(tensors))


@given(st.sampled_from(LAYOUTS), st.integers(0, 2), st.lists(st.integers(0, 5), max_size=4))
def test_the_pieces_of_any_cut_are_found_to_be_the_whole(
    whole: torch.Tensor, dim: int, cuts: list[int]
) -> None:
    places = sorted({0, whole.shape[dim], *(c for c in cuts if c <= whole.shape[dim])})
    tensors = [whole.narrow(dim, a, b - a) for a, b in pairwise(places)]
    view = joined_view(tensors, dim)
    assert view is not None and view.data_ptr() == whole.data_ptr()
    assert torch.equal(view, whole)


@given(st.sampled_from(LAYOUTS[:1] + LAYOUTS[7:8]), st.integers(0, 3), st.integers(1, 4))
def test_the_rows_of_a_dense_tensor_are_found_to_be_a_batch(
    whole: torch.Tensor, start: int, count: int
) -> None:
    rows = list(whole[start : start + count])
    view = stacked_view(rows)
    assert view is not None and view.data_ptr() == rows[0].data_ptr()
    assert torch.equal(view, torch.stack(rows))


def test_views_of_a_freed_or_shrunk_neighbour_are_none() -> None:
    a = torch.arange(8.0)
    short = torch.frombuffer(bytearray(16), dtype=torch.float32)
    assert stacked_view([a[:4], short]) is None
    assert joined_view([a[:4], short], 0) is None
    assert joined_view([torch.zeros(())], 0) is None
    assert joined_view([torch.zeros(2)], 1) is None
