"""The table of dtypes: closed, append-only, complete for what torch and numpy can hold densely."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmlab import dtypes

# Codes stand in messages that were written long ago: this list may grow, no line of it may change.
FROZEN = {
    **{1: "bool", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "uint32", 7: "int32"},
    **{8: "uint64", 9: "int64", 10: "float16", 11: "bfloat16", 12: "float32", 13: "float64"},
    **{14: "complex32", 15: "complex64", 16: "complex128", 17: "float8_e4m3fn"},
    **{18: "float8_e5m2", 19: "float8_e4m3fnuz", 20: "float8_e5m2fnuz", 21: "float8_e8m0fnu"},
    **{22: "float4_e2m1fn_x2", 23: "uint1", 24: "uint2", 25: "uint3", 26: "uint4", 27: "uint5"},
    **{28: "uint6", 29: "uint7", 30: "int1", 31: "int2", 32: "int3", 33: "int4", 34: "int5"},
    **{35: "int6", 36: "int7", 37: "bcomplex32", 38: "bits1x8", 39: "bits2x4", 40: "bits4x2"},
    **{41: "bits8", 42: "bits16"},
}


def test_codes_never_change_their_meaning() -> None:
    assert {code: dtypes.NAME_OF.get(code) for code in FROZEN} == FROZEN


def test_every_code_of_this_torch_maps_to_the_dtype_of_its_name() -> None:
    for code, name in dtypes.NAME_OF.items():
        if hasattr(torch, name):
            assert dtypes.TORCH_OF[code] is getattr(torch, name)
            assert dtypes.CODE_OF_TORCH[getattr(torch, name)] == code
        else:
            assert code not in dtypes.TORCH_OF


def test_every_unquantized_dtype_of_torch_has_a_code() -> None:
    known = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    missing = known - set(dtypes.CODE_OF_TORCH)
    quantized = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
    assert missing <= {getattr(torch, name, None) for name in quantized}


def test_codes_fit_a_byte_and_do_not_meet_those_of_numpy() -> None:
    assert not set(dtypes.NAME_OF) & set(dtypes.NUMPY_OF)
    assert all(0 < code < 256 for code in (*dtypes.NAME_OF, *dtypes.NUMPY_OF))
    assert max(dtypes.NAME_OF) < dtypes.NUMPY_LITTLE


@pytest.mark.parametrize(
    "name",
    ["?", *(f"{kind}{n}" for kind in "iu" for n in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16"],
)
def test_numpy_dtypes_keep_their_byte_order(name: str) -> None:
    for dtype in (np.dtype("<" + name), np.dtype(">" + name)):
        code = dtypes.CODE_OF_NUMPY[dtype]
        assert dtypes.NUMPY_OF[code] == dtype
        assert dtypes.ITEMSIZE[code] == dtype.itemsize


@pytest.mark.parametrize("name", ["O", "U3", "S3", "M8[ns]", "m8[s]", "V4", "i4,f4"])
def test_numpy_dtypes_without_a_plain_number_have_no_code(name: str) -> None:
    assert np.dtype(name) not in dtypes.CODE_OF_NUMPY


def test_copyable_is_the_same_memory_in_a_dtype_that_torch_can_copy() -> None:
    for dtype in dtypes.CODE_OF_TORCH:
        tensor = torch.zeros(16, dtype=torch.uint8).view(dtype)[1:]
        other = dtypes.copyable(tensor)
        assert other.data_ptr() == tensor.data_ptr()
        assert other.shape == tensor.shape
        assert other.element_size() == tensor.element_size()
        torch.empty_like(other).copy_(other)  # raises where the dtype has no kernel


def test_describe_names_dtypes_and_unknown_codes() -> None:
    assert dtypes.describe(12) == "float32"
    assert dtypes.describe(12 + dtypes.NUMPY_BIG) == "numpy >f4"
    assert dtypes.describe(99) == "unknown dtype code 99"
