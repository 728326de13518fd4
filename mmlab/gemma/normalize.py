"""Which steps on raw pixels give bit for bit what an image processor makes of them.

Rescaling and normalization map each of the 256 values of a channel to one float, whatever the
image. So the steps need not be believed: the processor itself is shown all 256 values, and what
does not give its answers is no candidate. That honours the factors, means and deviations of any
checkpoint, and notices a release that computes in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from mmlab import pixels
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import Gemma3ImageProcessor, Gemma3ImageProcessorPil

    ImageProcessor = Gemma3ImageProcessor | Gemma3ImageProcessorPil


def steps_of(processor: ImageProcessor) -> tuple[Step, ...] | None:
    """The processor's own rescaling and normalization; None where no known steps give its bits."""
    side = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.repeat(side[:, :, None], 3, axis=2)
    raw = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    try:
        # Where it does neither, it gives uint8, and the model gets 0 to 255 as floats.
        with np.errstate(all="ignore"):
            wanted = one_image(processor, image, do_resize=False).to(torch.float32)
        for steps in _candidates(processor):
            if torch.equal(pixels.apply(steps, raw, torch.empty(raw.shape)), wanted):
                return steps
    except (ValueError, RuntimeError):  # a deviation of 0, two means for three channels
        return None
    return None


def one_image(processor: ImageProcessor, image: np.ndarray, **changes: bool) -> torch.Tensor:
    """(h, w, 3) uint8 -> (3, size, size), with settings of the processor changed for this call.

    One at a time: temporaries stay as small as one image, where a call with many of them holds the
    batch twice. Without `return_tensors`, which stacks once more.
    """
    run = cast("Callable[..., Mapping[str, Sequence[torch.Tensor | np.ndarray]]]", processor)
    outputs = run([image], input_data_format="channels_last", do_pan_and_scan=False, **changes)
    return torch.as_tensor(outputs["pixel_values"][0])


def described(processor: ImageProcessor) -> str:
    """Its settings of rescaling and normalization, for an error."""
    names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
    said = ", ".join(f"{name} {getattr(processor, name)}" for name in names)
    return f"{type(processor).__name__} with {said}"


def _candidates(processor: ImageProcessor) -> Iterator[tuple[Step, ...]]:
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
    return Step("sub", _values(mean)), Step("div", _values(std))


def _values(numbers: torch.Tensor) -> tuple[float, ...]:
    found = tuple(numbers.tolist())
    return found[:1] if len(set(found)) == 1 else found


def _three(value: object) -> torch.Tensor:
    """A number for each channel, float32, of what a processor has: one number or three."""
    numbers = [0.0] if value is None else value
    return torch.as_tensor(numbers, dtype=torch.float32).reshape(-1).expand(3).contiguous()
