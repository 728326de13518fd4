"""What must be true at the end of a soak: each broken claim is a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mmlab.bench.soak.readings import Held, Reading, undrained
from mmlab.bench.soak.tally import Counts

PSS_LIMIT: Final = 0.02  # of the first reading
NEVER: Final = ("unexpected_replies", "engine_rejected", "arena_stale_returns")


def broken(counts: Counts, readings: Sequence[Reading], faults: int) -> list[str]:
    """Empty where all is well."""
    found = [f"{faults} faults with requests"] if faults else []
    found += sums(counts)
    for reading in readings:
        found += drained(reading)
    if len(readings) < 2:
        return [*found, f"{len(readings)} quiet readings, wanted 2"]
    return [*found, *constant(readings[0], readings[-1])]


def sums(counts: Counts) -> Iterator[str]:
    """Every request has one end."""
    c = counts
    if c.submitted != c.accepted + c.refused + c.timed_out:
        yield (
            f"submitted {c.submitted}, but accepted {c.accepted} + refused {c.refused} + "
            f"timed out {c.timed_out}"
        )
    if c.accepted != c.answered + c.cancelled:
        yield f"accepted {c.accepted}, but answered {c.answered} + cancelled {c.cancelled}"
    if c.cancelled != c.cancels_granted:
        yield f"cancelled {c.cancelled}, but cancel() was granted {c.cancels_granted} times"
    if not c.answered:
        yield "no request was answered"


def drained(reading: Reading) -> Iterator[str]:
    """Nothing is under way, and nothing came that nobody waited for."""
    for name, value in undrained(reading.stats).items():
        yield f"{reading.name}: {name} is {value:g}, wanted 0"
    for name in NEVER:
        if reading.stats.get(name):
            yield f"{reading.name}: {name} is {reading.stats[name]:g}, wanted 0"


def constant(first: Reading, last: Reading) -> Iterator[str]:
    """Memory, descriptors and threads are what they were."""
    change = growth(first, last)
    if change is None:
        yield "PSS could not be read"
    elif abs(change) > PSS_LIMIT:
        yield (
            f"PSS of both is {_mb(last.pss)} at the end, {_mb(first.pss)} {first.name} "
            f"({change:+.1%}, at most {PSS_LIMIT:.0%}): frontend {_mb(first.frontend.pss)} -> "
            f"{_mb(last.frontend.pss)}, engine {_mb(first.engine.pss)} -> {_mb(last.engine.pss)}"
        )
    for process in ("frontend", "engine"):
        a: Held = getattr(first, process)
        b: Held = getattr(last, process)
        for what in ("descriptors", "threads"):
            before, after = getattr(a, what), getattr(b, what)
            if before != after:
                differ = {
                    name: (before.get(name, 0), after.get(name, 0))
                    for name in {**before, **after}
                    if before.get(name) != after.get(name)
                }
                text = ", ".join(f"{name} {x} -> {y}" for name, (x, y) in sorted(differ.items()))
                yield f"{what} of the {process} changed: {text}"


def growth(first: Reading, last: Reading) -> float | None:
    """Change of the PSS of both processes, as a part of the first."""
    return None if not first.pss or last.pss is None else last.pss / first.pss - 1


def _mb(nbytes: int | None) -> str:
    return "missing" if nbytes is None else f"{nbytes / 1e6:.1f} MB"
