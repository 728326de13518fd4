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
    taken = _taken(family_of(model))
    carried = {modality for request in requests for modality in request.modalities}
    missing = [modality for modality in _ALL if modality in carried and modality not in taken]
    if missing:
        able = ", ".join(_able(carried)) or "none"
        raise UsageError(
            f"workload {workload!r} has {' and '.join(missing)}, and model {model!r} takes "
            f"{' and '.join(taken)} only; models that can: {able}"
        )


def _taken(family: str) -> tuple[str, ...]:
    from mmlab.gemma.loading import FAMILIES

    return _ALL if family == ECHO else FAMILIES[family].modalities


def _able(carried: set[str]) -> list[str]:
    from mmlab.gemma.loading import FAMILIES
    from mmlab.gemma.presets import PRESETS

    able = [name for name, family in FAMILIES.items() if carried <= set(family.modalities)]
    presets = [name for name, preset in PRESETS.items() if preset.family in able]
    return [*presets, *(f"a {name} checkpoint" for name in able), ECHO]
