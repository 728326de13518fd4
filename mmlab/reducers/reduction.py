"""What a reduction will do, said before it does it.

A reducer first looks at the elems of a key and returns a `Reduction`: either the batch already
exists (`ready`, no copies), or its shape, dtype and size are known and it can be written into any
destination: fresh memory, a pinned buffer, an arena.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch

from mmlab.dtypes import copyable, empty
from mmlab.errors import BatchError
from mmlab.reducers.limits import check_shape


class Plan(msgspec.Struct, frozen=True):
    """The batch of one key before it is built."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    copies: int  # user-space copies of each payload byte: 0 (exists in memory) or 1
    keep_on_cpu: bool = False


Part = tuple[tuple[int | slice, ...], torch.Tensor]  # its place in the batch, and what fills it


@dataclass(slots=True)
class Reduction:
    """`ready` is the finished value where `write` is None; otherwise `write(out)` builds it.

    `parts` makes, where the batch consists of them and of nothing else, what `write` puts together.
    """

    plan: Plan | None  # None: the result is no single tensor
    ready: object = None
    write: Callable[[torch.Tensor], None] | None = None
    parts: Callable[[], Sequence[Part]] | None = None

    def run(self, out: torch.Tensor | None = None) -> object:
        """The batched value; written into `out` (plan's shape and dtype) where one is given."""
        plan = self.plan
        if plan is None:
            if out is not None:
                raise BatchError("out= was given for a key whose batch is no single tensor")
            return self.ready
        if out is None:
            if self.write is None:
                return self.ready
            out = empty(plan.shape, plan.dtype)
        elif not isinstance(out, torch.Tensor) or not _has_memory(out):
            what = type(out).__name__
            if isinstance(out, torch.Tensor):
                kind = "nested" if out.is_nested else out.layout
                what = f"a {kind} tensor on {out.device}"
            raise BatchError(
                f"{plan.key}: out is {what}, wanted a dense tensor with memory, "
                f"{plan.dtype} {plan.shape}"
            )
        elif tuple(out.shape) != plan.shape or out.dtype != plan.dtype:
            raise BatchError(
                f"{plan.key}: out is {out.dtype} {tuple(out.shape)}, "
                f"the batch is {plan.dtype} {plan.shape}"
            )
        if self.write is None:
            assert isinstance(self.ready, torch.Tensor)
            if self.ready.is_meta:
                raise BatchError(f"{plan.key}: a meta tensor has no values to write into out")
            copyable(out).copy_(copyable(self.ready.detach()))
        else:
            self.write(out)
        return out


def _has_memory(out: torch.Tensor) -> bool:
    return out.layout is torch.strided and not (out.is_nested or out.is_meta)


def of_tensor(key: str, value: torch.Tensor, keep_on_cpu: bool) -> Reduction:
    """The batch exists: `value` is it."""
    plan = Plan(key, tuple(value.shape), value.dtype, value.nbytes, 0, keep_on_cpu)
    return Reduction(plan, value)


def to_write(
    key: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    keep_on_cpu: bool,
    write: Callable[[torch.Tensor], None],
    parts: Callable[[], Sequence[Part]] | None = None,
) -> Reduction:
    """The batch must be written, with one copy of every byte."""
    check_shape(key, shape, dtype.itemsize)
    numel = 1
    for extent in shape:
        numel *= extent
    plan = Plan(key, shape, dtype, numel * dtype.itemsize, 1, keep_on_cpu)
    return Reduction(plan, write=write, parts=parts)
