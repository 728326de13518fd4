"""The lines that `mmlab bench soak` prints."""

from __future__ import annotations

from mmlab.bench.soak.claims import growth
from mmlab.bench.soak.readings import Reading
from mmlab.bench.soak.soak import Result
from mmlab.measure.clocks import seconds_text

HEAD = ["reading", "PSS both", "frontend", "engine", "descriptors", "threads"]


def sums(result: Result) -> str:
    """What became of the requests."""
    c = result.counts
    seconds = result.rows[-1].time_s if result.rows else 0.0
    return (
        f"{c.submitted} requests of {result.settings.threads} threads in {seconds_text(seconds)}: "
        f"{c.answered} answered with the checksum of what was sent "
        f"({c.payload_nbytes / 1e9:.3g} GB), {c.cancelled} cancelled, {c.timed_out} found no room "
        f"in the time they had, {c.refused} refused as they had to be; {c.cancels_late} cancels "
        "came after the reply"
    )


def lines(result: Result) -> list[list[str]]:
    """The quiet readings; descriptors and threads are frontend + engine."""
    return [_line(reading) for reading in result.readings]


def verdict(result: Result) -> list[str]:
    """One line for each broken claim, or one that says what held."""
    if result.broken:
        again = (
            f"seed {result.settings.seed}; one request again: mmlab bench soak --strategy "
            f"{result.settings.strategy} --seed {result.settings.seed} --request THREAD/NUMBER"
        )
        return [*(f"BROKEN: {text}" for text in result.broken), *result.faults, again]
    change = growth(result.readings[0], result.readings[-1])
    return [
        f"held: every request has one end; PSS {change:+.2%} since the first reading; descriptors "
        "and threads as they were; nothing left under way"
    ]


def _line(reading: Reading) -> list[str]:
    a, b = reading.frontend, reading.engine
    return [
        reading.name,
        *(
            "missing" if pss is None else f"{pss / 1e6:.1f} MB"
            for pss in (reading.pss, a.pss, b.pss)
        ),
        f"{a.num_descriptors} + {b.num_descriptors}",
        f"{a.num_threads} + {b.num_threads}",
    ]
