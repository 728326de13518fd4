"""Where the patches of a picture lie, checked before a table is read by them.

A GPU answers an index out of range by ending its context, and with it the engine; a grid with a
hole would shift the tokens of every later picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from mmlab.errors import EngineError

if TYPE_CHECKING:
    from transformers import Gemma4VisionConfig


@dataclass(frozen=True)
class PatchGrid:
    """What the vision tower makes of patches: `pooling` x `pooling` of them are one token."""

    values: int  # numbers in a patch
    pooling: int
    table: int  # positions that it knows in each direction

    @classmethod
    def of(cls, config: Gemma4VisionConfig) -> PatchGrid:
        """As the tower's configuration says."""
        return cls(
            3 * config.patch_size**2, config.pooling_kernel_size, config.position_embedding_size
        )

    def check(
        self, key: str, patches: torch.Tensor, places_key: str, places: torch.Tensor
    ) -> list[int]:
        """Tokens of each of n pictures. patches (n, p, values), places (n, p, 2) int64: (x, y), or
        (-1, -1) for padding. EngineError for others."""
        square = self.pooling**2
        if patches.ndim != 3 or patches.shape[2] != self.values or patches.shape[1] % square:
            got = tuple(patches.shape)
            raise EngineError(
                f"{key}: got shape {got}, wanted (n, multiple of {square}, {self.values})"
            )
        wanted = (*patches.shape[:2], 2)
        if places.shape != wanted or places.dtype != torch.int64:
            got_places = f"{places.dtype} {tuple(places.shape)}"
            raise EngineError(f"{places_key}: got {got_places}, wanted torch.int64 {wanted}")
        if not patches.numel():
            if len(patches):
                raise EngineError(f"{key}: got pictures without patches, wanted at least {square}")
            return []
        tokens = self._tokens(places).tolist()
        for index, number in enumerate(tokens):
            if number < 0:
                raise EngineError(
                    f"{places_key}[{index}]: got no full grid of patches, wanted each (x, y) of one"
                    f" once, columns and rows multiples of {self.pooling} up to {self.table},"
                    " (-1, -1) for the rest"
                )
        return cast("list[int]", tokens)

    def _tokens(self, places: torch.Tensor) -> torch.Tensor:
        """(n,), -1 where the places are no grid. Without a look at the values: one wait in all."""
        real = (places >= 0).all(-1)
        padding = (places == -1).all(-1)
        sides = places.amax(1) + 1
        count = real.sum(-1)
        order = places[..., 1] * sides[:, :1] + places[..., 0]
        order = order.masked_fill(~real, torch.iinfo(torch.int64).max).sort(-1).values
        ideal = torch.arange(order.shape[1], device=order.device)
        good = ((order == ideal) | (ideal >= count[:, None])).all(-1)
        good &= (real | padding).all(-1) & (count > 0) & (sides[:, 0] * sides[:, 1] == count)
        good &= (sides <= self.table).all(-1) & (sides % self.pooling == 0).all(-1)
        return torch.where(good, count // self.pooling**2, -1)
