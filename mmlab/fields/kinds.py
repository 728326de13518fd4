"""How the elems of one key combine into a batch, and how a batch splits into elems.

The names are those of vLLM's multimodal fields. A field says nothing about a single item's size:
sizes belong to the column (`fields.column`), which holds them once for all its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import index as as_index

import msgspec
import numpy as np
import torch

from mmlab.errors import BatchError


class BatchedField(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Items lie along a new first dimension: elem `i` is `batch[i]`; a batch is their stack.

    `pad`: None gives a list where shapes differ; a number gives one tensor padded with it.
    """

    keep_on_cpu: bool = False
    pad: float | int | bool | None = None


class FlatField(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Items are slices along `dim`: a batch is their concatenation.

    Other dimensions may differ between items: the batch is then zero-padded in them.
    """

    dim: int = 0
    keep_on_cpu: bool = False


class SharedField(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """One value that all `batch_size` items of the batch have in common."""

    batch_size: int = 1
    keep_on_cpu: bool = False


PAD_MIN, PAD_MAX = -(1 << 63), (1 << 64) - 1  # integers of some dtype, int64 or uint64

Field = BatchedField | FlatField | SharedField


class FieldConfig(msgspec.Struct, frozen=True):
    """What `batched`, `flat` and `shared` return: a modality, a field, and flat items' sizes."""

    modality: str
    field: Field
    sizes: tuple[int, ...] | None = None


def _check_modality(modality: object) -> str:
    if not isinstance(modality, str) or not modality:
        raise BatchError(f"modality: got {modality!r}, wanted a name such as 'image'")
    return modality


def _check_flag(modality: str, keep_on_cpu: object) -> bool:
    if not isinstance(keep_on_cpu, bool):
        raise BatchError(f"{modality}: keep_on_cpu is {keep_on_cpu!r}, wanted True or False")
    return keep_on_cpu


def _check_pad(modality: str, pad: object) -> None:
    if pad is None or isinstance(pad, (bool, float)):
        return
    if not isinstance(pad, int):
        raise BatchError(f"{modality}: pad is {pad!r}, wanted a number, or None for no padding")
    if not PAD_MIN <= pad <= PAD_MAX:  # its digits may be too many to print
        raise BatchError(
            f"{modality}: pad is an integer of {pad.bit_length()} bits, "
            "wanted -2**63 to 2**64 - 1; pass a larger number as a float"
        )


def to_int(value: object, where: str) -> int:
    """An int from an int, numpy integer, 0-d / one-element tensor or array, or `[int]`."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if (
            value.ndim <= 1
            and (value.numel() if isinstance(value, torch.Tensor) else value.size) == 1
        ):
            with suppress(RuntimeError):  # a meta tensor has no value
                value = value.item()
    elif isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, bool):
        try:
            return as_index(value)  # type: ignore[arg-type]
        except (TypeError, RuntimeError):
            pass
    raise BatchError(f"{where}: got {type(value).__name__} {value!r}, wanted an integer")


def batched(
    modality: str, keep_on_cpu: bool = False, *, pad: float | int | bool | None = None
) -> FieldConfig:
    """A key whose first dimension counts the items of `modality`; see `BatchedField`."""
    modality = _check_modality(modality)
    _check_pad(modality, pad)
    return FieldConfig(modality, BatchedField(_check_flag(modality, keep_on_cpu), pad))


def flat(
    modality: str,
    sizes: Sequence[int] | torch.Tensor | np.ndarray | None = None,
    dim: int = 0,
    keep_on_cpu: bool = False,
    *,
    slices: Sequence[slice] | None = None,
) -> FieldConfig:
    """A key whose items are slices of `sizes[i]` (or `slices[i]`) along `dim`; see `FlatField`.

    `sizes`: one integer per item, zero allowed. `slices` follow each other from 0 without gaps.
    """
    modality = _check_modality(modality)
    if (sizes is None) == (slices is None):
        raise BatchError(f"{modality}: flat() takes either sizes or slices, exactly one of them")
    given = sizes if slices is None else slices
    if not isinstance(given, (Sequence, torch.Tensor, np.ndarray)) or not getattr(given, "ndim", 1):
        raise BatchError(f"{modality}: flat() got {given!r}, wanted a sequence, one for each item")
    if sizes is not None and len(sizes) and isinstance(sizes[0], slice):
        raise BatchError(f"{modality}: flat() got slices as sizes; pass them as slices=")
    out: list[int] = []
    if sizes is not None:
        for i, size in enumerate(sizes):
            n = to_int(size, f"{modality}[{i}]: flat size")
            if n < 0:
                raise BatchError(f"{modality}[{i}]: flat size is {n}, wanted 0 or more")
            out.append(n)
    else:
        end = 0
        for i, part in enumerate(slices or ()):
            where = f"{modality}[{i}]: flat slice"
            if not isinstance(part, slice):
                raise BatchError(f"{where}: got {part!r}, wanted a slice")
            start = end if part.start is None else to_int(part.start, where)
            stop = to_int(part.stop, where)
            if start != end or stop < start or part.step not in (None, 1):
                raise BatchError(
                    f"{where} is {part}: wanted to start at {end} (slices follow each other)"
                )
            out.append(stop - start)
            end = stop
    field = FlatField(to_int(dim, f"{modality}: dim"), _check_flag(modality, keep_on_cpu))
    return FieldConfig(modality, field, tuple(out))


def shared(modality: str, batch_size: int, keep_on_cpu: bool = False) -> FieldConfig:
    """A key with one value for all `batch_size` items of `modality`; see `SharedField`."""
    n = to_int(batch_size, f"{_check_modality(modality)}: batch_size")
    if n < 0:
        raise BatchError(f"{modality}: batch_size is {n}, wanted 0 or more")
    return FieldConfig(modality, SharedField(n, _check_flag(modality, keep_on_cpu)))
