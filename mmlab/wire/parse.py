"""The records of a tensor table that arrived, every number checked against the frames.

A long table without anything unusual is read at once, by numpy: one tensor a record, all of the
same number of dimensions, none empty, every number in range. Whatever else there is, valid or not,
is left to the walk, which looks at one record after the other and names what is wrong.
"""

from __future__ import annotations

import struct
from itertools import repeat
from math import prod
from typing import Final

import numpy as np

from mmlab.dtypes import ITEMSIZE, describe
from mmlab.errors import WireError
from mmlab.wire.envelope import Buffer
from mmlab.wire.payload import MAX_NDIM, RUN_NDIM, fits
from mmlab.wire.record import HEAD, RECORD

# code, shape, frame, offset, numel of one, number of the first, how many
Record = tuple[int, list[int], int, int, int, int, int]

MANY: Final = 64 * 20  # bytes of table from which this is faster than the walk
_MOST_NDIM: Final = 8
_FIELDS: Final = [
    ("code", "u1"),
    ("ndim", "u1"),
    ("zero", "<u2"),
    ("frame", "<u4"),
    ("offset", "<u8"),
    ("count", "<u4"),
]
_LAYOUT: Final = [np.dtype([*_FIELDS, ("shape", "<u8", (n,))]) for n in range(_MOST_NDIM + 1)]
_LIMIT: Final = 1 << 62  # of extents and offsets, so that no sum of two is beyond 64 bits
_ITEMSIZE: Final = np.array([ITEMSIZE.get(code, 0) for code in range(256)], np.int64)


def read_records(raw: Buffer, at: int, end: int, frames: list[memoryview]) -> list[Record]:
    """The records in `raw[at:end]`. WireError at the first that the frames do not back."""
    if end - at >= MANY and (many := _read_many(raw, at, end, frames)):
        return many
    records: list[Record] = []
    size = 0
    while at < end:
        try:
            ndim = raw[at + 1]
            code, _, zero, frame, offset, count, *shape = RECORD[ndim].unpack_from(raw, at)
            itemsize = ITEMSIZE[code]
            numel = prod(shape)
            after = at + HEAD + 8 * ndim
            if (
                offset + numel * count * itemsize > len(frames[frame])
                or offset % itemsize
                or zero
                or after > end
                or (count != 1 and (not count or ndim > RUN_NDIM))
                or not (numel or fits(shape, itemsize))
            ):
                raise _refusal(len(records), frames, code, shape, count, frame, offset)
        except (IndexError, KeyError, struct.error) as error:
            raise _refusal(len(records), frames, *_peek(raw, at, end)) from error
        records.append((code, shape, frame, offset, numel, size, count))
        size += count
        at = after
    return records


def _peek(raw: Buffer, at: int, end: int) -> tuple[int, list[int], int, int, int]:
    """code, shape, count, frame, offset of a record that cannot be read, as far as it can be."""
    if at + HEAD > end:
        raise WireError(f"table: {max(end - at, 0)} B left for a record of {HEAD} B and more")
    code, ndim, _, frame, offset, count = RECORD[0].unpack_from(raw, at)
    if ndim > MAX_NDIM or at + HEAD + 8 * ndim > end:
        raise WireError(f"table: {ndim} dimensions in {end - at - HEAD} B, at most {MAX_NDIM}")
    return code, list(RECORD[ndim].unpack_from(raw, at)[6:]), count, frame, offset


def _refusal(
    number: int,
    frames: list[memoryview],
    code: int,
    shape: list[int],
    count: int,
    frame: int,
    offset: int,
) -> WireError:
    where = f"table[{number}]"
    itemsize = ITEMSIZE.get(code)
    if itemsize is None:
        return WireError(f"{where}: {describe(code)}, wanted one of mmlab.dtypes")
    if frame >= len(frames):
        return WireError(
            f"{where}: payload in frame {frame}, "
            f"the message has {len(frames)} frames: some are missing"
        )
    if offset % itemsize:
        return WireError(
            f"{where}: {describe(code)} at {offset} of frame {frame}, "
            f"wanted a multiple of {itemsize}"
        )
    nbytes = prod(shape) * count * itemsize
    return WireError(
        f"{where}: frame {frame} has {len(frames[frame])} B, {count} x "
        f"{describe(code)} {tuple(shape)} at {offset} needs {nbytes} B "
        "(or the record is malformed)"
    )


def _read_many(raw: Buffer, at: int, end: int, frames: list[memoryview]) -> list[Record]:
    """The same, all at once; [] where they are not all of the usual kind."""
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
