"""Which steps on raw pixels give bit for bit what an image processor makes of them.

Rescaling and normalization map each of the 256 values of a channel to one float, whatever the
image. So the steps need not be believed: the processor itself is shown all 256 values, and what
does not give its answers is no candidate. That honours the factors, means and deviations of any
checkpoint, and notices a release that computes in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt
import torch

from mmlab import pixels
from mmlab.errors import BatchError
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import (
        Gemma3ImageProcessor,
        Gemma3ImageProcessorPil,
        Gemma4ImageProcessor,
        Gemma4VideoProcessor,
    )

    Gemma3Images = Gemma3ImageProcessor | Gemma3ImageProcessorPil
    Settings = Gemma3Images | Gemma4ImageProcessor | Gemma4VideoProcessor

AS_IT_IS: Final = {"do_resize": False}
RAW: Final = {"do_rescale": False, "do_normalize": False}
_NOTHING: Final = {"sub": 0.0, "div": 1.0, "mul": 1.0}


def steps_of(processor: Gemma3Images) -> tuple[Step, ...] | None:
    """The processor's own rescaling and normalization; None where no known steps give its bits."""
    image = all_values(16)
    raw = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    return steps_between(processor, lambda: raw, lambda: one_image(processor, image, **AS_IT_IS))


def steps_between(
    processor: Settings, raw: Callable[[], torch.Tensor], wanted: Callable[[], torch.Tensor]
) -> tuple[Step, ...] | None:
    """The steps from `raw` to `wanted`, which the processor makes of an image of all values."""
    try:
        # Where it does neither, it gives uint8, and the model gets 0 to 255 as floats.
        with np.errstate(all="ignore"):
            before, after = raw(), wanted().to(torch.float32)
        for steps in _candidates(processor):
            try:
                found = pixels.apply(steps, before, torch.empty(before.shape))
            except BatchError:  # a number for each channel, where channels lie side by side
                continue
            if torch.equal(found, after):
                return steps
    except (ValueError, RuntimeError):  # a deviation of 0, two means for three channels
        return None
    return None


def all_values(side: int) -> npt.NDArray[np.uint8]:
    """(side, side, 3), at least 16 x 16: every value of every channel."""
    one = (np.arange(side * side) % 256).astype(np.uint8).reshape(side, side)
    return np.repeat(one[:, :, None], 3, axis=2)


def one_image(processor: Gemma3Images, image: np.ndarray, **changes: bool) -> torch.Tensor:
    """(h, w, 3) uint8 -> (3, size, size), with settings of the processor changed for this call.

    One at a time: temporaries stay as small as one image, where a call with many of them holds the
    batch twice. Without `return_tensors`, which stacks once more.
    """
    run = cast("Callable[..., Mapping[str, Sequence[torch.Tensor | np.ndarray]]]", processor)
    outputs = run([image], input_data_format="channels_last", do_pan_and_scan=False, **changes)
    return torch.as_tensor(outputs["pixel_values"][0])


def described(processor: Settings) -> str:
    """Its settings of rescaling and normalization, for an error."""
    names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
    said = ", ".join(f"{name} {getattr(processor, name)}" for name in names)
    return f"{type(processor).__name__} with {said}"


def _candidates(processor: Settings) -> Iterator[tuple[Step, ...]]:
    """Ways to compute it, in the order of their speed."""
    rescale: list[tuple[Step, ...]] = [()]
    normalize: tuple[Step, ...] = ()
    mean, std = _three(processor.image_mean), _three(processor.image_std)
    factor = float(processor.rescale_factor or 1.0)
    if processor.do_rescale:
        rescale = [(Step("div", (1.0 / factor,)),), (Step("mul", (factor,)),)]
    if processor.do_normalize:
        normalize = _normalize(mean, std)
        if processor.do_rescale:  # both in one, as torchvision's processors do
            inverse = 1.0 / factor
            yield _normalize(mean * inverse, std * inverse)
    yield from (steps + normalize for steps in rescale)


def _normalize(mean: torch.Tensor, std: torch.Tensor) -> tuple[Step, ...]:
    steps = Step("sub", _values(mean)), Step("div", _values(std))
    # A mean of 0 and a deviation of 1 change no bit, and cost a pass.
    return tuple(step for step in steps if step.values != (_NOTHING[step.op],))


def _values(numbers: torch.Tensor) -> tuple[float, ...]:
    found = tuple(numbers.tolist())
    return found[:1] if len(set(found)) == 1 else found


def _three(value: object) -> torch.Tensor:
    """A number for each channel, float32, of what a processor has: one number or three."""
    numbers = [0.0] if value is None else value
    return torch.as_tensor(numbers, dtype=torch.float32).reshape(-1).expand(3).contiguous()
