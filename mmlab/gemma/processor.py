"""The frontend's half of a Gemma 3 model: images to pixel values, prompts to token ids and back.

Image processor, tokenizer and placeholders are the checkpoint's own, run on the CPU. No model is
built, so that a frontend is light and never opens a CUDA context.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmlab.errors import UsageError
from mmlab.fields import KwargsItems, batched
from mmlab.gemma.dims import Dims
from mmlab.gemma.images import Image, as_rgb

if TYPE_CHECKING:
    from transformers import Gemma3Config, Gemma3Processor


@dataclass(frozen=True)
class Processed:
    """A request as the engine needs it. `seconds` is what the frontend's processor took."""

    token_ids: list[int]
    mm: KwargsItems  # image: pixel_values (n, 3, size, size) float32, CPU; nothing without images
    num_images: int
    seconds: float


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
        self._markers: tuple[str, ...] = (
            processor.tokenizer.boi_token,
            processor.tokenizer.image_token,
            processor.tokenizer.eoi_token,
        )
        self._tokenizer_lock = threading.Lock()  # fast tokenizers set padding on their shared core

    def process(
        self, prompt: str, images: Sequence[Image] = (), *, max_new_tokens: int = 1
    ) -> Processed:
        """Token ids (all images, then the prompt) and the items. UsageError names what is wrong."""
        start = time.perf_counter()
        if isinstance(images, str | bytes) or not isinstance(images, Sequence):
            got = type(images).__qualname__  # one array would pass for a list of its rows
            raise UsageError(f"images: got {got}, wanted a list of images")
        token_ids = self.tokenize(prompt, len(images))
        self.dims.check_length(len(token_ids), max_new_tokens)
        if images:
            outputs = {"pixel_values": self.pixel_values(images)}
            mm = KwargsItems.from_processor(outputs, {"pixel_values": batched("image")})
        else:
            mm = KwargsItems({})
        return Processed(token_ids, mm, len(images), time.perf_counter() - start)

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

    def pixel_values(self, images: Sequence[Image]) -> torch.Tensor:
        """(n, 3, size, size) float32, one dense tensor.

        One image at a time into its place: temporaries stay as small as one image (and in the
        cache), where a call with all of them holds the batch twice.
        """
        side = self.dims.image_size
        out = torch.empty((len(images), 3, side, side))
        for index, image in enumerate(images):
            outputs = self.processor.image_processor(  # no return_tensors: that stacks once more
                [as_rgb(image, index)], input_data_format="channels_last", do_pan_and_scan=False
            )
            out[index] = outputs["pixel_values"][0]
        return out
