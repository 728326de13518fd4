"""What a batch may ask for, compared with what its elems bring: said before anything is allocated.

An empty tensor may claim any extent, and a long narrow one beside a short wide one makes a batch of
their product. Elems that came over the wire are anyone's, so such shapes are refused by name here
and are no failed allocation later.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from mmlab.errors import BatchError

MAX_NDIM: Final = 64
MAX_SPAN: Final = 1 << 62  # bytes with empty dimensions counted as 1, as strides do
PAD_FREE: Final = 64 << 20  # bytes of a padded batch that nobody asks about
PAD_RATIO: Final = 16  # times the bytes of the elems, and times their number, beyond that


def check_shape(key: str, shape: Sequence[int], itemsize: int) -> None:
    """BatchError if no tensor or array can have this shape."""
    if len(shape) > MAX_NDIM or prod([n or 1 for n in shape]) * itemsize > MAX_SPAN:
        raise BatchError(
            f"{key}: the batch would have shape {_short(shape)}: at most {MAX_NDIM} dimensions "
            f"and {MAX_SPAN} bytes are possible; send these items apart"
        )


def check_padding(key: str, shape: Sequence[int], itemsize: int, parts: Sequence[int]) -> None:
    """BatchError if padding elems of `parts` bytes to one `shape` is mostly padding, and large."""
    check_shape(key, shape, itemsize)
    nbytes, given = prod(shape) * itemsize, sum(parts)
    if nbytes > max(PAD_FREE, PAD_RATIO * len(parts) * given):
        raise BatchError(
            f"{key}: padded to {_short(shape)}, {len(parts)} elems of {given} B together would "
            f"need {nbytes} B: batch elems of more equal shapes"
        )


def _short(shape: Sequence[int]) -> str:
    head = ", ".join(map(str, shape[:8]))
    return f"({head}, ... {len(shape)} dimensions)" if len(shape) > 8 else f"({head})"
