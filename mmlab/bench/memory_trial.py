"""The memory part of a trial: PSS of both processes while requests of growing size pass through.

Nothing is timed meanwhile, because reading PSS can stop a process for milliseconds, and no image
has been through these processes before, because memory that it left behind in an allocator would
hide what the next one takes. The base is read when idle, after a request without an image.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterable

from mmlab.bench import headroom, workloads
from mmlab.bench.events import Event, Progress, Result, Row
from mmlab.bench.families import family_of
from mmlab.bench.media import Media, Sources
from mmlab.bench.sending import Sender, answer
from mmlab.bench.spec import TrialSpec
from mmlab.bench.timed_trial import Load, draw
from mmlab.measure.memory import PssSample, PssSampler, Rss, read_rss, reset_high_water
from mmlab.pipeline import Pipeline
from mmlab.strategies import resolve

IDLE = "idle"
BOTH = "both"
_STEP = 1 << 18  # bytes; a smaller change is not worth a row


def measure(
    spec: TrialSpec,
    pipeline: Pipeline,
    sender: Sender,
    sources: Sources,
    emit: Callable[[Event], None],
) -> None:
    """One request of every case, in order of size; rows for `memory` and for `samples`.

    The rows are told also when a request fails: what was seen until then is kept, and the peak of a
    process that ended is missing.
    """
    loads = one_of_each(spec, sources)
    processes = {"frontend": os.getpid(), "engine": pipeline.engine_pid}
    under_way: list[tuple[float, str, int]] = []  # (from when on, case, payload bytes)
    answer(spec, sender.prepare("Hello.", Media()))
    gc.collect()
    idle = {name: _marked(pid) for name, pid in processes.items()}
    with PssSampler(processes, interval_s=spec.sample_interval_s) as sampler:
        sampler.mark(IDLE)
        try:
            for number, load in enumerate(loads):
                sampler.mark(f"{load.request.case}: start")
                begin, case = sampler.samples[-1].time_s, load.request.case
                under_way.append((begin, case, 0))
                reply = answer(spec, sender.prepare(load.request.prompt, load.media))
                under_way[-1] = (begin, case, reply.payload_nbytes)
                sampler.mark(f"{load.request.case}: end")
                emit(Progress(f"memory {load.request.case}", number + 1, len(loads)))
        finally:
            sampler.mark("last")
            largest = max((nbytes for _, _, nbytes in under_way), default=0)
            for row in memory_rows(sampler, processes, idle, largest):
                emit(Result("memory", {**_which(spec), **row}))
            for row in sample_rows(sampler.samples, under_way):
                emit(Result("samples", {"strategy": spec.strategy, "repeat": spec.block, **row}))


def warm_up(spec: TrialSpec, sender: Sender, sources: Sources) -> None:
    """The same requests, unobserved."""
    for load in one_of_each(spec, sources):
        answer(spec, sender.prepare(load.request.prompt, load.media))


def one_of_each(spec: TrialSpec, sources: Sources) -> list[Load]:
    """A request of every case, in order of size, with media of this trial's own."""
    size = functools.partial(
        headroom.request_nbytes,
        payload=resolve(spec.strategy).payload,
        image_size=spec.image_size,
        family=family_of(spec.model),
    )
    found = sorted(workloads.get(spec.workload).requests(spec.scale), key=size)
    requests = list({request.case: request for request in found}.values())
    loads = draw(requests, sources, [spec.seed, spec.first_repeat, 0x3E3], spec.first_repeat)
    return [load for load in loads if load.request.case not in spec.without]


def memory_rows(
    sampler: PssSampler,
    processes: dict[str, int],
    idle: dict[str, Rss | None],
    payload_nbytes: int,
) -> list[Row]:
    """Base and peak of each process, and of both together. `idle`: RSS when idle, by process."""
    rows: dict[str, Row] = {}
    bases, peaks = {}, {}
    for process, pid in processes.items():
        before, after = idle[process], read_rss(pid)
        bases[process] = base = sampler.base(process, IDLE)
        peaks[process] = peak = exact_peak(base, sampler.peak(process), before, after)
        rows[process] = {
            "base_pss": base,
            "peak_pss": peak,
            "base_rss": before.total if before else None,
            "peak_rss": after.high_water if after else None,
        }
    base = _sum(bases.values())
    # At the moment when one process had its peak, the other held at least what it holds when idle.
    others = [_sum([peaks[p], *(bases[q] for q in processes if q != p)]) for p in processes]
    together = [sampler.peak_sum(), *others]
    rows[BOTH] = {
        "base_pss": base,
        "peak_pss": None if None in together else max(peak for peak in together if peak),
        "base_rss": None,
        "peak_rss": None,
    }
    return [
        {
            "process": name,
            **row,
            "payload_nbytes": payload_nbytes,
            "multiple": _multiple(row, payload_nbytes),
        }
        for name, row in rows.items()
    ]


def exact_peak(
    base: int | None, sampled: int | None, before: Rss | None, after: Rss | None
) -> int | None:
    """The highest PSS: as sampled, or by the high-water mark of RSS, which no moment escapes.

    The mark counts shared memory in full and pages of files, so it speaks only for a process that
    shares nothing, and what files grew by is taken off.
    """
    if base is None or sampled is None:
        return None
    if before is None or after is None or not (before.private and after.private):
        return sampled
    grown = after.high_water - before.total - max(0, after.file - before.file)
    return max(sampled, base + grown)


def _multiple(row: Row, payload_nbytes: int) -> float | None:
    base, peak = row["base_pss"], row["peak_pss"]
    if not isinstance(base, int) or not isinstance(peak, int) or payload_nbytes == 0:
        return None
    return (peak - base) / payload_nbytes


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _marked(pid: int) -> Rss | None:
    """RSS of now, with the high-water mark set to it; None where it cannot be set."""
    return read_rss(pid) if reset_high_water(pid) else None


def sample_rows(samples: list[PssSample], under_way: list[tuple[float, str, int]]) -> list[Row]:
    """Readings with the case that was under way, for a timeline and for peaks by case.

    Of a stretch without change the first one stands for all of it.
    """
    rows: list[Row] = []
    last: dict[str, int | None] = {}
    for sample in samples:
        before, value = last.get(sample.process), sample.pss_nbytes
        if not sample.mark and before and value and abs(value - before) < _STEP:
            continue
        last[sample.process] = value
        case, nbytes = "", 0
        for begin, name, size in under_way:
            if sample.time_s >= begin:
                case, nbytes = name, size
        rows.append(
            {
                "time_s": sample.time_s - samples[0].time_s,
                "process": sample.process,
                "case": case,
                "payload_nbytes": nbytes,
                "mark": sample.mark,
                "pss": value,
            }
        )
    return rows


def _which(spec: TrialSpec) -> Row:
    return {
        "strategy": spec.strategy,
        "workload": workloads.name_of(spec.workload),
        "model": spec.model,
        "scale": spec.scale,
        "seed": spec.seed,
        "repeat": spec.block,
    }
