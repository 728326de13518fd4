"""The engine's half of a model: encoders, merge, prefill and greedy decoding.

The parts are called one by one instead of `generate()`, so that each can be timed, and so that
inputs may be let go as soon as the encoder has read them. The tokens are those that `generate()`
gives.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmlab.errors import EngineError
from mmlab.gemma.dims import PROMPT, Dims
from mmlab.pixels import Step

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

Masks = Mapping[str, torch.Tensor]  # modality -> (1, tokens) bool, where its features go


@dataclass(frozen=True)
class Generation:
    """New tokens (an end-of-sequence token included) and where the time went, in seconds."""

    token_ids: list[int]
    prefill_s: float  # merge and prefill, up to the first token
    decode_s: float  # all further tokens


class EngineModel(ABC):
    """A model on its device. One request at a time; not for several threads at once."""

    def __init__(self, name: str, model: PreTrainedModel, dims: Dims) -> None:
        self.name = name
        self.dims = dims
        self.module = model
        model.requires_grad_(False).train(False)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.attention: str = model.config._attn_implementation
        found = model.generation_config
        self._stop_ids = _as_set(None if found is None else found.eos_token_id)
        # Releases before `cache` take any keyword and drop it: ask, or answer wrongly.
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @abstractmethod
    def features(
        self, modality: str, kwargs: Mapping[str, object], steps: Sequence[Step] | None
    ) -> torch.Tensor:
        """(tokens, hidden) of one request's items; EngineError for what is no such input."""

    @abstractmethod
    def extra(self, ids: torch.Tensor, masks: Masks, embeds: torch.Tensor) -> dict[str, object]:
        """What this model's prefill takes besides `inputs_embeds`: ids (1, tokens), placeholders
        replaced by 0, and where they were."""

    @torch.inference_mode()
    def encode(
        self,
        modality: str,
        kwargs: Mapping[str, object],
        steps: Sequence[Step] | None = None,
    ) -> torch.Tensor:
        """Staged kwargs of one request's items, any device -> (tokens, hidden), the model's dtype.

        Float pixels as they are; uint8 after `steps`, which make normalized floats of them. The
        items of one request only: what a request gets never depends on its neighbors.
        """
        if modality not in self.dims.placeholders:
            known = ", ".join(self.dims.placeholders)
            raise EngineError(
                f"{modality} items with keys {sorted(kwargs)}: {self.name} takes {known} items"
            )
        if modality == PROMPT:
            return self._embeds(kwargs)
        return self.features(modality, kwargs, steps)

    @torch.inference_mode()
    def generate(
        self,
        token_ids: Sequence[int],
        features: Mapping[str, torch.Tensor] | None,
        max_new_tokens: int,
    ) -> Generation:
        """Greedy continuation of one prompt. `features`: modality -> `encode` of its items."""
        from transformers import DynamicCache

        features = features or {}
        self._check_prompt(token_ids, features, max_new_tokens)
        start = self._now()
        cache = DynamicCache(config=self.module.config.get_text_config())
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
        self, token_ids: Sequence[int], features: Mapping[str, torch.Tensor], cache: DynamicCache
    ) -> int:
        ids = torch.tensor([token_ids], device=self.device)
        if not features:
            return self._forward(cache, input_ids=ids)
        masks = {name: ids == self.dims.placeholders[name] for name in features}
        for mask in masks.values():
            ids = ids.masked_fill(mask, 0)
        embeds = self.module.get_input_embeddings()(ids)
        for name, mask in masks.items():
            rows = features[name].to(self.device, self.dtype)
            embeds = embeds.masked_scatter(mask[..., None], rows)
        return self._forward(cache, inputs_embeds=embeds, **self.extra(ids, masks, embeds))

    def _forward(self, cache: DynamicCache, **inputs: object) -> int:
        """The most likely next token; `cache` grows by the inputs. Logits of one position only."""
        given = {**inputs, self._cache_name: cache}
        output = self.module(**given, use_cache=True, logits_to_keep=1)
        return int(output.logits[0, -1].float().argmax())

    def _embeds(self, kwargs: Mapping[str, object]) -> torch.Tensor:
        """What a caller has brought along; several items of different length come as a list."""
        found = kwargs.get("prompt_embeds")
        parts = [found] if isinstance(found, torch.Tensor) else found
        if not isinstance(parts, list) or not all(isinstance(p, torch.Tensor) for p in parts):
            raise EngineError(f"{PROMPT} items with keys {sorted(kwargs)}: wanted prompt_embeds")
        hidden = self.dims.hidden_size
        for part in parts:
            if part.ndim < 2 or part.shape[-1] != hidden or not part.is_floating_point():
                got = f"{part.dtype} {tuple(part.shape)}"
                raise EngineError(f"prompt_embeds: got {got}, wanted floats (tokens, {hidden})")
        rows = [part.to(self.device, self.dtype).reshape(-1, hidden) for part in parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _check_prompt(
        self,
        token_ids: Sequence[int],
        features: Mapping[str, torch.Tensor],
        max_new_tokens: int,
    ) -> None:
        if not token_ids:
            raise EngineError("token_ids: got none, wanted at least one")
        places = dict.fromkeys(self.dims.placeholders.values(), 0)
        for at, token in enumerate(token_ids):  # on a GPU one of these ends the CUDA context
            if token in places:
                places[token] += 1
            elif not 0 <= token < self.dims.vocab_size:
                raise EngineError(
                    f"token_ids[{at}]: got {token}, wanted 0 to {self.dims.vocab_size - 1}"
                )
        self.dims.check_length(len(token_ids), max_new_tokens)
        for name in features:
            if name not in self.dims.placeholders:
                raise EngineError(f"features: got some of {name}, which {self.name} does not take")
        for name, token in self.dims.placeholders.items():
            rows = features.get(name)
            if rows is None:
                if places[token]:
                    raise EngineError(
                        f"features: got none for {places[token]} {name} tokens in the prompt"
                    )
                continue
            if rows.ndim != 2 or rows.shape[1] != self.dims.hidden_size:
                raise EngineError(
                    f"features: got {name} of shape {tuple(rows.shape)}, wanted (tokens,"
                    f" {self.dims.hidden_size})"
                )
            if not rows.is_floating_point():
                raise EngineError(f"features: got {name} of {rows.dtype}, wanted floats")
            if places[token] != len(rows):
                raise EngineError(
                    f"features: got {len(rows)} of {name} for {places[token]} {name} tokens in the"
                    " prompt"
                )

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _as_set(ids: int | list[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
