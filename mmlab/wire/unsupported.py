"""A value that cannot be carried: noticed deep inside an encode, reported with its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from mmlab.fields.items import KwargsItem, KwargsItems

MAX_DEPTH = 64  # nesting of values inside kwargs items


class Unsupported(Exception):
    """`value` cannot be carried; `path` is known below the object that was being encoded."""

    def __init__(self, value: object, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        self.path = path
        self.item: int | None = None  # index of the item in its block, where it is known
        self.owner: object = None  # the part of the message at which `path` begins


def locate(root: object, wanted: object) -> str:
    """`.mm` or `['a'][3]`: where `wanted` stands in `root`, by identity; '' where it does not."""
    seen: set[int] = set()
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if value is wanted:
            return path
        if id(value) in seen:
            continue
        seen.add(id(value))
        stack.extend((path + step, child) for step, child in _children(value))
    return ""


def misfit(root: object) -> tuple[str, str] | None:
    """Path and reason of the first number or string in `root` that msgpack has no room for."""
    seen: set[int] = set()
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            return path, "integer beyond 64 bits cannot be carried: send it as text"
        if isinstance(value, (bytes, bytearray, memoryview)) and len(value) >= 1 << 32:
            return path, f"{len(value)} B cannot be carried as bytes: send them as a numpy array"
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                return path, f"string {value!r:.40} with a lone surrogate cannot be carried"
        elif id(value) not in seen:
            seen.add(id(value))
            stack.extend((path + step, child) for step, child in _children(value))
    return None


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f".{name}", getattr(value, name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif isinstance(value, KwargsItems):
        for modality, entries in value.items():
            first = 0
            for block in entries.blocks:
                if isinstance(block, int):
                    first += block
                    continue
                for key, column in block.columns.items():
                    yield f".{modality}.{key}", column.whole
                    for i, part in enumerate(column.parts or ()):
                        yield f".{modality}[{first + i}].{key}", part
                first += block.size
    elif isinstance(value, KwargsItem):
        block, index = value.place
        for key, column in block.columns.items():
            yield f".{key}", column.whole if column.parts is None else column.parts[index]
    elif isinstance(value, dict):
        for key, child in value.items():
            yield f"[{key!r}] (key)", key
            yield f"[{key!r}]", child
    elif isinstance(value, (list, tuple, set, frozenset)):
        for i, child in enumerate(value):
            yield f"[{i}]", child
