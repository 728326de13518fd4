"""The frontend's half of a Gemma 3 model: images to pixel values, prompts to token ids and back.

Image processor, tokenizer and placeholders are the checkpoint's own, run on the CPU. No model is
built, so that a frontend is light and never opens a CUDA context.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmlab import pixels
from mmlab.errors import UsageError
from mmlab.fields import KwargsItems, batched
from mmlab.gemma.dims import Dims
from mmlab.gemma.images import Image, as_rgb
from mmlab.gemma.normalize import described, one_image, steps_of
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3Processor

Empty = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory of the process's own."""
    return torch.empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Processed:
    """A request as the engine needs it. `seconds` is what the frontend's processor took."""

    token_ids: list[int]
    mm: KwargsItems  # image: pixel_values (n, 3, size, size) in the payload's dtype, CPU
    num_images: int
    seconds: float
    steps: tuple[Step, ...] | None = None  # for the engine to do, where pixel_values are uint8


class FrontendModel:
    """Processor and tokenizer of one model. `process` and `decode` may be called by any thread."""

    def __init__(self, name: str, processor: Gemma3Processor, config: Gemma3Config) -> None:
        import transformers

        self.name = name
        self.processor = processor
        self.dims = Dims.of(config)
        images = processor.image_processor
        self.image_processor = (
            f"{type(images).__name__} ({images.backend}), transformers {transformers.__version__}"
        )
        self._steps = steps_of(images)
        self._markers: tuple[str, ...] = (
            processor.tokenizer.boi_token,
            processor.tokenizer.image_token,
            processor.tokenizer.eoi_token,
        )
        self._tokenizer_lock = threading.Lock()  # fast tokenizers set padding on their shared core

    def process(
        self,
        prompt: str,
        images: Sequence[Image] = (),
        *,
        max_new_tokens: int = 1,
        payload: torch.dtype = torch.float32,
        empty: Empty = new_tensor,
    ) -> Processed:
        """Token ids (all images, then the prompt) and the items. UsageError names what is wrong.

        `empty` is asked once for the memory of all pixel values; waiting for it does not count.
        """
        start = time.perf_counter()
        if isinstance(images, str | bytes) or not isinstance(images, Sequence):
            got = type(images).__qualname__  # one array would pass for a list of its rows
            raise UsageError(f"images: got {got}, wanted a list of images")
        images = list(images)  # its length is relied on
        token_ids = self.tokenize(prompt, len(images))
        self.dims.check_length(len(token_ids), max_new_tokens)
        if not images:
            return Processed(token_ids, KwargsItems({}), 0, time.perf_counter() - start)
        self.check_payload(payload)
        side = self.dims.image_size
        asked = time.perf_counter()
        out = empty((len(images), 3, side, side), payload)
        start += time.perf_counter() - asked
        outputs = {"pixel_values": self.pixel_values(images, out)}
        mm = KwargsItems.from_processor(outputs, {"pixel_values": batched("image")})
        steps = self._steps if payload == torch.uint8 else None
        return Processed(token_ids, mm, len(images), time.perf_counter() - start, steps)

    def check_payload(self, payload: torch.dtype) -> None:
        """UsageError where this model's pixel values cannot be sent as that."""
        if payload == torch.uint8 and self._steps is None:
            raise UsageError(
                f"model {self.name!r}: payload uint8: no steps are known that give exactly what its"
                f" image processor gives ({described(self.processor.image_processor)}); use"
                " float32 or bfloat16"
            )
        if payload not in (torch.float32, torch.bfloat16, torch.uint8):
            raise UsageError(f"payload: got {payload}, wanted float32, bfloat16 or uint8")

    def tokenize(self, prompt: str, num_images: int) -> list[int]:
        """Begin; start, placeholders, end of each image; prompt: as the model's processor does."""
        if not isinstance(prompt, str):
            raise UsageError(f"prompt: got {type(prompt).__qualname__}, wanted a str")
        for marker in self._markers:
            if marker in prompt:
                raise UsageError(
                    f"prompt: contains {marker!r} at character {prompt.index(marker)}, wanted text"
                    " only: images go in by images= and stand before the text"
                )
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"prompt: is no text that UTF-8 can hold: {error}") from None
        text = self.processor.full_image_sequence * num_images + prompt
        with self._tokenizer_lock:
            ids: list[int] = self.processor.tokenizer(text)["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of generated ids, without special tokens."""
        with self._tokenizer_lock:
            text = self.processor.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return str(text)

    def pixel_values(
        self, images: Sequence[Image], out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(n, 3, size, size), each image written into its place in `out` by the last step.

        The processor resizes; its rescaling and normalization are done while writing, so that no
        pass over the pixels is only there to move them. uint8 is left for the engine to do so.
        """
        if out is None:
            side = self.dims.image_size
            out = torch.empty((len(images), 3, side, side))
        processor, steps = self.processor.image_processor, self._steps
        for index, image in enumerate(images):
            rgb = as_rgb(image, index)
            if steps is None:
                out[index] = one_image(processor, rgb)
                continue
            raw = one_image(processor, rgb, do_rescale=False, do_normalize=False)
            if out.dtype == torch.uint8:
                out[index] = raw
            else:
                pixels.apply(steps, raw, out[index])
        return out
