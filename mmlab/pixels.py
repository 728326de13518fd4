"""Raw pixels, and the steps that make of them what a processor would have made.

A frontend may send uint8, a quarter of float32's bytes, and leave rescaling and normalization to
the engine's device. Which arithmetic gives the processor's own bits differs from one processor to
the next, so it travels with the request: a few steps of a closed table, done in their order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import torch

from mmlab.errors import BatchError

MAX_STEPS: Final = 8
PIECE: Final = 1 << 20  # values that are converted at once: 4 MiB of float32

_Op = Callable[..., torch.Tensor]
_OPS: Final[dict[str, _Op]] = {"sub": torch.sub, "div": torch.div, "mul": torch.mul}


class Step(msgspec.Struct, frozen=True):
    """One operation in float32 with a number for each channel, or one for all."""

    op: Literal["sub", "div", "mul"]
    values: tuple[float, ...]


def apply(steps: Sequence[Step], raw: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """(..., c, h, w) uint8 -> `out`, of the same shape on the same device: float32 as it comes, or
    bfloat16, rounded once at the end. Steps with one number each work on any shape, such as that
    of patches. BatchError for steps that are none."""
    _check(steps, raw, out)
    if out.dtype == torch.float32:
        return _float32(steps, raw, out, slice(None))
    if all(len(step.values) == 1 for step in steps):
        return _in_pieces(steps, raw, out)
    scratch = torch.empty(raw[..., :1, :, :].shape, device=raw.device)  # of one channel: in cache
    for channel in range(raw.shape[-3]):
        here = slice(channel, channel + 1)
        done = _float32(steps, raw[..., here, :, :], scratch, here)
        out[..., here, :, :].copy_(done)
    return out


def _in_pieces(steps: Sequence[Step], raw: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """As `apply` does to another dtype than float32, through scratch memory that stays in cache."""
    if raw.is_contiguous() and out.is_contiguous():
        pairs = zip(torch.split(raw.view(-1), PIECE), torch.split(out.view(-1), PIECE), strict=True)
        scratch = torch.empty(min(PIECE, raw.numel()), device=raw.device)
        for source, target in pairs:
            target.copy_(_float32(steps, source, scratch[: source.numel()], slice(None)))
        return out
    return out.copy_(_float32(steps, raw, torch.empty(raw.shape, device=raw.device), slice(None)))


def _float32(
    steps: Sequence[Step], raw: torch.Tensor, out: torch.Tensor, channels: slice
) -> torch.Tensor:
    """Step after step in `out`, without any other memory."""
    source = raw
    if out.is_cpu or not steps:  # there, an operation on uint8 converts into memory of its own
        source = out.copy_(raw)
    for step in steps:
        source = _OPS[step.op](source, _value(step, channels, out.device), out=out)
    return out


def _value(step: Step, channels: slice, device: torch.device) -> float | torch.Tensor:
    if device.type == "cpu" and len(step.values) == 1:
        return step.values[0]
    # Also one number: a GPU would multiply by the inverse of a plain one, which gives other bits.
    return _tensor(step.values if len(step.values) == 1 else step.values[channels], device)


@functools.lru_cache(maxsize=64)
def _tensor(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    numbers = torch.tensor(values, dtype=torch.float32, device=device)
    return numbers if len(values) == 1 else numbers.view(-1, 1, 1)


def _check(steps: Sequence[Step], raw: torch.Tensor, out: torch.Tensor) -> None:
    if raw.dtype != torch.uint8 or out.shape != raw.shape:
        raise BatchError(
            f"raw pixels: got {raw.dtype} {tuple(raw.shape)} for {tuple(out.shape)}, wanted uint8"
        )
    if len(steps) > MAX_STEPS:
        raise BatchError(f"raw pixels: got {len(steps)} steps, wanted at most {MAX_STEPS}")
    channels = raw.shape[-3] if raw.ndim >= 3 else 1
    for at, step in enumerate(steps):
        found = step.values
        if step.op not in _OPS or len(found) not in (1, channels):
            raise BatchError(
                f"raw pixels, steps[{at}]: got {step.op!r} with {len(found)} numbers, wanted one "
                f"of {', '.join(_OPS)} with 1 or {channels}"
            )
        if not all(map(math.isfinite, found)) or (step.op == "div" and 0 in found):
            raise BatchError(
                f"raw pixels, steps[{at}]: got {step.op} by {list(found)}, wanted finite numbers, "
                "and none that divides by 0"
            )
