"""Sound as Gemma 4 takes it: mel frames of all clips of a request, padded to the longest.

How many frames and tokens a clip is follows from its length, as the extractor's own settings say;
what it then makes is compared with that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch

from mmlab.errors import UsageError
from mmlab.gemma.audios import Samples

if TYPE_CHECKING:
    from transformers import Gemma4AudioFeatureExtractor

Mask = npt.NDArray[np.bool_]


class Features:
    """The feature extractor, and the arithmetic of its framing."""

    def __init__(self, extractor: Gemma4AudioFeatureExtractor) -> None:
        self.extractor = extractor
        self.rate = int(extractor.sampling_rate)
        self.bins = int(extractor.feature_size)
        defaults = inspect.signature(type(extractor).__call__).parameters
        self._multiple = int(defaults["pad_to_multiple_of"].default or 1)
        self.longest = int(defaults["max_length"].default)  # samples; it would cut off the rest
        self._lead = extractor.frame_length // 2  # zeros before the first sample
        self.shortest = extractor.frame_length - self._lead + 1

    def check(self, samples: Samples, index: int) -> None:
        """UsageError for a clip without one whole frame, or longer than the extractor takes."""
        if not self.shortest <= len(samples) <= self.longest:
            raise UsageError(
                f"audios[{index}]: got {len(samples)} samples at {self.rate} Hz, wanted"
                f" {self.shortest} to {self.longest} ({self.longest / self.rate:g} s): cut it"
                " into several"
            )

    def masks(self, lengths: Sequence[int]) -> Mask:
        """(n, frames): which frames of each clip lie wholly in it."""
        padded = -(-max(lengths) // self._multiple) * self._multiple
        span = self.extractor.frame_length + 1
        frames = (padded + self._lead - span) // self.extractor.hop_length + 1
        last = np.arange(frames) * self.extractor.hop_length + span - 1
        return np.stack([last < self._lead + length for length in lengths])

    def write(
        self, clips: Sequence[Samples], wanted: Mask, values: torch.Tensor, mask: torch.Tensor
    ) -> None:
        """(n, frames, bins) and (n, frames) of all clips in one call, so padded as it pads."""
        run = cast("Callable[..., Mapping[str, Sequence[np.ndarray]]]", self.extractor)
        made = run(list(clips))
        for index, (found, real) in enumerate(
            zip(made["input_features"], made["input_features_mask"], strict=True)
        ):
            if not np.array_equal(real, wanted[index]):
                raise UsageError(
                    f"audios[{index}]: {type(self.extractor).__name__} made {int(real.sum())} of"
                    f" {len(real)} frames, its settings say {int(wanted[index].sum())} of"
                    f" {len(wanted[index])}: this release of transformers is not supported"
                )
            values[index] = torch.from_numpy(found)
            mask[index] = torch.from_numpy(real)
