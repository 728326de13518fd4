"""From a model's name to its two halves: a preset's, or those of a checkpoint of a known family.

A new family is one module with `frontend` and `engine`, and one line in `FAMILIES`. Weights are
read from safetensors only, and code that a checkpoint brings along is never run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from mmlab.errors import UsageError
from mmlab.gemma import gemma3, gemma4
from mmlab.gemma.checkpoint import family_of, locate
from mmlab.gemma.engine import EngineModel
from mmlab.gemma.frontend import FrontendModel
from mmlab.gemma.presets import PRESETS, Preset


@dataclass(frozen=True)
class Family:
    """How the models of one family are made, from a preset or from a checkpoint directory, and
    what they take (a checkpoint may lack one of these: its frontend says so)."""

    frontend: Callable[[str, Preset | Path], FrontendModel]
    engine: Callable[[str, Preset | Path, torch.device, torch.dtype, int], EngineModel]
    modalities: tuple[str, ...]


FAMILIES: Final[dict[str, Family]] = {
    "gemma3": Family(gemma3.frontend, gemma3.engine, ("image",)),
    "gemma4": Family(gemma4.frontend, gemma4.engine, ("image", "video", "audio")),
}
NEEDED: Final = ("transformers", "torchvision", "PIL")


def load_frontend(model: str) -> FrontendModel:
    """Processor and tokenizer of a preset, a directory or a hub id; UsageError if it is none."""
    family, source = _resolve(model, weights=False)
    return family.frontend(model, source)


def load_engine(
    model: str,
    device: torch.device | str,
    seed: int = 0,
    *,
    dtype: torch.dtype | None = None,
) -> EngineModel:
    """The model on `device`: bfloat16 on a GPU, float32 on a CPU, unless `dtype` says so."""
    device = torch.device(device)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    family, source = _resolve(model, weights=True)
    return family.engine(model, source, device, dtype, seed)


def _resolve(model: str, *, weights: bool) -> tuple[Family, Preset | Path]:
    source = PRESETS.get(model)
    if source is None:
        _check_installed(model)
        path = locate(model, FAMILIES, PRESETS, weights=weights)
        return FAMILIES[family_of(model, path, FAMILIES)], path
    _check_installed(model)
    return FAMILIES[source.family], source


def _check_installed(model: str) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"model {model!r}: {', '.join(missing)} not installed, needed are those of"
            " pip install 'mmlab[models]'"
        )
