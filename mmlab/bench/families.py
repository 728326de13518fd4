"""Which modalities a model takes: asked by name, before anything is started."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from mmlab.bench.spec import ECHO
from mmlab.bench.workloads import Request
from mmlab.errors import UsageError

GEMMA3: Final = "gemma3"
_ALL: Final = ("image", "video", "audio")
_TAKEN: Final = {ECHO: _ALL, GEMMA3: ("image",), "gemma4": _ALL}
_CHECKPOINT: Final = {GEMMA3: "a Gemma 3 checkpoint", "gemma4": "a Gemma 4 checkpoint"}


@functools.cache
def family_of(model: str) -> str:
    """`echo`, or the family of a preset, of a folder with a checkpoint, or of an id of the hub.

    UsageError where there is no such model.
    """
    from mmlab.gemma import checkpoint
    from mmlab.gemma.loading import FAMILIES
    from mmlab.gemma.presets import PRESETS

    if model == ECHO:
        return ECHO
    if model in PRESETS:
        return PRESETS[model].family
    path = checkpoint.locate(model, FAMILIES, [ECHO, *PRESETS], weights=False)
    return checkpoint.family_of(model, path, FAMILIES)


def check_modalities(workload: str, requests: Iterable[Request], model: str) -> None:
    """UsageError, with the models that can, where the workload has what the model does not take."""
    taken = _TAKEN.get(family_of(model), ("image",))
    carried = {modality for request in requests for modality in request.modalities}
    missing = [modality for modality in _ALL if modality in carried and modality not in taken]
    if missing:
        able = ", ".join(_able(carried)) or "none"
        raise UsageError(
            f"workload {workload!r} has {' and '.join(missing)}, and model {model!r} takes "
            f"{' and '.join(taken)} only; models that can: {able}"
        )


def _able(carried: set[str]) -> list[str]:
    from mmlab.gemma.loading import FAMILIES
    from mmlab.gemma.presets import PRESETS

    able = {family for family, taken in _TAKEN.items() if carried <= set(taken)}
    presets = [name for name, preset in PRESETS.items() if preset.family in able]
    checkpoints = [_CHECKPOINT[family] for family in FAMILIES if family in able & {*_CHECKPOINT}]
    return [*presets, *checkpoints, ECHO]
