"""Workloads by name: which requests a strategy is measured on.

A workload lists its prompts with the images of each. `scale` shrinks the images a prompt, never the
number of prompts, so that a scaled run asks the same question of a smaller machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mmlab.errors import UsageError, unknown


@dataclass(frozen=True)
class Request:
    """One prompt with its number of images; `case` groups requests of equal size."""

    case: str
    prompt: str
    num_images: int


@dataclass(frozen=True)
class Workload:
    """`groups`: (number of prompts, images a prompt at full size). `mix`: also all at once."""

    name: str
    question: str
    groups: tuple[tuple[int, int], ...]
    mix: bool = True

    def requests(self, scale: float = 1.0) -> list[Request]:
        """The requests in order; at least one image a prompt. UsageError on a scale <= 0 or > 1."""
        if not 0 < scale <= 1:
            raise UsageError(f"scale must be above 0 and at most 1, got {scale:g}")
        sizes = [
            max(1, round(images * scale)) for prompts, images in self.groups for _ in range(prompts)
        ]
        return [
            Request(case_label(images), _prompt(number, images), images)
            for number, images in enumerate(sizes)
        ]


def case_label(num_images: int) -> str:
    """`1 image`, `4 images`."""
    return f"{num_images} image{'s' if num_images > 1 else ''}"


def _prompt(number: int, images: int) -> str:
    """Every prompt differs, so that no two requests of a workload are the same."""
    page = "this page" if images == 1 else f"these {images} pages"
    return f"Document {number + 1}: describe {page} in a few words."


_ALL = (
    Workload(
        "doc-mix",
        "8 prompts with 4 images, 4 with 8, 2 with 16, 1 with 32; then all 15 at once",
        ((8, 4), (4, 8), (2, 16), (1, 32)),
    ),
    Workload("single", "8 prompts with 1 image each", ((8, 1),)),
    Workload("multi", "4 prompts with 4 images each", ((4, 4),)),
)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}


def get(name: str) -> Workload:
    """UsageError with the known names where there is none of that name."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]


def largest(requests: Iterable[Request]) -> Request:
    """The request with the most images: what has to fit into the budget in flight."""
    return max(requests, key=lambda request: request.num_images)
