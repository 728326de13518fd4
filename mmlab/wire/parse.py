"""Many records of the tensor table read and checked at once, by numpy.

Only tables without anything unusual are read here: one tensor a record, all of the same number of
dimensions, none empty, every number in range. Whatever else there is, valid or not, is left to the
walk in `Table`, which looks at one record after the other and names what is wrong.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

import numpy as np

from mmlab.dtypes import ITEMSIZE
from mmlab.wire.envelope import Buffer

# code, shape, frame, offset, numel of one, number of the first, how many
Record = tuple[int, list[int], int, int, int, int, int]

MANY: Final = 64 * 20  # bytes of table from which this is faster than the walk
_MOST_NDIM: Final = 8
_HEAD: Final = [
    ("code", "u1"),
    ("ndim", "u1"),
    ("zero", "<u2"),
    ("frame", "<u4"),
    ("offset", "<u8"),
    ("count", "<u4"),
]
_LAYOUT: Final = [np.dtype([*_HEAD, ("shape", "<u8", (n,))]) for n in range(_MOST_NDIM + 1)]
_LIMIT: Final = 1 << 62  # of extents and offsets, so that no sum of two is beyond 64 bits
_ITEMSIZE: Final = np.array([ITEMSIZE.get(code, 0) for code in range(256)], np.int64)


def parse_many(raw: Buffer, at: int, end: int, frames: list[memoryview]) -> list[Record]:
    """The records in `raw[at:end]`; [] where they are not all of the usual kind."""
    ndim = raw[at + 1]
    if ndim > _MOST_NDIM or (end - at) % _LAYOUT[ndim].itemsize:
        return []
    layout = _LAYOUT[ndim]
    table = np.frombuffer(raw, layout, (end - at) // layout.itemsize, at)
    lengths = np.array([len(view) for view in frames], np.int64)
    itemsize = _ITEMSIZE[table["code"]]
    shape, frame, offset = table["shape"], table["frame"], table["offset"]
    if (
        (table["ndim"] != ndim).any()
        or table["zero"].any()
        or (table["count"] != 1).any()
        or not itemsize.all()
        or (frame >= len(frames)).any()
        or (offset >= _LIMIT).any()
        or not shape.all()
        or (shape.prod(axis=1, dtype=np.float64) >= _LIMIT >> 8).any()
    ):
        return []
    numel = shape.prod(axis=1, dtype=np.int64)
    at_byte = offset.astype(np.int64)
    if (at_byte % itemsize).any() or (at_byte + numel * itemsize > lengths[frame]).any():
        return []
    columns = (table["code"], shape, frame, offset, numel)
    return list(
        zip(*(column.tolist() for column in columns), range(len(table)), repeat(1), strict=False)
    )
