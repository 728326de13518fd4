"""Sizes in bytes as people type them."""

from __future__ import annotations

import re

from mmlab.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


def parse_nbytes(text: str) -> int:
    """`512MiB`, `1.5 GB`, `1048576` -> bytes; UsageError names the units."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise UsageError(f"size {text!r}: wanted a number with B, kB, MB, GB, KiB, MiB or GiB")
    return int(float(found[1]) * factor)
