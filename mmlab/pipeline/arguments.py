"""Numbers, seconds and token ids from a caller: taken as they are meant, or refused by name."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence

import numpy as np
import torch

from mmlab.errors import UsageError

FOREVER = 1e9  # seconds; waits beyond it have no end, and no clock of the kernel has to hold them
MAX_START_S = 1e6  # seconds; what poll() can wait for, in whole milliseconds of 31 bits
INT64 = 1 << 63
MAX_NEW_TOKENS = 1 << 31

TokenIds = Sequence[int] | torch.Tensor | np.ndarray


def whole(name: str, value: object, least: int, most: int, *, otherwise: str = "") -> int:
    """A whole number from `least` to `most`; UsageError else (a bool is none)."""
    if not isinstance(value, bool | np.bool_ | torch.Tensor | np.ndarray):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if least <= number <= most:
                return number
    wanted = f"a whole number from {least} to {most}{otherwise}"
    raise UsageError(f"{name}: got {_short(value)}, wanted {wanted}")


def switch(name: str, value: object) -> bool:
    """True or False, and nothing that only counts as such."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}: got {_short(value)}, wanted True or False")
    return value


def start_seconds(name: str, value: object) -> float:
    """Seconds above 0 that a start may take."""
    seconds = _real(value)
    if seconds is None or not 0 < seconds <= MAX_START_S:
        wanted = f"seconds above 0, at most {MAX_START_S:.0f}"
        raise UsageError(f"{name}: got {_short(value)}, wanted {wanted}")
    return seconds


def wait_seconds(name: str, value: object) -> float | None:
    """Seconds to wait; None for a wait without end, which one of ages becomes too."""
    if value is None:
        return None
    seconds = _real(value)
    if seconds is None or math.isnan(seconds):
        raise UsageError(f"{name}: got {_short(value)}, wanted seconds, or None for no limit")
    return seconds if seconds < FOREVER else None


def token_list(value: object) -> list[int]:
    """Token ids of a sequence, or of a tensor or array with one dim, as a list of int."""
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim != 1:
            got = f"a {type(value).__qualname__} of shape {tuple(value.shape)}"
            raise UsageError(f"token_ids: got {got}, wanted whole numbers in one dim")
        value = value.tolist()
    elif isinstance(value, str | bytes) or not isinstance(value, Sequence | range):
        raise UsageError(f"token_ids: got {_short(value)}, wanted a sequence of whole numbers")
    return [whole(f"token_ids[{at}]", number, -INT64, INT64 - 1) for at, number in enumerate(value)]


def _real(value: object) -> float | None:
    """As a float; None for what is no real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:80] + '...'} ({type(value).__qualname__})"
