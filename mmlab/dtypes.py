"""The closed table of dtypes that may be on the wire.

A received dtype is an index into this table and nothing else: no name is ever looked up with
`getattr`. Codes are append-only, because golden messages of format version 1 must decode for ever.
Which names exist depends on the installed torch; a code whose dtype is missing here is refused by
name when it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

_NAMES: Final[tuple[tuple[int, str], ...]] = (
    (1, "bool"),
    (2, "uint8"),
    (3, "int8"),
    (4, "uint16"),
    (5, "int16"),
    (6, "uint32"),
    (7, "int32"),
    (8, "uint64"),
    (9, "int64"),
    (10, "float16"),
    (11, "bfloat16"),
    (12, "float32"),
    (13, "float64"),
    (14, "complex32"),
    (15, "complex64"),
    (16, "complex128"),
    (17, "float8_e4m3fn"),
    (18, "float8_e5m2"),
    (19, "float8_e4m3fnuz"),
    (20, "float8_e5m2fnuz"),
    (21, "float8_e8m0fnu"),
    (22, "float4_e2m1fn_x2"),
    (23, "uint1"),
    (24, "uint2"),
    (25, "uint3"),
    (26, "uint4"),
    (27, "uint5"),
    (28, "uint6"),
    (29, "uint7"),
    (30, "int1"),
    (31, "int2"),
    (32, "int3"),
    (33, "int4"),
    (34, "int5"),
    (35, "int6"),
    (36, "int7"),
    (37, "bcomplex32"),
    (38, "bits1x8"),
    (39, "bits2x4"),
    (40, "bits4x2"),
    (41, "bits8"),
    (42, "bits16"),
)

_NUMPY_NAMES: Final = frozenset(
    (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)

NUMPY_LITTLE: Final = 64  # added to a torch code: the ndarray of that dtype, little-endian
NUMPY_BIG: Final = 128  # the same, big-endian

NAME_OF: Final[dict[int, str]] = dict(_NAMES)
TORCH_OF: Final[dict[int, torch.dtype]] = {
    code: getattr(torch, name) for code, name in _NAMES if hasattr(torch, name)
}
CODE_OF_TORCH: Final[dict[torch.dtype, int]] = {dtype: code for code, dtype in TORCH_OF.items()}
NUMPY_OF: Final[dict[int, np.dtype[np.generic]]] = {
    **{
        code + NUMPY_LITTLE: np.dtype(n).newbyteorder("<")
        for code, n in _NAMES
        if n in _NUMPY_NAMES
    },
    **{code + NUMPY_BIG: np.dtype(n).newbyteorder(">") for code, n in _NAMES if n in _NUMPY_NAMES},
}
CODE_OF_NUMPY: Final[dict[np.dtype[np.generic], int]] = {
    # one-byte dtypes have no byte order: both codes decode to the same dtype, the lower is written
    dtype: code
    for code, dtype in sorted(NUMPY_OF.items(), reverse=True)
}
ITEMSIZE: Final[dict[int, int]] = {
    **{code: dtype.itemsize for code, dtype in TORCH_OF.items()},
    **{code: dtype.itemsize for code, dtype in NUMPY_OF.items()},
}

_BITS_OF: Final[dict[torch.dtype, torch.dtype]] = {
    # dtypes that torch can hold but not copy (or not without a warning): handled as integers
    dtype: {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for name, dtype in ((NAME_OF[code], dtype) for code, dtype in TORCH_OF.items())
    if re.fullmatch(r"u?int[1-7]|bits\w+|float4\w+|b?complex32", name)
}


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or the same memory as integers where torch has no kernels for its dtype."""
    bits = _BITS_OF.get(tensor.dtype)
    return tensor if bits is None else tensor.resolve_conj().resolve_neg().view(bits)


def as_bytes(dense: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as (nbytes,) uint8, whatever its dtype and shape."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """`torch.empty`, without the warning that torch gives of dtypes it calls experimental."""
    bits = _BITS_OF.get(dtype)
    return torch.empty(shape, dtype=bits or dtype).view(dtype)


def describe(code: int) -> str:
    """`float32`, `numpy <i8`, or `unknown dtype code 99`: for error messages."""
    if code in NUMPY_OF:
        return f"numpy {NUMPY_OF[code].str}"
    return NAME_OF.get(code, f"unknown dtype code {code}")
