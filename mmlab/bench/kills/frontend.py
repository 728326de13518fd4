"""`python -m mmlab.bench.kills.frontend PARENT PATH`: the frontend of a trial.

A process with a pipeline of its own and several requests under way. If it survives, it tells how
each of them ended, closes the pipeline, and starts another.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mmlab.arena import sink
from mmlab.bench.kills import workload
from mmlab.bench.kills.hold import Countdown, Method, stop_here, wrap
from mmlab.bench.kills.line import (
    PATIENCE_S,
    Answered,
    Broken,
    End,
    Ended,
    Go,
    Hello,
    Line,
    Pending,
    Task,
)
from mmlab.bench.kills.plan import PENDING, RESTART_S, Trial, way
from mmlab.bench.transfer.process import follow_parent
from mmlab.errors import MMLabError
from mmlab.pipeline import Pipeline, Reply, process
from mmlab.pipeline.settings import load_frontend
from mmlab.transports import open_transport
from mmlab.transports.links import COPY_BELOW

START_S = 60.0  # until a step of its own start must have come about


def main(parent: int, path: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    follow_parent(parent)
    line = Line.to(path)
    try:
        task = line.hear(Task)
        load_frontend(task.model)
        warm_up()
        line.tell(Hello())
        line.hear(Go)
        if task.trial is not None:
            plain, process.ENGINE_ARGS = process.ENGINE_ARGS, engine_command(path, task.trial)
            _UnderWay(line, path, task.trial).run()
            process.ENGINE_ARGS = plain
            if not line.hear(Go).on:
                return 0
        line.tell(restart(task.model, task.strategy))
        line.hear(Go)
    except Exception as error:
        line.tell(Broken(f"frontend: {type(error).__name__}: {error}"))
        return 1
    return 0


def warm_up() -> None:
    """Send one frame without a copy: pyzmq then starts a thread that it keeps to the end."""
    with open_transport("inproc") as transport:
        receiver = transport.bind_requests(None)
        transport.connect_requests(receiver.endpoint).send([bytes(COPY_BELOW)])
        receiver.receive(1.0)


def engine_command(path: str, trial: Trial) -> tuple[str, ...]:
    return ("-P", "-m", "mmlab.bench.kills.engine", path, trial.stage, str(trial.call))


def restart(model: str, strategy: str) -> Answered:
    """A new pipeline, from its start to its first answer."""
    begun = time.monotonic()
    with workload.open_pipeline(model, way(strategy)) as pipe:
        workload.ask(pipe, RESTART_S)
        answered = Answered(time.monotonic() - begun)
    del pipe
    gc.collect()
    return answered


class _UnderWay:
    """A pipeline with requests under way, of which one process or the other is going to die."""

    def __init__(self, line: Line, path: str, trial: Trial) -> None:
        self._line = line
        self._path = path
        self._trial = trial
        self._ends: list[End] = []
        self._threads: list[threading.Thread] = []
        self._arm = Countdown(trial.call)
        self._wrapped: list[tuple[object, str, Any]] = []
        self._before = set(threading.enumerate())

    def run(self) -> None:
        pipe = workload.open_pipeline(self._trial.model, way(self._trial.strategy))
        expected = self._put_under_way(pipe)
        self._until("the end of all requests", lambda: len(self._ends) == expected, PATIENCE_S)
        begun = time.monotonic()
        pipe.close()
        closed_s = time.monotonic() - begun
        for thread in self._threads:
            thread.join(1.0)
        self._threads.clear()
        for owner, name, was in self._wrapped:
            setattr(owner, name, was)
        self._wrapped.clear()
        del pipe
        gc.collect()
        new = set(threading.enumerate()) - self._before
        self._line.tell(Ended(self._ends, closed_s, sorted(thread.name for thread in new)))

    def _put_under_way(self, pipe: Pipeline) -> int:
        """Submit everything and say so; how many ends are to come."""
        workload.ask(pipe, START_S)
        self._hold(pipe)
        first = workload.send_long if self._trial.stage == "in-model" else workload.send
        futures = [first(pipe, 0), *(workload.send(pipe, n) for n in range(1, PENDING))]
        for future in futures:
            self._watch("pending", future)
        budget = pipe._link.budget  # not stats(), which waits for a send that is held
        taken = budget.taken
        self._arm.arm()
        self._submit("sent", lambda: workload.send(pipe, PENDING))
        self._until("a last request", lambda: budget.taken > taken)
        self._submit("waiting", lambda: workload.send_too_much(pipe))
        self._until("a submitter that waits", lambda: budget.waiting == 1)
        arena = None if pipe.arena is None else pipe.arena.id
        still_open = sum(not future.done() for future in futures)
        self._line.tell(Pending(pipe.engine_pid, arena, still_open, len(self._threads)))
        return len(futures) + len(self._threads)

    def _hold(self, pipe: Pipeline) -> None:
        """Make the submitter stop at the stage, where it is one of the frontend's."""
        stage, path, due = self._trial.stage, self._path, self._arm

        def before(send: Method) -> Method:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                if due():
                    stop_here(path, stage)
                return send(*arguments, **named)

            return wrapped

        def after(write: Method) -> Method:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                wrote = write(*arguments, **named)
                if due():
                    stop_here(path, stage)
                return wrote

            return wrapped

        sender = pipe._link._sender
        assert sender is not None
        if stage == "before-send":
            self._wrap(sender, "send", before)
        elif stage == "mid-send" and pipe.arena is not None:
            self._wrap(sink, "_write", after)
        elif stage == "mid-send":
            self._wrap(sender, "_send_frame", after)

    def _wrap(self, owner: object, name: str, make: Callable[[Method], Method]) -> None:
        self._wrapped.append((owner, name, getattr(owner, name)))
        wrap(owner, name, make)

    def _submit(self, what: str, send: Callable[[], Future[Reply]]) -> None:
        """Submit in a thread of its own, which may be held up."""

        def run() -> None:
            try:
                future = send()
            except Exception as error:
                self._ended(what, error)
            else:
                self._watch(what, future)

        thread = threading.Thread(target=run, name=f"submit {what}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, what: str, future: Future[Reply]) -> None:
        future.add_done_callback(lambda done: self._ended(what, done.exception()))

    def _ended(self, what: str, error: BaseException | None) -> None:
        kind = "reply" if error is None else type(error).__name__
        code = getattr(error, "exit_code", None)
        self._ends.append(End(what, kind, code, time.monotonic_ns()))

    def _until(self, what: str, met: Callable[[], bool], seconds: float = START_S) -> None:
        end = time.monotonic() + seconds
        while not met():
            if time.monotonic() > end:
                raise MMLabError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.002)


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is closed
