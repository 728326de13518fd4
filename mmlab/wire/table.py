"""The tensors of a message that has arrived: made from its frames when somebody asks for them.

On arrival every number in the table is checked against the frames, in exact integers, before any
tensor exists (`parse`).
"""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import Final

import numpy as np
import torch

from mmlab.dtypes import ITEMSIZE, NUMPY_OF, TORCH_OF, copyable, empty
from mmlab.errors import WireError
from mmlab.wire.envelope import Buffer
from mmlab.wire.parse import Record, read_records
from mmlab.wire.payload import MAX_NDIM
from mmlab.wire.record import HEAD, RECORD

_frombuffer: Final = torch.frombuffer
AHEAD: Final = 64  # tensors made along with one
_REF_NBYTES: Final = 10  # of one tensor reference in the body

Made = torch.Tensor | np.ndarray


def _stride(shape: list[int]) -> tuple[int, ...]:
    if len(shape) == 2:
        return shape[1], 1
    stride = [1]
    for extent in shape[:0:-1]:
        stride.append(stride[-1] * extent)
    return tuple(stride[::-1]) if shape else ()


def _copied(view: memoryview) -> memoryview:
    copy: memoryview = torch.empty(len(view), dtype=torch.uint8).numpy().data
    copy[:] = view
    return copy


class Table:
    """The tensors of one received message: checked on arrival, made when they are asked for."""

    _owned: Set[int] = frozenset()  # frames that are the table's own copies
    _ahead = 0  # numbers below need not be made ahead
    _copy = False
    size = 1  # numbers
    _which: list[int] | None = None  # number -> record, where that is not the same

    def __init__(
        self, raw: Buffer, at: int, end: int, frames: list[memoryview], copy: bool, body: int
    ) -> None:
        """Read `raw[at:end]`. `body`: its bytes; a number costs it one at least, a reference 10."""
        self._frames = frames  # frames[0] is the inline payload
        self._copy = copy
        self._room = body // _REF_NBYTES  # tensors that may be made before they are asked for
        self._bases: dict[tuple[int, int], torch.Tensor] = {}  # by frame and code
        self.made: dict[int, Made] = {}  # by number
        self._records = records = read_records(raw, at, end, frames)
        size = records[-1][5] + records[-1][6] if records else 0
        if size > body:
            raise WireError(f"table: {size} tensors, a body of {body} B cannot refer to them all")
        self.size = size
        if size != len(records):
            self._which = [i for i, record in enumerate(records) for _ in range(record[6])]
        if copy:
            self._own_where_shared()

    @classmethod
    def of_one(cls, raw: Buffer, at: int, end: int, frames: list[memoryview]) -> Table | None:
        """The table of the most common message: one tensor, where a frame begins. None: another.

        What is wrong with the record is for `__init__` to find.
        """
        size = end - at
        if size < HEAD or size != HEAD + 8 * (ndim := raw[at + 1]) or ndim > MAX_NDIM:
            return None
        code, _, zero, frame, offset, count, *shape = RECORD[ndim].unpack_from(raw, at)
        dtype, numel = TORCH_OF.get(code), prod(shape)
        if frame >= len(frames) or offset or count != 1 or zero or not numel or dtype is None:
            return None
        view, itemsize = frames[frame], dtype.itemsize
        left = len(view) - numel * itemsize
        if left < 0:
            return None
        tensor = _frombuffer(view, dtype=dtype, count=numel if left else -1)
        if tensor.data_ptr() % itemsize:
            return None
        self = cls.__new__(cls)
        self.made = {0: tensor if ndim == 1 else tensor.view(*shape) if ndim else tensor.view(())}
        self._records = [(code, shape, frame, 0, numel, 0, 1)]
        return self

    def get(self, number: int) -> Made:
        """The tensor or array of a number. WireError if there is none."""
        made = self.made.get(number)
        return self._get(number) if made is None else made

    def refer(self, number: int) -> Made:
        """The same, for a first reference in the body: those that follow it are made with it."""
        if self._ahead <= number < self.size - 1 and self._which is None and not self._copy:
            self._make_ahead(number)
        return self._get(number)

    def _get(self, number: int) -> Made:
        if not 0 <= number < self.size:
            raise WireError(f"tensor reference to number {number} of {self.size}")
        which = self._which
        record = self._records[number if which is None else which[number]]
        code, shape, frame, offset, numel, _, count = record
        if count > 1:
            return self._make_run(record, number)
        made = self.made[number] = self._make(code, shape, frame, offset, numel)
        return made

    def _make_ahead(self, number: int) -> None:
        """Tensors that have records of their own, which pay for what tensors need (`growth`)."""
        made, bases = self.made, self._bases
        self._ahead = number + AHEAD
        for i, record in enumerate(self._records[number + 1 : self._ahead], number + 1):
            code, shape, frame, offset, numel, _, _ = record
            if i in made or not numel:
                continue
            base = bases.get((frame, code))
            if base is None:
                made[i] = self._make(code, shape, frame, offset, numel)
            else:
                stride = (1,) if len(shape) == 1 else _stride(shape)
                made[i] = base.as_strided(shape, stride, offset // ITEMSIZE[code])

    def is_tensor(self, number: int) -> bool:
        """True if `number` is in the table and no numpy array."""
        return 0 <= number < self.size and self._record(number)[0] in TORCH_OF

    def dtype(self, number: int) -> torch.dtype:
        """Of a number that `is_tensor`, without making the tensor."""
        return TORCH_OF[self._record(number)[0]]

    def _record(self, number: int) -> Record:
        return self._records[number if self._which is None else self._which[number]]

    def _make_run(self, record: Record, number: int) -> Made:
        """Small tensors are made together, if the body can have asked for so many; else one."""
        code, shape, frame, offset, numel, first, count = record
        made: Made
        if code in TORCH_OF and numel and count <= self._room:
            self._room -= count
            whole = self._make(code, [count, *shape], frame, offset, numel * count)
            assert isinstance(whole, torch.Tensor)
            self.made.update(enumerate(whole.unbind(0), first))
            made = self.made[number]
        else:
            offset += numel * ITEMSIZE[code] * (number - first)
            made = self.made[number] = self._make(code, shape, frame, offset, numel)
        return made

    def _make(self, code: int, shape: list[int], frame: int, offset: int, numel: int) -> Made:
        dtype = TORCH_OF.get(code)
        if dtype is None:
            return self._make_array(code, shape, frame, offset, numel)
        if not numel:
            return empty(shape, dtype)
        view, itemsize, n = self._frames[frame], dtype.itemsize, len(shape)
        if len(view) == numel * itemsize:
            tensor = _frombuffer(view, dtype=dtype)
            if tensor.data_ptr() % itemsize:
                self._own(frame)
                return self._make(code, shape, frame, offset, numel)
            if n != 1:
                tensor = tensor.view(*shape) if n else tensor.view(())
        else:
            base = self._bases.get((frame, code))
            if base is None:
                base = self._base(frame, code, dtype)
            stride = (1,) if n == 1 else _stride(shape)
            tensor = base.as_strided(shape, stride, offset // itemsize)
        if self._copy and frame not in self._owned:
            bits = copyable(tensor)
            tensor = tensor.clone() if bits is tensor else bits.clone().view(dtype)
        return tensor

    def _base(self, frame: int, code: int, dtype: torch.dtype) -> torch.Tensor:
        """All of a frame as one tensor; a misaligned frame is copied once for all its tensors."""
        view = self._frames[frame]
        base = _frombuffer(view, dtype=dtype, count=len(view) // dtype.itemsize)
        if base.data_ptr() % dtype.itemsize:
            self._own(frame)
            return self._base(frame, code, dtype)
        self._bases[frame, code] = base
        return base

    def _make_array(
        self, code: int, shape: list[int], frame: int, offset: int, numel: int
    ) -> np.ndarray:
        dtype = NUMPY_OF[code]
        if not numel:
            return np.empty(shape, dtype)
        array = np.frombuffer(self._frames[frame], dtype, numel, offset).reshape(shape)
        return array.copy() if self._copy and frame not in self._owned else array

    def hold(self, number: int) -> None:
        """With `copy`: take the bytes of a tensor now that is made when somebody asks for it."""
        which = number if self._which is None else self._which[number]
        code, shape, frame, offset, numel, first, count = self._records[which]
        if self._copy and numel and frame not in self._owned:
            end = offset + numel * count * ITEMSIZE[code]
            self._mark_owned(len(self._frames))
            self._records[which] = (code, shape, len(self._frames), 0, numel, first, count)
            self._frames.append(_copied(self._frames[frame][offset:end]))

    def _own(self, frame: int) -> None:
        """Replace a frame by one copy of it, aligned, whose memory no sender can touch."""
        self._frames[frame] = _copied(self._frames[frame])
        self._bases.clear()
        self._mark_owned(frame)

    def _mark_owned(self, frame: int) -> None:
        if not isinstance(self._owned, set):
            self._owned = set()
        self._owned.add(frame)

    def _own_where_shared(self) -> None:
        """Where tensors overlap, a copy of each could need many times the payload."""
        used = [0] * len(self._frames)
        for code, _, frame, _, numel, _, count in self._records:
            used[frame] += numel * count * ITEMSIZE[code]
        for frame, nbytes in enumerate(used):
            if nbytes > len(self._frames[frame]):
                self._own(frame)
