"""Values of kwargs items, which come back as exactly the type they were.

Numbers, strings, bytes and None are themselves. Everything else is a msgpack array that begins
with a tag from the closed table below, so that a tuple stays a tuple and a torch.Size a Size.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as brief
from typing import Final

import msgspec
import numpy as np
import torch

from mmlab.dtypes import CODE_OF_NUMPY, CODE_OF_TORCH, ITEMSIZE, NUMPY_OF, TORCH_OF
from mmlab.errors import WireError
from mmlab.wire.keys import MAX_TUPLE_KEYS, too_many_keys
from mmlab.wire.payload import WIDE, Payload
from mmlab.wire.table import Table
from mmlab.wire.unsupported import MAX_DEPTH, Unsupported

(
    TENSOR,  # number | WIDE
    PLAIN_LIST,  # [list of plain values]: read without a walk
    LIST,  # value ...
    TUPLE,  # value ...
    SIZE,  # extent ...
    DICT,  # key, value ...
    SLICE,  # start, stop, step
    DTYPE,  # code
    NUMPY_SCALAR,  # code, bytes
    NUMPY_STR,  # str
    NUMPY_BYTES,  # bytes
    BYTEARRAY,  # bytes
    NUMPY_DTYPE,  # code
) = range(13)

_PLAIN: Final = frozenset((bool, float, str, bytes, type(None)))
_PLAIN_ITEMS: Final = _PLAIN - {bytes}

Packed = object


def pack(value: object, payload: Payload, depth: int = 0) -> Packed:
    """A value -> what msgpack can hold; tensors go to `payload`. Unsupported names what cannot."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        if not -(1 << 63) <= value < 1 << 64:  # type: ignore[operator]
            raise Unsupported(value, "integer beyond 64 bits cannot be carried: send it as text")
        return value
    if depth >= MAX_DEPTH and kind in _PACKERS:
        raise Unsupported(value, f"values nested deeper than {MAX_DEPTH} cannot be carried")
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return [TENSOR, payload.number(value) | WIDE]
    packer = _PACKERS.get(kind)
    if packer is not None:
        return packer(value, payload, depth + 1)
    if isinstance(value, (np.generic, np.dtype)):
        return _pack_numpy(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise Unsupported(
        value,
        f"{name} cannot be carried: wanted tensors, arrays, numbers, strings, bytes, None, "
        "or lists, tuples and dicts of them",
    )


def _pack_items(
    values: list[object] | tuple[object, ...], payload: Payload, depth: int
) -> list[Packed]:
    packed = []
    for i, value in enumerate(values):
        try:
            packed.append(pack(value, payload, depth))
        except Unsupported as error:
            error.path = f"[{i}]{error.path}"
            raise
    return packed


def _pack_list(value: list[object], payload: Payload, depth: int) -> Packed:
    kinds = set(map(type, value))
    if kinds <= _PLAIN_ITEMS or (
        kinds <= _PLAIN_ITEMS | {int}
        and all(-(1 << 63) <= n < 1 << 64 for n in value if type(n) is int)
    ):
        return [PLAIN_LIST, value]
    return [LIST, *_pack_items(value, payload, depth)]


def _pack_dict(value: dict[object, object], payload: Payload, depth: int) -> Packed:
    out: list[Packed] = [DICT]
    if len(value) > MAX_TUPLE_KEYS and sum(type(k) is tuple for k in value) > MAX_TUPLE_KEYS:
        raise Unsupported(value, too_many_keys())
    for key, part in value.items():
        if not _is_key(key):
            raise Unsupported(key, f"dict key {brief(key)} cannot be carried")
        try:
            out += (pack(key, payload, depth), pack(part, payload, depth))
        except Unsupported as error:
            error.path = f"[{key!r}]{error.path}"
            raise
    return out


def _is_key(key: object) -> bool:
    return (
        type(key) in _PLAIN or type(key) is int or (type(key) is tuple and all(map(_is_key, key)))
    )


def _pack_slice(value: slice, payload: Payload, depth: int) -> Packed:
    return [SLICE, *(pack(part, payload, depth) for part in (value.start, value.stop, value.step))]


def _pack_dtype(value: torch.dtype, payload: Payload, depth: int) -> Packed:
    code = CODE_OF_TORCH.get(value)
    if code is None:
        raise Unsupported(value, f"{value} cannot be carried: not in mmlab.dtypes")
    return [DTYPE, code]


def _pack_numpy(value: np.generic | np.dtype[np.generic]) -> Packed:
    if isinstance(value, np.str_):
        return [NUMPY_STR, str.__str__(value)]  # numpy's own drops zeros at the end
    if isinstance(value, np.bytes_):
        return [NUMPY_BYTES, bytes(value)]
    code = CODE_OF_NUMPY.get(value if isinstance(value, np.dtype) else value.dtype)
    if code is None or isinstance(value, np.dtype):
        if code is not None:
            return [NUMPY_DTYPE, code]
        raise Unsupported(value, f"numpy {getattr(value, 'dtype', value)} cannot be carried")
    return [NUMPY_SCALAR, code, value.tobytes()]


_PACKERS: Final[dict[type, Callable[..., Packed]]] = {
    list: _pack_list,
    tuple: lambda v, payload, depth: [TUPLE, *_pack_items(v, payload, depth)],
    torch.Size: lambda v, payload, depth: [SIZE, *v],
    dict: _pack_dict,
    slice: _pack_slice,
    torch.dtype: _pack_dtype,
    bytearray: lambda v, payload, depth: [BYTEARRAY, bytes(v)],
}


def unpack(value: Packed, table: Table, depth: int = 0) -> object:
    """The reverse of `pack`. WireError on anything that `pack` does not write."""
    if type(value) is not list:
        if type(value) in _PLAIN or type(value) is int:
            return value
        raise WireError(
            f"value: got {type(value).__name__}, wanted a plain value or a tagged array"
        )
    if not value or type(value[0]) is not int or not 0 <= value[0] < len(_UNPACKERS):
        raise WireError(f"value: tag {brief(value[:1])}, wanted 0 to {len(_UNPACKERS) - 1}")
    if depth > MAX_DEPTH:
        raise WireError(f"values nested deeper than {MAX_DEPTH}")
    return _UNPACKERS[value[0]](value, table, depth + 1)


def _items(value: list[Packed], table: Table, depth: int) -> list[object]:
    """The parts behind the tag, in the list they came in: no second list is made for them."""
    for i in range(1, len(value)):
        value[i] = unpack(value[i], table, depth)
    del value[0]
    return value


def _tensor(value: list[Packed], table: Table, depth: int) -> object:
    number = value[1] if len(value) == 2 else None
    if type(number) is not int or number < WIDE:
        raise WireError(f"value: tensor reference {brief(value[1:])}, wanted one number")
    return table.get(number - WIDE)


def _plain_list(value: list[Packed], table: Table, depth: int) -> object:
    _want(len(value) == 2 and type(value[1]) is list, value, "[list of plain values]")
    plain = value[1]
    assert type(plain) is list
    _want(set(map(type, plain)) <= _PLAIN_ITEMS | {int}, value, "plain values")
    return plain


def _size(value: list[Packed], table: Table, depth: int) -> object:
    _want(all(type(n) is int and 0 <= n < 1 << 63 for n in value[1:]), value, "extents")
    return torch.Size(value[1:])  # type: ignore[arg-type]


def _dict(value: list[Packed], table: Table, depth: int) -> object:
    _want(len(value) % 2 == 1, value, "keys and values")
    parts = _items(value, table, depth)
    keys = parts[::2]
    for key in keys:  # by its type: to print a tensor takes longer than to decode a message
        if not _is_key(key):
            raise WireError(f"value: dict key of type {type(key).__name__}, wanted a plain one")
    if len(keys) > MAX_TUPLE_KEYS and sum(type(k) is tuple for k in keys) > MAX_TUPLE_KEYS:
        raise WireError(f"value: {too_many_keys()}")
    made = dict(zip(keys, parts[1::2], strict=True))
    if len(made) != len(keys):
        raise WireError(f"value: a dict key stands twice in {brief(keys)}")
    return made


def _slice(value: list[Packed], table: Table, depth: int) -> object:
    _want(len(value) == 4, value, "start, stop, step")
    return slice(*_items(value, table, depth))


def _dtype(value: list[Packed], table: Table, depth: int) -> object:
    _want(len(value) == 2 and type(value[1]) is int, value, "a torch dtype's code")
    _want(value[1] in TORCH_OF, value, "a torch dtype's code")
    return TORCH_OF[value[1]]  # type: ignore[index]


def _numpy_dtype(value: list[Packed], table: Table, depth: int) -> object:
    _want(len(value) == 2 and type(value[1]) is int, value, "a numpy dtype's code")
    _want(value[1] in NUMPY_OF, value, "a numpy dtype's code")
    return NUMPY_OF[value[1]]  # type: ignore[index]


def _numpy_scalar(value: list[Packed], table: Table, depth: int) -> object:
    _want(
        len(value) == 3 and type(value[1]) is int and type(value[2]) is bytes, value, "code, bytes"
    )
    _want(value[1] in NUMPY_OF, value, "a numpy dtype's code")
    _, code, raw = value
    _want(len(raw) == ITEMSIZE[code], value, "one scalar's bytes")  # type: ignore[arg-type, index]
    return np.frombuffer(raw, NUMPY_OF[code])[0]  # type: ignore[index, call-overload]


def _of(kind: type, make: Callable[[object], object]) -> Callable[..., object]:
    def one(value: list[Packed], table: Table, depth: int) -> object:
        _want(len(value) == 2 and type(value[1]) is kind, value, kind.__name__)
        return make(value[1])

    return one


_UNPACKERS: Final[tuple[Callable[[list[Packed], Table, int], object], ...]] = (
    _tensor,
    _plain_list,
    _items,
    lambda v, table, depth: tuple(_items(v, table, depth)),
    _size,
    _dict,
    _slice,
    _dtype,
    _numpy_scalar,
    _of(str, np.str_),
    _of(bytes, np.bytes_),
    _of(bytes, bytearray),  # type: ignore[arg-type]
    _numpy_dtype,
)


def _want(ok: bool, value: list[Packed], wanted: str) -> None:
    if not ok:
        raise WireError(f"value with tag {value[0]}: got {len(value) - 1} parts, wanted {wanted}")


encode_plain = msgspec.msgpack.Encoder().encode
