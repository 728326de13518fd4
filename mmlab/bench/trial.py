"""One trial: one strategy, one workload, one seed, in this process and the engine that it starts.

    python -m mmlab.bench.trial SPEC.json          # or - for stdin; rows on stdout, one JSON a line

This process is the frontend. It tells its rows as it goes and ends with exit code 0, 2 where the
spec was wrong, or 1 with the reason in one line. With `--lifeline` it ends as soon as its standard
input does, so that a runner that is killed leaves neither a frontend nor an engine behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import torch

from mmlab.bench import events
from mmlab.bench.spec import TrialSpec, decode_spec
from mmlab.errors import UsageError

Emit = Callable[[events.Event], None]


def run(spec: TrialSpec, emit: Emit) -> None:
    """Starts the pipeline, measures what `spec.kind` asks for, and checks that media count."""
    from mmlab.bench import media, memory_trial, timed_trial, workloads
    from mmlab.bench.control import control
    from mmlab.bench.families import check_modalities
    from mmlab.bench.sending import make_sender
    from mmlab.pipeline import Pipeline
    from mmlab.strategies import resolve

    strategy = resolve(spec.strategy)
    workload = workloads.get(spec.workload)
    requests = workload.requests(spec.scale)
    check_modalities(workload.name, requests, spec.model)
    sources = media.load(workload, spec.images, strict=spec.strict)
    if spec.frontend_threads is not None:
        torch.set_num_threads(spec.frontend_threads)
    emit(events.Progress("starting frontend and engine", 0, len(requests)))
    with Pipeline(
        model=spec.model,
        strategy=spec.strategy,
        insecure_pickle=strategy.insecure,
        device=spec.device,
        max_inflight_nbytes=spec.max_inflight_nbytes,
        start_timeout=spec.start_timeout_s,
        engine_threads=spec.engine_threads,
        seed=spec.seed,
    ) as pipeline:
        sender = make_sender(spec, pipeline)
        # Memory comes first: an allocator keeps what earlier images took. Either way one request
        # of each size has been through before any is timed.
        if spec.kind == "time":
            memory_trial.warm_up(spec, sender, sources)
        else:
            memory_trial.measure(spec, pipeline, sender, sources, emit)
        emit(control(spec, sender, sources))
        if spec.kind != "memory":
            timed_trial.measure(spec, pipeline, sender, sources, emit)
    emit(events.Done())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the module's head."""
    parser = argparse.ArgumentParser(prog="python -m mmlab.bench.trial", description=__doc__)
    parser.add_argument("spec", nargs="?", default="-", help="JSON file of the trial; - for stdin")
    parser.add_argument("--out", type=Path, help="append the events to this file, not to stdout")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input ends")
    arguments = parser.parse_args(argv)
    with _event_stream(arguments.out) as stream:
        lock = threading.Lock()

        def emit(event: events.Event) -> None:
            with lock:
                stream.write(events.encode(event))
                stream.flush()

        try:
            spec = decode_spec(_spec_text(arguments.spec, one_line=arguments.lifeline))
            if arguments.lifeline:
                threading.Thread(target=_die_with_stdin, name="lifeline", daemon=True).start()
            run(spec, emit)
        except Exception as error:
            told = events.failure(error)
            emit(told)
            print(f"mmlab.bench.trial: {told.message}", file=sys.stderr)
            return 2 if isinstance(error, UsageError) else 1
    return 0


def _spec_text(source: str, *, one_line: bool) -> bytes:
    """The spec's JSON. With a lifeline stdin stays open behind the spec, which is one line then."""
    if source != "-":
        return Path(source).read_bytes()
    return sys.stdin.buffer.readline() if one_line else sys.stdin.buffer.read()


def _event_stream(path: Path | None) -> AbstractContextManager[BinaryIO]:
    """The file, or the real stdout; what libraries print goes to stderr from here on."""
    if path is not None:
        return path.open("ab")
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return nullcontext(stream)


def _die_with_stdin() -> None:
    """Waits for end-of-file. `os._exit`: nothing may hold up the end of an orphan.

    `os.read`, since a thread inside `sys.stdin` would hold its lock when the interpreter ends.
    """
    while os.read(0, 1 << 16):
        pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
