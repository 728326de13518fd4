"""One number for what a request delivered: xxh3_64 over the bytes of its items.

Modalities and keys in sorted order, items in theirs: name, dtype, shape and bytes of each value. It
does not depend on how the bytes were batched, so a request gets the same number alone and among
others, and the frontend can compute from its items what the engine must find on its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter

import numpy as np
import torch
import xxhash

from mmlab.fields import KwargsItems


def checksum_items(items: KwargsItems | None) -> int:
    """The checksum that the reply to a request with these items must have."""
    hasher = Hasher()
    for modality, entries in [] if items is None else sorted(items.items(), key=itemgetter(0)):
        for item in entries:
            if item is not None:
                hasher.add(modality, {key: elem.data for key, elem in item.items()})
    return hasher.value()


class Hasher:
    """Takes the items of one request in order."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, modality: str, item: Mapping[str, object]) -> None:
        """One item: key -> value, as its elems have them."""
        for key in sorted(item):
            self._say(f"{modality}.{key}")
            self._value(item[key])

    def value(self) -> int:
        return int(self._hash.intdigest())

    def _say(self, text: str) -> None:
        self._hash.update(f"{text};".encode())

    def _value(self, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._say(f"{value.dtype} {tuple(value.shape)}")
            self._hash.update(tensor_bytes(value))
        elif isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value)
            self._say(f"{array.dtype.str} {value.shape}")
            self._hash.update(array.reshape(-1).view(np.uint8).data)
        elif isinstance(value, Mapping):
            self._say(f"map {len(value)}")
            self._values(part for pair in value.items() for part in pair)
        elif isinstance(value, list | tuple):
            self._say(f"{type(value).__name__} {len(value)}")
            self._values(value)
        else:
            self._say(f"{type(value).__name__} {value!r}")

    def _values(self, values: Iterable[object]) -> None:
        for value in values:
            self._value(value)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in order: where they lie if it is dense and on the CPU, else a copy."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
