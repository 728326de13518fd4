"""What a request will be, known before a pixel is read, so that memory is asked for once.

A model's family plans each modality; the frontend asks for all the memory together, in the arena
where there is one, and lets every plan fill its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from mmlab.errors import UsageError
from mmlab.fields import FieldConfig, KwargsItems
from mmlab.fields.column import Value
from mmlab.pixels import Step

Spec: TypeAlias = tuple[tuple[int, ...], torch.dtype]
Empty: TypeAlias = Callable[[Sequence[Spec]], list[torch.Tensor]]
Outputs: TypeAlias = Mapping[str, Value]
Steps: TypeAlias = dict[str, tuple[Step, ...]]  # modality -> what the engine does to raw pixels


def new_tensors(specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Memory of the process's own."""
    return [torch.empty(shape, dtype=dtype) for shape, dtype in specs]


@dataclass(frozen=True)
class Planned:
    """One modality of a request. `fill` gets memory for `specs`, and gives the values of all
    `fields`: those, written, and small ones besides."""

    modality: str
    text: str  # stands for it in the prompt, with all its placeholders
    specs: Mapping[str, Spec]
    fields: Mapping[str, FieldConfig]
    fill: Callable[[Mapping[str, torch.Tensor]], Outputs]
    steps: tuple[Step, ...] | None = None  # for the engine to do, where pixels are sent as uint8
    token_ids: Sequence[int] = ()  # in place of `text`, for what no tokenizer knows


def listed(name: str, values: object) -> list[object]:
    """The values of one argument of a request; UsageError for one that is no list of them."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        got = type(values).__qualname__  # one array would pass for a list of its rows
        raise UsageError(f"{name}: got {got}, wanted a list of {name}")
    return list(values)  # its length is relied on


def fill_all(plans: Sequence[Planned], empty: Empty) -> Callable[[], KwargsItems]:
    """Ask for the memory of all plans; what comes back fills it and makes the items."""
    wanted = [(plan, key) for plan in plans for key in plan.specs]
    made = empty([plan.specs[key] for plan, key in wanted]) if wanted else []
    memory: dict[str, dict[str, torch.Tensor]] = {plan.modality: {} for plan in plans}
    for (plan, key), tensor in zip(wanted, made, strict=True):
        memory[plan.modality][key] = tensor

    def fill() -> KwargsItems:
        outputs: dict[str, Value] = {}
        fields: dict[str, FieldConfig] = {}
        for plan in plans:
            outputs.update(plan.fill(memory.pop(plan.modality)))
            fields.update(plan.fields)
        return KwargsItems.from_processor(outputs, fields)

    return fill
