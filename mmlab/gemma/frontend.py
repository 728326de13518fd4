"""The frontend's half of a model: inputs to pixel values and features, prompts to token ids, back.

Processors, tokenizer and placeholders are the checkpoint's own, run on the CPU. No model is built,
so that a frontend is light and never opens a CUDA context.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from mmlab.errors import UsageError
from mmlab.fields import KwargsItems
from mmlab.gemma.dims import EMBED_ID, Dims
from mmlab.gemma.embeds import plan_embeds
from mmlab.gemma.images import Image
from mmlab.gemma.inputs import Empty, Planned, Steps, fill_all, listed, new_tensors

PLACEHOLDER: Final = "<embed>"  # in a prompt: here goes the next row of `prompt_embeds`
PAYLOADS: Final = (torch.float32, torch.bfloat16, torch.uint8)


class Tokenizer(Protocol):
    """What is used of one."""

    def __call__(self, text: str) -> dict[str, list[int]]: ...
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


@dataclass(frozen=True)
class Processed:
    """A request as the engine needs it. `seconds` is what the frontend's processor took."""

    token_ids: list[int]
    mm: KwargsItems  # of all modalities, on the CPU; pixels in the payload's dtype
    num_images: int
    seconds: float
    steps: Steps | None = None  # for the engine to do, where pixels are uint8


class FrontendModel(ABC):
    """Processor and tokenizer of one model. `process` and `decode` may be called by any thread."""

    def __init__(
        self, name: str, tokenizer: Tokenizer, dims: Dims, markers: Sequence[str], described: str
    ) -> None:
        self.name = name
        self.dims = dims
        self.modalities = tuple(m for m in ("image", "video", "audio") if m in dims.placeholders)
        self.image_processor = described  # which one makes the data
        self._tokenizer = tokenizer
        self._markers = tuple(markers)  # special tokens that a prompt must not bring along
        self._tokenizer_lock = threading.Lock()  # fast tokenizers set padding on their shared core

    @abstractmethod
    def plan(self, modality: str, values: Sequence[object], payload: torch.dtype) -> Planned:
        """One of `modalities`, at least one value; UsageError names the one that is wrong."""

    @abstractmethod
    def why_not_uint8(self) -> str | None:
        """Why this model's pixels cannot be sent as uint8, or None."""

    def process(
        self,
        prompt: str,
        images: Sequence[Image] = (),
        *,
        videos: Sequence[object] = (),
        audios: Sequence[object] = (),
        prompt_embeds: torch.Tensor | None = None,
        max_new_tokens: int = 1,
        payload: torch.dtype = torch.float32,
        empty: Empty = new_tensors,
    ) -> Processed:
        """Token ids (images, videos, audios, embeddings, then the prompt) and the items.

        UsageError names what is wrong. `empty` is asked once for the memory of all large payload;
        waiting for it does not count.
        """
        start = time.perf_counter()
        given = {
            "image": listed("images", images),
            "video": listed("videos", videos),
            "audio": listed("audios", audios),
        }
        self.check_prompt(prompt)
        places = prompt.count(PLACEHOLDER)
        if places and prompt_embeds is None:
            raise UsageError(f"prompt_embeds: got none for {places} {PLACEHOLDER!r} in the prompt")
        self.check_payload(payload)
        plans = [self._plan(name, values, payload) for name, values in given.items() if values]
        if prompt_embeds is not None:
            plans.append(plan_embeds(prompt_embeds, self.dims, places))
        token_ids = self._token_ids(plans, prompt)
        self.dims.check_length(len(token_ids), max_new_tokens)
        if not plans:
            return Processed(token_ids, KwargsItems({}), 0, time.perf_counter() - start)
        asked = time.perf_counter()
        fill = fill_all(plans, empty)
        start += time.perf_counter() - asked
        mm = fill()
        steps = {plan.modality: plan.steps for plan in plans if plan.steps is not None}
        seconds = time.perf_counter() - start
        return Processed(token_ids, mm, len(given["image"]), seconds, steps or None)

    def check_payload(self, payload: torch.dtype) -> None:
        """UsageError where this model's pixel values cannot be sent as that."""
        if payload not in PAYLOADS:
            raise UsageError(f"payload: got {payload}, wanted float32, bfloat16 or uint8")
        if payload == torch.uint8 and (why := self.why_not_uint8()):
            raise UsageError(
                f"model {self.name!r}: payload uint8: no steps are known that give exactly what its"
                f" image processor gives ({why}); use float32 or bfloat16"
            )

    def check_prompt(self, prompt: object) -> None:
        """UsageError for what is no text, or brings special tokens of media along."""
        if not isinstance(prompt, str):
            raise UsageError(f"prompt: got {type(prompt).__qualname__}, wanted a str")
        for marker in self._markers:
            if marker in prompt:
                raise UsageError(
                    f"prompt: contains {marker!r} at character {prompt.index(marker)}, wanted text"
                    " only: images go in by images= (videos=, audios=) and stand before the text"
                )
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"prompt: is no text that UTF-8 can hold: {error}") from None

    def tokenize(self, text: str) -> list[int]:
        """As the model's own tokenizer does, its beginning included."""
        with self._tokenizer_lock:
            return self._tokenizer(text)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of generated ids, without special tokens."""
        with self._tokenizer_lock:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _plan(self, modality: str, values: Sequence[object], payload: torch.dtype) -> Planned:
        if modality not in self.modalities:
            known = ", ".join(self.modalities)
            raise UsageError(f"{modality}s: model {self.name!r} takes none, it takes {known}")
        return self.plan(modality, values, payload)

    def _token_ids(self, plans: Sequence[Planned], prompt: str) -> list[int]:
        media = "".join(plan.text for plan in plans)
        ready = [token for plan in plans for token in plan.token_ids]
        if not ready and PLACEHOLDER not in prompt:
            return self.tokenize(media + prompt)
        start = self.tokenize("")
        parts = [self.tokenize(part)[len(start) :] for part in prompt.split(PLACEHOLDER)]
        ids = [*self.tokenize(media), *ready]
        for number, part in enumerate(parts):
            ids += ([EMBED_ID] if number else []) + part
        return ids
