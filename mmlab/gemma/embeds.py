"""Embeddings that a caller brings along: checked in the frontend, before a frame is sent.

A wrong width would be scattered out of step, and a malformed sparse tensor writes out of bounds
when it is made dense (CVE-2025-62164): only plain dense floats of the model's own width go on.
"""

from __future__ import annotations

from typing import Final

import torch

from mmlab.errors import UsageError
from mmlab.fields import batched
from mmlab.gemma.dims import EMBED_ID, PROMPT, Dims
from mmlab.gemma.inputs import Planned

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)  # sent as they are


def plan_embeds(value: object, dims: Dims, places: int) -> Planned:
    """(n, hidden) of one of `DTYPES`, finite: one item of modality "prompt".

    `places`: how many placeholders the prompt has for them; 0: they stand before its text.
    """
    embeds = _checked(value, dims.hidden_size)
    count = len(embeds)
    if places and places != count:
        raise UsageError(
            f"prompt_embeds: got {count} rows for {places} placeholders in the prompt, wanted one"
            " for each"
        )
    return Planned(
        modality=PROMPT,
        text="",
        specs={"prompt_embeds": ((1, *embeds.shape), embeds.dtype)},
        fields={"prompt_embeds": batched(PROMPT)},
        fill=lambda memory: {"prompt_embeds": memory["prompt_embeds"].copy_(embeds[None])},
        token_ids=() if places else [EMBED_ID] * count,
    )


def _checked(value: object, hidden_size: int) -> torch.Tensor:
    wanted = f"a dense tensor (tokens, {hidden_size}) of float32, bfloat16 or float16 on the CPU"
    if not isinstance(value, torch.Tensor):
        raise _refused(f"a {type(value).__qualname__}", wanted)
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
        raise _refused(f"a {kind} tensor", wanted)
    if value.dtype not in DTYPES:
        raise _refused(f"{value.dtype}", wanted)
    if value.device.type != "cpu":
        raise _refused(f"a tensor on {value.device}", wanted)
    if value.ndim != 2 or value.shape[1] != hidden_size or not len(value):
        raise _refused(f"shape {tuple(value.shape)}", wanted)
    value = value.detach()
    finite = torch.isfinite(value)
    if not finite.all():
        row, column = torch.nonzero(~finite)[0].tolist()
        raise _refused(f"{value[row, column]} at row {row}, column {column}", "finite numbers")
    return value


def _refused(got: str, wanted: str) -> UsageError:
    return UsageError(f"prompt_embeds: got {got}, wanted {wanted}")
