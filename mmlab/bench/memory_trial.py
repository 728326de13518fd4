"""The memory part of a trial: PSS of both processes while requests of growing size pass through.

It runs apart from the timed trials, because reading PSS stops a process for milliseconds each time,
and in processes of its own, because memory that an earlier request left behind in an allocator
would hide what the next one takes. The base is read when idle, after a request without an image.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from mmlab.bench import workloads
from mmlab.bench.events import Event, Progress, Result, Row
from mmlab.bench.images import Photographs
from mmlab.bench.sending import Sender, answer
from mmlab.bench.spec import TrialSpec
from mmlab.bench.timed_trial import draw
from mmlab.measure.memory import PssSample, PssSampler, read_rss, reset_high_water
from mmlab.pipeline import Pipeline

IDLE = "idle"
BOTH = "both"


def measure(
    spec: TrialSpec,
    pipeline: Pipeline,
    sender: Sender,
    photographs: Photographs,
    emit: Callable[[Event], None],
) -> None:
    """One request of every case, in order of size; rows for `memory` and for `samples`.

    The rows are told also when a request fails: what was seen until then is kept, and the peak of a
    process that ended is missing.
    """
    cases = {r.num_images: r for r in workloads.get(spec.workload).requests(spec.scale)}
    requests = [cases[size] for size in sorted(cases)]
    loads = draw(requests, photographs, spec.seed, spec.first_repeat)
    processes = {"frontend": os.getpid(), "engine": pipeline.engine_pid}
    under_way: list[tuple[float, str, int]] = []  # (from when on, case, payload bytes)
    answer(spec, sender.prepare("Hello.", []))
    gc.collect()
    rss = {name: _rss_base(pid) for name, pid in processes.items()}
    with PssSampler(processes, interval_s=spec.sample_interval_s) as sampler:
        sampler.mark(IDLE)
        try:
            for number, load in enumerate(loads):
                sampler.mark(f"{load.request.case}: start")
                begin, case = sampler.samples[-1].time_s, load.request.case
                under_way.append((begin, case, 0))
                reply = answer(spec, sender.prepare(load.request.prompt, load.images))
                under_way[-1] = (begin, case, reply.payload_nbytes)
                sampler.mark(f"{load.request.case}: end")
                emit(Progress(f"memory {load.request.case}", number + 1, len(loads)))
        finally:
            sampler.mark("last")
            largest = max((nbytes for _, _, nbytes in under_way), default=0)
            for row in memory_rows(sampler, processes, rss, largest):
                emit(Result("memory", {**_which(spec), **row}))
            for row in sample_rows(sampler.samples, under_way):
                emit(Result("samples", {"strategy": spec.strategy, "repeat": spec.block, **row}))


def memory_rows(
    sampler: PssSampler,
    processes: dict[str, int],
    rss: dict[str, int | None],
    payload_nbytes: int,
) -> list[Row]:
    """Base and peak of each process, and of their sum at one moment. `rss`: base of each."""
    found = {name: (sampler.base(name, IDLE), sampler.peak(name)) for name in processes}
    bases = [base for base, _ in found.values()]
    together = None if None in bases else sum(base for base in bases if base is not None)
    found[BOTH] = (together, sampler.peak_sum())
    rows: list[Row] = []
    for process, (base, peak) in found.items():
        known = base is not None and peak is not None and payload_nbytes > 0
        marks = read_rss(processes[process]) if rss.get(process) is not None else None
        rows.append(
            {
                "process": process,
                "base_pss": base,
                "peak_pss": peak,
                "base_rss": rss.get(process),
                "peak_rss": marks[1] if marks else None,
                "payload_nbytes": payload_nbytes,
                "multiple": (peak - base) / payload_nbytes if known else None,  # type: ignore[operator]
            }
        )
    return rows


def _rss_base(pid: int) -> int | None:
    """RSS of now, with the high-water mark set to it; None where it cannot be set."""
    marks = read_rss(pid) if reset_high_water(pid) else None
    return marks[0] if marks else None


def sample_rows(samples: list[PssSample], under_way: list[tuple[float, str, int]]) -> list[Row]:
    """Every reading with the case that was under way, for a timeline and for peaks by case."""
    rows: list[Row] = []
    for sample in samples:
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
                "pss": sample.pss_nbytes,
            }
        )
    return rows


def _which(spec: TrialSpec) -> Row:
    return {
        "strategy": spec.strategy,
        "workload": spec.workload,
        "model": spec.model,
        "scale": spec.scale,
        "seed": spec.seed,
        "repeat": spec.block,
    }
