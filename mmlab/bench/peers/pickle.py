"""The peer that mmlab is measured against: items pickled the way vLLM did it before #16432.

Every elem is a view of its batch, and pickle writes a view's whole storage: n items of a batch cost
n batches. Unpickling runs whatever code a message names, so this is reached only with
`insecure_pickle=True` and only over sockets in a private directory.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import torch

from mmlab.errors import WireError
from mmlab.fields import Field, FieldElem, KwargsItem, KwargsItems

# modality -> items -> key -> (value, its field)
Plain = Mapping[str, Sequence[Mapping[str, tuple[object, Field]]]]


def plain(items: KwargsItems) -> Plain:
    """Items as dicts, lists and tuples: nothing of how mmlab holds them, one view for each elem."""
    return {
        modality: [
            {key: (elem.data, elem.field) for key, elem in item.items()}
            for item in entries
            if item is not None
        ]
        for modality, entries in items.items()
    }


def dumps_items(items: KwargsItems) -> bytes:
    """The pickle of `plain(items)`."""
    return pickle.dumps(plain(items), protocol=pickle.HIGHEST_PROTOCOL)


def loads_items(data: bytes | bytearray | memoryview) -> KwargsItems:
    """Items from `dumps_items`. Runs code that `data` names. WireError if they are none."""
    try:
        found: Plain = pickle.loads(data)
        return KwargsItems(
            {
                modality: [
                    KwargsItem({key: FieldElem(*value) for key, value in item.items()})
                    for item in entries
                ]
                for modality, entries in found.items()
            }
        )
    except Exception as error:
        raise WireError(f"pickled items: {type(error).__name__}: {error}") from error


def dumps_tensors(tensors: Sequence[torch.Tensor]) -> bytes:
    """pickle at its best: each tensor's own bytes, once, in the stream (protocol 5 in band)."""
    plain = [
        (
            str(t.dtype).removeprefix("torch."),
            tuple(t.shape),
            t.reshape(-1).view(torch.uint8).numpy(),
        )
        for t in tensors
    ]
    return pickle.dumps(plain, protocol=5)


def loads_tensors(data: bytes | bytearray | memoryview) -> list[torch.Tensor]:
    """Tensors from `dumps_tensors`. Runs code that `data` names."""
    return [
        torch.from_numpy(array).view(getattr(torch, dtype)).view(shape)
        for dtype, shape, array in pickle.loads(data)
    ]
