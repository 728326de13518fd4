"""The engine's half of a Gemma 3 model: vision encoder, merge, prefill and greedy decoding.

The parts are called one by one instead of `generate()`, so that each can be timed, and so that
pixel values may be let go as soon as the encoder has read them. The tokens are those that
`generate()` gives.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from mmlab import pixels
from mmlab.errors import EngineError
from mmlab.gemma.dims import Dims
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import DynamicCache, Gemma3ForConditionalGeneration

# More images at once cost memory (32: 620 MB on the tiny model, against 56) and save no time.
ENCODER_CHUNK: Final = 2


@dataclass(frozen=True)
class Generation:
    """New tokens (an end-of-sequence token included) and where the time went, in seconds."""

    token_ids: list[int]
    prefill_s: float  # merge and prefill, up to the first token
    decode_s: float  # all further tokens


class EngineModel:
    """A Gemma 3 model on its device. One request at a time; not for several threads at once."""

    def __init__(self, name: str, model: Gemma3ForConditionalGeneration) -> None:
        config = model.config
        self.name = name
        self.model = model
        self.model.requires_grad_(False).train(False)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.attention: str = config._attn_implementation
        self.dims = Dims.of(config)
        self._stop_ids = _as_set(model.generation_config.eos_token_id)
        # Releases before `cache` take any keyword and drop it: ask, or answer wrongly.
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @torch.inference_mode()
    def encode_images(
        self, pixel_values: torch.Tensor, steps: Sequence[Step] | None = None
    ) -> torch.Tensor:
        """(n, 3, size, size), any device -> (n, tokens, hidden) in the model's dtype.

        Floats as they are; uint8 after `steps`, which make normalized floats of them. The images
        of one request only: what a request gets never depends on its neighbours.
        """
        self._check_pixels(pixel_values, steps)
        count = len(pixel_values)
        shape = (count, self.dims.tokens_per_image, self.dims.hidden_size)
        features = torch.empty(shape, dtype=self.dtype, device=self.device)
        for at in range(0, count, ENCODER_CHUNK):
            chunk = pixel_values[at : at + ENCODER_CHUNK].to(self.device)
            if steps is not None:
                chunk = pixels.apply(steps, chunk, torch.empty_like(chunk, dtype=torch.float32))
            output = self.model.get_image_features(chunk.to(self.dtype), return_dict=True)
            features[at : at + ENCODER_CHUNK] = output.pooler_output
        return features

    @torch.inference_mode()
    def generate(
        self, token_ids: Sequence[int], features: torch.Tensor | None, max_new_tokens: int
    ) -> Generation:
        """Greedy continuation of one prompt. `features` are `encode_images` of its images."""
        from transformers import DynamicCache

        self._check_prompt(token_ids, features, max_new_tokens)
        start = self._now()
        cache = DynamicCache(config=self.model.config.get_text_config())
        new = [self._prefill(token_ids, features, cache)]
        if cache.get_seq_length() != len(token_ids):
            raise EngineError(
                f"{self.name}: prefill left {cache.get_seq_length()} of {len(token_ids)} tokens in"
                f" the cache: this transformers ignores {self._cache_name}="
            )
        prefilled = self._now()
        while len(new) < max_new_tokens and new[-1] not in self._stop_ids:
            step = torch.tensor([[new[-1]]], device=self.device)
            new.append(self._forward(cache, input_ids=step))
        return Generation(new, prefilled - start, self._now() - prefilled)

    def _prefill(
        self, token_ids: Sequence[int], features: torch.Tensor | None, cache: DynamicCache
    ) -> int:
        ids = torch.tensor([token_ids], device=self.device)
        if features is None:
            return self._forward(cache, input_ids=ids)
        is_image = ids == self.dims.image_token_id
        embeds = self.model.get_input_embeddings()(ids.masked_fill(is_image, 0))
        embeds = embeds.masked_scatter(is_image[..., None], features.to(self.device, self.dtype))
        # Image tokens see all of their own image, also what stands after them.
        return self._forward(cache, inputs_embeds=embeds, token_type_ids=is_image.long())

    def _forward(self, cache: DynamicCache, **inputs: torch.Tensor) -> int:
        """The most likely next token; `cache` grows by the inputs. Logits of one position only."""
        output = self.model(**inputs, **{self._cache_name: cache}, use_cache=True, logits_to_keep=1)
        return int(output.logits[0, -1].float().argmax())

    def _check_pixels(self, pixel_values: torch.Tensor, steps: Sequence[Step] | None) -> None:
        if not isinstance(pixel_values, torch.Tensor):  # a ragged batch is a list
            got = type(pixel_values).__qualname__
            raise EngineError(f"pixel_values: got a {got}, wanted one tensor")
        if steps is not None and pixel_values.dtype != torch.uint8:
            raise EngineError(
                f"pixel_values: got {pixel_values.dtype} with steps to normalize them, which are"
                " for uint8 alone"
            )
        if steps is None and not pixel_values.is_floating_point():
            raise EngineError(
                f"pixel_values: got {pixel_values.dtype}, wanted normalized floats: the model takes"
                " raw pixels without complaint and answers wrongly; rescale and normalize first"
            )
        size = self.dims.image_size
        if pixel_values.ndim != 4 or pixel_values.shape[1:] != (3, size, size):
            got = tuple(pixel_values.shape)
            raise EngineError(f"pixel_values: got shape {got}, wanted (n, 3, {size}, {size})")

    def _check_prompt(
        self, token_ids: Sequence[int], features: torch.Tensor | None, max_new_tokens: int
    ) -> None:
        if not token_ids:
            raise EngineError("token_ids: got none, wanted at least one")
        for at, token in enumerate(token_ids):  # on a GPU one of these ends the CUDA context
            if not 0 <= token < self.dims.vocab_size and token != self.dims.image_token_id:
                raise EngineError(
                    f"token_ids[{at}]: got {token}, wanted 0 to {self.dims.vocab_size - 1}"
                )
        self.dims.check_length(len(token_ids), max_new_tokens)
        places = list(token_ids).count(self.dims.image_token_id)
        if features is None:
            if places:
                raise EngineError(f"features: got none for {places} image tokens in the prompt")
            return
        wanted = (self.dims.tokens_per_image, self.dims.hidden_size)
        if features.ndim != 3 or features.shape[1:] != wanted:
            raise EngineError(
                f"features: got shape {tuple(features.shape)}, wanted (n, {wanted[0]}, {wanted[1]})"
            )
        if not features.is_floating_point():
            raise EngineError(f"features: got {features.dtype}, wanted floats")
        if places != len(features) * self.dims.tokens_per_image:
            raise EngineError(
                f"features: got {len(features)} images of {self.dims.tokens_per_image} tokens for"
                f" {places} image tokens in the prompt"
            )

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _as_set(ids: int | list[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
