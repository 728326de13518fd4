"""uint8 pixels normalized on the device: within one unit in the last place of the CPU's result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mmlab import pixels
from mmlab.bench.gpu.context import Context
from mmlab.bench.gpu.findings import Finding
from mmlab.pixels import Step

MAX_ULP = 1
MODELS = ("gemma3-tiny", "gemma4-tiny")
# The steps that give the bits of each image processor: Gemma 3's and Gemma 4's, both backends.
STEPS = {
    "Gemma 3, torchvision": (Step("sub", (127.5,)), Step("div", (127.5,))),
    "Gemma 3, PIL": (Step("div", (255.0,)), Step("sub", (0.5,)), Step("div", (0.5,))),
    "Gemma 4, torchvision": (Step("mul", (1 / 255,)),),
    "Gemma 4, PIL": (Step("div", (255.0,)),),
}


def normalized(context: Context) -> Iterator[Finding]:
    """All 256 values in three channels; then what the processors of the tiny presets say."""
    for name, steps in STEPS.items():
        yield _judge(context, name, steps)
    from mmlab.gemma import load_frontend

    image = np.zeros((28, 28, 3), np.uint8)
    for model in MODELS:
        told = load_frontend(model).process("", [image], payload=torch.uint8).steps
        for steps in (told or {}).values():
            yield _judge(context, f"{model}'s own", steps)


def _judge(context: Context, name: str, steps: tuple[Step, ...]) -> Finding:
    raw = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(3, 1, 1)
    wanted = pixels.apply(steps, raw, torch.empty(raw.shape))
    there = raw.to(context.torch_device)
    out = torch.empty(raw.shape, device=context.torch_device)
    found = pixels.apply(steps, there, out).cpu()
    most = ulps(found, wanted)
    name = f"uint8 normalized: {name}"
    return Finding(name, f"{most} ulp", f"<= {MAX_ULP} ulp of the CPU", most <= MAX_ULP)


def ulps(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """The most float32 numbers that lie between two values of the same place."""
    return int((_place(found) - _place(wanted)).abs().max())


def _place(values: torch.Tensor) -> torch.Tensor:
    """Where each value stands among all float32 numbers; both zeros at 0."""
    bits = values.contiguous().view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
