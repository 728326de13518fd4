"""From a processor's batched outputs to blocks: every check that a caller's mistake can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch

from mmlab.errors import BatchError
from mmlab.fields.column import Block, Column, Value
from mmlab.fields.items import MAX_ITEMS
from mmlab.fields.kinds import BatchedField, FieldConfig, FlatField, SharedField

_LAYOUTS = (torch.strided, torch.jagged)  # of wholes whose items are views


def blocks_from_processor(
    outputs: Mapping[str, Value], config: Mapping[str, FieldConfig]
) -> dict[str, Block]:
    """One block per modality, columns in the order of `outputs` (`KwargsItems.from_processor`)."""
    if not isinstance(outputs, Mapping):
        raise BatchError(
            f"outputs: got {type(outputs).__name__}, wanted a mapping key -> value, "
            "as a processor returns it"
        )
    if not isinstance(config, Mapping):
        raise BatchError(
            f"config: got {type(config).__name__}, wanted a mapping key -> mmlab.batched(...), "
            "flat(...) or shared(...)"
        )
    for key in outputs:
        if not isinstance(key, str):
            raise BatchError(f"outputs[{key!r}]: got a {type(key).__name__}, wanted a name")
        if key not in config:
            raise BatchError(
                f"outputs[{key!r}] has no field: add it to config, "
                f"e.g. {key!r}: mmlab.batched('image'), or drop it from the outputs"
            )
    for key, entry in config.items():
        if not isinstance(entry, FieldConfig):
            raise BatchError(
                f"config[{key!r}]: got {type(entry).__name__}, "
                "wanted mmlab.batched(...), flat(...) or shared(...)"
            )
        if key not in outputs:
            raise BatchError(
                f"config[{key!r}] ({entry.modality}): no such output; "
                f"outputs are {', '.join(map(repr, outputs)) or '(none)'}"
            )
    by_modality: dict[str, dict[str, Column]] = {}
    for key, value in outputs.items():
        entry = config[key]
        columns = by_modality.setdefault(entry.modality, {})
        column = _column(f"{entry.modality}.{key}", value, entry)
        for other_key, other in columns.items():
            if other.size != column.size:
                raise BatchError(
                    f"{entry.modality}.{key} has {column.size} items, "
                    f"{entry.modality}.{other_key} has {other.size}: "
                    "all keys of a modality must have one elem per item"
                )
        columns[key] = column
    return {m: Block(_size(m, columns), columns) for m, columns in by_modality.items()}


def _size(modality: str, columns: Mapping[str, Column]) -> int:
    size = next(iter(columns.values())).size
    if size > MAX_ITEMS:
        raise BatchError(f"{modality}: {size} items, at most {MAX_ITEMS}")
    return size


def _column(where: str, value: Value, entry: FieldConfig) -> Column:
    field = entry.field
    if isinstance(field, SharedField):
        return Column(field, field.batch_size, value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if isinstance(value, torch.Tensor) and value.layout not in _LAYOUTS:
            raise BatchError(
                f"{where}: got a {value.layout} tensor, which cannot be cut into items: "
                "make it dense first (to_dense())"
            )
        if value.ndim == 0:
            raise BatchError(f"{where}: got a 0-d {type(value).__name__}, wanted a batch dimension")
    elif not isinstance(value, (list, tuple)):
        raise BatchError(
            f"{where}: got {type(value).__name__}, wanted a tensor, an array or a list "
            "(one value for all items is mmlab.shared)"
        )
    if isinstance(field, BatchedField):
        if isinstance(value, (list, tuple)):
            return Column(field, len(value), parts=value)
        size = value.size(0) if isinstance(value, torch.Tensor) else value.shape[0]
        return Column(field, size, value)
    return _flat_column(where, value, field, entry.sizes or ())


def _flat_column(
    where: str,
    value: torch.Tensor | np.ndarray | Sequence[Value],
    field: FlatField,
    sizes: tuple[int, ...],
) -> Column:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise BatchError(f"{where}: got a nested tensor, wanted a list of its parts (unbind())")
        if not -value.ndim <= field.dim < value.ndim:
            raise BatchError(f"{where}: dim {field.dim} of a {value.ndim}-d value")
        extent = value.shape[field.dim]
    elif field.dim != 0:
        raise BatchError(f"{where}: dim {field.dim} of a list, wanted 0")
    else:
        extent = len(value)
    offsets = (0, *accumulate(sizes))
    if offsets[-1] != extent:
        at = next((i for i, o in enumerate(offsets[1:]) if o > extent), len(sizes) - 1)
        raise BatchError(
            f"{where}: sizes of {len(sizes)} items sum to {offsets[-1]}, dim {field.dim} has "
            f"{extent} (off at item {max(at, 0)})"
        )
    return Column(field, len(sizes), value, offsets=offsets)
