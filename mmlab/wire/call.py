"""One encode: it collects the payload while msgspec writes the body.

All state of an encode lives here, so that threads may share an Encoder and an encode may run inside
another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import torch

from mmlab.fields.items import KwargsItem, KwargsItems
from mmlab.wire.columns import pack_item, pack_items
from mmlab.wire.payload import FEW_REFERENCES, FIRST, REFERENCES, Ext, Payload
from mmlab.wire.unsupported import Unsupported
from mmlab.wire.values import encode_plain, pack

T = TypeVar("T")
R = TypeVar("R")

EXT_VALUE: Final = 2  # msgpack of a tagged value (mmlab.wire.values)
EXT_ITEMS: Final = 3  # msgpack of all items of a request (mmlab.wire.columns)
EXT_ITEM: Final = 4  # msgpack of one item


class Call:
    """One encode: what it has found so far that msgspec does not know."""

    # nothing, one tensor, or all that there is (a default of the class: no message, no attribute)
    found: torch.Tensor | Payload | None = None

    def start(self) -> Payload:
        """The payload, with the tensor found first as its number 0."""
        found = self.found
        if isinstance(found, Payload):
            return found
        payload = self.found = Payload()
        if found is not None:
            payload.number(found)
        return payload

    def hook(self, value: object) -> Ext:
        """What msgspec does not know."""
        found = self.found
        if type(value) is torch.Tensor:
            if found is None:
                self.found = value
                return FIRST
            payload = found if type(found) is Payload else self.start()
            new = len(payload.values)
            number = payload.memo.setdefault(id(value), new)
            if number == new:
                payload.values.append(value)
            if number < FEW_REFERENCES:
                return REFERENCES[number]
            return payload.reference(value)
        payload = found if type(found) is Payload else self.start()
        if isinstance(value, (torch.Tensor, np.ndarray)):
            return payload.reference(value)
        if isinstance(value, KwargsItems):
            if type(value) is not KwargsItems or value.foreign is not None:
                raise Unsupported(value, value.foreign or _subclass(type(value), KwargsItems))
            return Ext(EXT_ITEMS, _inside(value, pack_items, payload))
        if isinstance(value, KwargsItem):
            if type(value) is not KwargsItem:
                raise Unsupported(value, _subclass(type(value), KwargsItem))
            return Ext(EXT_ITEM, _inside(value, pack_item, payload))
        return Ext(EXT_VALUE, encode_plain(_inside(value, pack, payload)))


def _inside(value: T, pack_value: Callable[[T, Payload], R], payload: Payload) -> R:
    """Pack; what fails inside `value` has a path that begins at it."""
    try:
        return pack_value(value, payload)
    except Unsupported as error:
        error.owner = value
        raise


def _subclass(kind: type, base: type) -> str:
    return f"{kind.__name__} is a subclass of {base.__name__}: its own fields would be lost"
