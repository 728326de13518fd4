"""Whatever a caller calls a clip of sound -> samples at the model's rate, or an error naming it.

One channel: mixing channels down is a choice that only the caller can make.
"""

from __future__ import annotations

from math import gcd
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mmlab.errors import UsageError

Samples: TypeAlias = npt.NDArray[np.float32]

WANTED: Final = (
    "a 1-d array of float32 or float64 in -1..1 or of int16, or a tuple (array, sampling rate)"
)
INT16_SCALE: Final = 32_768.0
# Decoders overshoot 1 by a little; whole numbers of a sample format go far beyond.
LARGEST: Final = 2.0
RATES: Final = (1_000, 768_000)  # Hz; the filter that resamples grows with them


def as_audio(value: object, index: int, rate: int) -> Samples:
    """(samples,) float32 at `rate` Hz, resampled where a tuple says that it has another rate."""
    given = rate
    if isinstance(value, tuple):
        if len(value) != 2:
            raise _refused(index, f"got a tuple of {len(value)}")
        samples, given = _samples(value[0], index), _rate(value[1], index)
    else:
        samples = _samples(value, index)
    if given == rate:
        return samples
    from scipy.signal import resample_poly

    common = gcd(given, rate)
    made = resample_poly(samples, rate // common, given // common)
    return np.ascontiguousarray(made, dtype=np.float32)


def _samples(value: object, index: int) -> Samples:
    if isinstance(value, torch.Tensor):
        if not value.is_cpu or value.dtype not in (torch.float32, torch.float64, torch.int16):
            raise _refused(index, f"got a tensor of {value.dtype} on {value.device}")
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray):
        hint = " (samples come decoded)" if isinstance(value, str | bytes) else ""
        raise _refused(index, f"got {type(value).__qualname__}{hint}")
    if value.dtype not in (np.float32, np.float64, np.int16):
        raise _refused(index, f"got an array of {value.dtype}")
    if value.ndim != 1:
        raise _refused(index, f"got an array of shape {value.shape}")
    if not value.size:
        raise _refused(index, "got an empty array")
    if value.dtype == np.int16:
        return value.astype(np.float32) / np.float32(INT16_SCALE)
    low, high = float(value.min()), float(value.max())
    if not (np.isfinite(low) and np.isfinite(high)):  # one NaN makes both of them NaN
        raise _refused(index, "got NaN or infinite samples")
    if max(-low, high) > LARGEST:
        raise _refused(index, f"got samples from {low:g} to {high:g}")
    return np.ascontiguousarray(value, dtype=np.float32)


def _rate(value: object, index: int) -> int:
    low, high = RATES
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        got = type(value).__qualname__
        raise _refused(index, f"got a sampling rate that is a {got}")
    if not low <= value <= high:
        raise UsageError(
            f"audios[{index}]: got a sampling rate of {value} Hz, wanted {low} to {high}"
        )
    return int(value)


def _refused(index: int, got: str) -> UsageError:
    return UsageError(f"audios[{index}]: {got}, wanted {WANTED}")
