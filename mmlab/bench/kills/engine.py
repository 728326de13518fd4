"""`python -m mmlab.bench.kills.engine PATH STAGE CALL FD`: an engine that stops at a stage.

It is the pipeline's own engine, `mmlab.pipeline.child`, with one method wrapped. The first batch,
which shows that the pipeline works, is served as ever.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from mmlab.bench.kills.hold import HOLD_S, Countdown, Method, stop_here, wrap
from mmlab.bench.kills.line import Here, Line
from mmlab.bench.kills.plan import PENDING, PREFILL_S
from mmlab.pipeline import child
from mmlab.pipeline.inbox import Inbox
from mmlab.pipeline.messages import Kind
from mmlab.pipeline.worker import Worker
from mmlab.reducers.group import Batch
from mmlab.transports import Message
from mmlab.wire import read_envelope


def hold(path: str, stage: str, call: int) -> None:
    """Make this process one that stops at the stage, from its second batch on."""
    at_call = Countdown(call)
    received = threading.Semaphore(0)

    def serving(serve: Method) -> Method:
        served = 0

        def wrapped(*arguments: Any) -> Any:
            nonlocal served
            served += 1
            if served == 2:
                at_call.arm()
                if stage == "queued":
                    for _ in range(1 + PENDING + 1):  # the first, this one, and those behind it
                        received.acquire(timeout=HOLD_S)
                    stop_here(path, stage)
                elif stage in ("before-send", "mid-send"):
                    time.sleep(HOLD_S)  # so that nothing is answered while the frontend sends
            return serve(*arguments)

        return wrapped

    def counting(take_in: Method) -> Method:
        def wrapped(inbox: Inbox, message: Message) -> Any:
            is_request = read_envelope(message.frames[0]).kind == Kind.REQUEST
            took = take_in(inbox, message)
            if is_request:
                received.release()
            return took

        return wrapped

    def reducing(reduce_key: Method) -> Method:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if at_call():
                stop_here(path, stage)
            return reduce_key(*arguments, **named)

        return wrapped

    def answering(answer: Method) -> Method:
        def wrapped(*arguments: Any) -> Any:
            if at_call():
                line = Line.to(path)
                line.tell(Here(stage))
                line.close()
                if arguments[0]._model is None:
                    compute(PREFILL_S)
            return answer(*arguments)

        return wrapped

    wrap(Worker, "serve", serving)
    if stage == "queued":
        wrap(Inbox, "_take_in", counting)
    elif stage == "in-reduce":
        wrap(Batch, "reduce_key", reducing)
    elif stage == "in-model":
        wrap(Worker, "_answer", answering)


def compute(seconds: float) -> None:
    """What echo has for a prefill: a thread that hardly ever gives the interpreter away."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


if __name__ == "__main__":
    at, name, number, control = sys.argv[1:]
    hold(at, name, int(number))
    code = child.main([control])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
