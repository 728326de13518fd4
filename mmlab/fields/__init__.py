"""Fields: how a processor's output becomes items, and which items form a batch again."""

from mmlab.fields.items import Entry, FieldElem, ItemList, KwargsItem, KwargsItems
from mmlab.fields.kinds import (
    BatchedField,
    Field,
    FieldConfig,
    FlatField,
    SharedField,
    batched,
    flat,
    shared,
)

__all__ = [
    "BatchedField",
    "Entry",
    "Field",
    "FieldConfig",
    "FieldElem",
    "FlatField",
    "ItemList",
    "KwargsItem",
    "KwargsItems",
    "SharedField",
    "batched",
    "flat",
    "shared",
]
