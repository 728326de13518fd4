"""Weights of a model: drawn by seed for a preset, read from safetensors for a checkpoint.

A small preset is drawn on the CPU, so that its weights are the same on any device. A large one is
drawn where it will live and in its own dtype: it never exists a second time, and one that does not
fit is refused before the first byte is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

import torch

from mmlab.errors import UsageError
from mmlab.gemma.checkpoint import quiet, readable
from mmlab.gemma.presets import Preset
from mmlab.measure.capacity import available_nbytes, gib_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

M = TypeVar("M", bound="PreTrainedModel")

# Fused kernels on CPU and GPU that take the mask of the image blocks. The encoder of sound has its
# own blocked attention and no other.
ATTENTION: Final = dict.fromkeys(("", "text_config", "vision_config"), "sdpa")


def made(
    family: type[M],
    draw_preset: Callable[[Preset], M],
    name: str,
    source: Preset | Path,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> M:
    """The model on its device. `seed` is for presets; weights of a tiny one are the same on any
    device, those of a large one are drawn where it lives."""
    if isinstance(source, Path):
        return placed(read(family, name, source, dtype), device)
    make = partial(draw_preset, source)
    if source.large:
        return draw_in_place(name, make, device, dtype, seed)
    return draw(make, device, dtype, seed)


def draw(make: Callable[[], M], device: torch.device, dtype: torch.dtype, seed: int) -> M:
    """`make()` with random weights of `seed`. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    # Parameters only: rotary frequencies are buffers, and lose their meaning in bfloat16.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return placed(model, device)


def draw_in_place(
    name: str, make: Callable[[], M], device: torch.device, dtype: torch.dtype, seed: int
) -> M:
    """`make()` on `device` in `dtype` from the start; UsageError where it does not fit there."""
    with device_and_dtype(torch.device("meta"), dtype):
        needed = nbytes(make())
    check_fits(name, needed, device, dtype)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), device_and_dtype(device, dtype):
        torch.manual_seed(seed)
        model = make()
    return placed(model, device)


def placed(model: M, device: torch.device) -> M:
    """The model on its device, with the attention that every model here uses."""
    model.set_attn_implementation(ATTENTION)
    module: torch.nn.Module = model
    module.to(device)
    return model


def nbytes(model: torch.nn.Module) -> int:
    """Of all parameters, those used in two places once, and buffers."""
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])


def check_fits(name: str, needed: int, device: torch.device, dtype: torch.dtype) -> None:
    """UsageError unless `needed` bytes are free on `device`."""
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    elif device.type == "cpu":
        free = available_nbytes()
    else:
        return
    if needed > free:
        raise UsageError(
            f"model {name!r}: its weights need {needed} bytes ({gib_text(needed)}) in {dtype},"
            f" {free} bytes ({gib_text(free)}) are free on {device}; the -tiny presets fit anywhere"
        )


@contextmanager
def device_and_dtype(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """New tensors are made there, and floats are that."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def read(family: type[M], name: str, source: Path, dtype: torch.dtype) -> M:
    """A checkpoint's model on the CPU; UsageError where a weight is missing or unreadable."""
    with readable(name), quiet():
        loaded = family.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,  # the other format of weights is a pickle
            local_files_only=True,
            output_loading_info=True,
        )
    model, info = cast("tuple[M, dict[str, list[str]]]", loaded)
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise UsageError(
            f"model {name!r}: {len(missing)} of its weights are not in the checkpoint,"
            f" the first is {missing[0]}"
        )
    return model
