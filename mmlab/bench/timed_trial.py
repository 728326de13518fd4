"""The timed part of a trial: one request after another, then all prompts at once.

Both phases send the same requests, every time as a fresh payload, so that the answers of a busy
engine can be compared with those of an idle one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch

from mmlab.bench import workloads
from mmlab.bench.events import Event, Progress, Result, Row
from mmlab.bench.media import Media, Sources
from mmlab.bench.sending import Sender, answer, check_arrival
from mmlab.bench.spec import TrialSpec
from mmlab.bench.workloads import Request
from mmlab.measure.clocks import now
from mmlab.pipeline import Pipeline, Reply
from mmlab.pipeline.messages import STAGES
from mmlab.strategies import resolve


@dataclass(frozen=True)
class Load:
    """A request with its media, and its number within its repeat."""

    repeat: int
    number: int
    request: Request
    media: Media


def measure(
    spec: TrialSpec,
    pipeline: Pipeline,
    sender: Sender,
    sources: Sources,
    emit: Callable[[Event], None],
) -> None:
    """All rounds of the workload; one `results` row for each request and phase."""
    workload = workloads.get(spec.workload)
    base = workload.requests(spec.scale)
    requests = with_samples(base, spec.min_samples)
    mixed = base if workload.mix else []
    total = sum(r.case not in spec.without for r in [*requests, *mixed]) * spec.rounds
    done = 0

    def tell(load: Load, phase: str, latency_s: float, reply: Reply) -> None:
        nonlocal done
        done += 1
        row = row_of(spec, pipeline, load, phase, latency_s, reply)
        emit(Result("results", {**row, "images_skipped": len(sources.skipped)}))
        emit(Progress(f"{phase} {load.request.case}", done, total))

    for repeat in range(spec.first_repeat, spec.first_repeat + spec.rounds):
        loads = [
            load
            for load in draw(requests, sources, [spec.seed, repeat], repeat)
            if load.request.case not in spec.without
        ]
        for load in loads:
            prepared = sender.prepare(load.request.prompt, load.media)
            start = now()
            reply = answer(spec, prepared)
            tell(load, "sequential", now() - start, reply)
        if workload.mix:
            together = [load for load in loads if load.number < len(base)]
            for load, latency_s, reply in at_once(spec, sender, together):
                tell(load, "mix", latency_s, reply)


def with_samples(requests: Sequence[Request], least: int) -> list[Request]:
    """The requests, and more of each case with fewer than `least`, their prompts their own."""
    found = Counter(request.case for request in requests)
    first = {request.case: request for request in reversed(requests)}
    more = [
        replace(first[case], prompt=f"Once more ({number}): {first[case].prompt}")
        for case, count in found.items()
        for number in range(1, least - count + 1)
    ]
    return [*requests, *more]


def draw(requests: Sequence[Request], sources: Sources, seed: list[int], repeat: int) -> list[Load]:
    """The requests of one repeat with their media, all different."""
    drawn = zip(requests, sources.draw(requests, seed), strict=True)
    return [Load(repeat, number, request, media) for number, (request, media) in enumerate(drawn)]


def at_once(
    spec: TrialSpec, sender: Sender, loads: Sequence[Load]
) -> list[tuple[Load, float, Reply]]:
    """All requests at one moment: (load, seconds from that moment to its reply, reply)."""
    prepared = [sender.prepare(load.request.prompt, load.media) for load in loads]
    arrived: dict[int, float] = {}

    def note(number: int) -> Callable[[Future[Reply]], None]:
        return lambda _: arrived.__setitem__(number, now())

    start = now()
    futures: list[Future[Reply]] = []
    for number, ready in enumerate(prepared):
        future = ready.submit(spec.max_new_tokens)
        future.add_done_callback(note(number))
        futures.append(future)
    replies = [future.result(timeout=spec.reply_timeout_s) for future in futures]
    for ready, reply in zip(prepared, replies, strict=True):
        check_arrival(ready, reply)
    return [
        (load, arrived[number] - start, reply)
        for number, (load, reply) in enumerate(zip(loads, replies, strict=True))
    ]


def row_of(
    spec: TrialSpec,
    pipeline: Pipeline,
    load: Load,
    phase: str,
    latency_s: float,
    reply: Reply,
) -> Row:
    """A `results` row, all but the columns that only the run knows."""
    stages: Row = {f"{stage}_s": reply.timings.get(stage) for stage in STAGES}
    return {
        "strategy": spec.strategy,
        "workload": workloads.name_of(spec.workload),
        "case": load.request.case,
        "phase": phase,
        "model": spec.model,
        "scale": spec.scale,
        "seed": spec.seed,
        "repeat": load.repeat,
        "block": spec.block,
        "request": load.number,
        "num_images": load.request.num_images,
        "payload": pipeline.strategy.payload,
        "payload_nbytes": reply.payload_nbytes,
        "wire_nbytes": reply.wire_nbytes,
        "num_frames": reply.num_frames,
        "latency_s": latency_s,
        **stages,
        "checksum": reply.checksum,
        "token_ids": json.dumps(reply.token_ids),
        "device": reply.device,
        "pinned": reply.pinned,
        "copies": resolve(spec.strategy).copies,
        "frontend_threads": torch.get_num_threads(),
        "engine_threads": pipeline.info.torch_threads,
    }
