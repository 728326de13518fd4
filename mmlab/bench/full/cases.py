"""What one strategy took for each size of request: memory at its peak, and time.

Memory is what both processes held together, libraries and idle state included, as the published
figures count it. A size that did not fit is missing, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SIZES = (4, 8, 16, 32)  # images a prompt
MAX = "t.max"  # the one prompt of 32 images
MIX = "t.mix"  # all 15 prompts at once


@dataclass(frozen=True)
class Line:
    """A line of the table: `memory` in GB (1e9 bytes) by images a prompt, `seconds` of all prompts
    of that size one after another, and of the mix, by images a prompt and by MIX. `no_room`: sizes
    that did not fit into memory."""

    config: str
    memory: dict[int, float] = field(default_factory=dict)
    seconds: dict[int | str, float] = field(default_factory=dict)
    requests_in_mix: int = 0
    no_room: set[int] = field(default_factory=set)

    @property
    def t_max(self) -> float | None:
        """Seconds of the prompt of 32 images."""
        return self.seconds.get(SIZES[-1])


def lines(results: pd.DataFrame, samples: pd.DataFrame) -> list[Line]:
    """A line for each strategy of a run that was timed, in the order of the registry.

    A size that others of the run were sent, and this one was not, had no room.
    """
    from mmlab.strategies import REGISTRY

    timed = set(results["strategy"])
    found = [
        _line(name, results[results["strategy"] == name], samples[samples["strategy"] == name])
        for name in REGISTRY
        if name in timed
    ]
    sent = {size for line in found for size in line.seconds if size != MIX}
    for line in found:
        line.no_room.update(int(size) for size in sent - set(line.seconds))
    return found


def _line(strategy: str, results: pd.DataFrame, samples: pd.DataFrame) -> Line:
    images = {str(row.case): int(row.num_images) for row in results.itertuples()}
    memory = {
        _images(case, images): peak / 1e9 for case, peak in peaks_by_case(samples).items() if peak
    }
    sequential = results[results["phase"] == "sequential"]
    first = sequential[sequential["repeat"] == sequential["repeat"].min()]
    by_size = first.groupby("num_images")["latency_s"].sum()
    seconds: dict[int | str, float] = {int(size): float(value) for size, value in by_size.items()}
    mix = results[results["phase"] == "mix"]
    mix = mix[mix["repeat"] == mix["repeat"].min()]
    if len(mix):
        seconds[MIX] = float(mix["latency_s"].max())
    return Line(strategy, memory, seconds, len(mix))


def _images(case: str, known: dict[str, int]) -> int:
    """Images of a request of that case; by its name where no timed row has it."""
    return known[case] if case in known else int(case.split()[0])


def peaks_by_case(samples: pd.DataFrame) -> dict[str, int | None]:
    """Case -> highest sum of PSS over the processes while it was under way; None if not known.

    Of a stretch without change only its first reading is kept, so that a value stands until the
    next one of its process.
    """
    held: dict[str, int | None] = {}
    processes = set(samples["process"])
    peaks: dict[str, int | None] = {}
    ordered = samples.sort_values("time_s", kind="stable")
    for row in ordered.itertuples():
        held[str(row.process)] = None if row.pss is None or row.pss != row.pss else int(row.pss)
        case = str(row.case)
        if not case or len(held) < len(processes):
            continue
        values = list(held.values())
        if None in values:
            peaks[case] = None
            continue
        total = sum(value for value in values if value is not None)
        before = peaks.get(case, 0)
        if before is not None:
            peaks[case] = max(before, total)
    return peaks
