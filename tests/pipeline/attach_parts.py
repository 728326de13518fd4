"""What the tests of several frontends share: frontends as processes of their own, and raw visitors.

Run as a program it is a frontend: ADDRESS and a command on the command line, one line of JSON for
each piece of news.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mmlab import KwargsItems, MMLabError, batched
from mmlab.pipeline import Pipeline
from mmlab.pipeline.checksum import checksum_items
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.messages import Welcome

MIB = 1 << 20
BUDGET = 16 * MIB
ROOT = Path(__file__).parents[2]


def attach(pipe: Pipeline, budget: int = BUDGET) -> Pipeline:
    return Pipeline.attach(pipe.address, max_inflight_nbytes=budget, start_timeout=20)


def some_items(nbytes: int, count: int = 1) -> KwargsItems:
    pixels = torch.randint(0, 256, (count, nbytes // count), dtype=torch.uint8)
    return KwargsItems.from_processor({"pixel_values": pixels}, {"pixel_values": batched("image")})


def send_fifty(pipe: Pipeline, seed: int) -> dict[str, object]:
    """50 requests of many sizes, several under way; whether each answer is its own."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    sent = []
    for _ in range(50):
        items = some_items(choose.choice([400, 70_000, 300_000, MIB]), choose.randrange(1, 4))
        sent.append((pipe.submit_items(items, timeout=30), checksum_items(items)))
    right = 0
    for future, wanted in sent:
        reply = future.result(30)
        right += reply.checksum == wanted and reply.request_id == future.request_id
    numbers = {future.request_id >> 40 for future, _ in sent}
    stats = pipe.stats()
    return {"right": right, "numbers": sorted(numbers), "unexpected": stats["unexpected_replies"]}


@contextmanager
def frontend(pipe: Pipeline, command: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """This module as an attached process; killed in the end, if it still lives."""
    process = subprocess.Popen(
        [sys.executable, __file__, pipe.address, command, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def news(process: subprocess.Popen[str]) -> dict[str, object]:
    """The next line it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"it said nothing and ended with {process.wait()}"
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def say_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@contextmanager
def visitor(address: str) -> Iterator[tuple[socket.socket, ControlSocket]]:
    """A connection to an engine's door, welcomed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(10)
        sock.connect(address)
        control = ControlSocket(sock)
        assert isinstance(control.receive(), Welcome)
        yield sock, control


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def _until_the_engine_ends(pipe: Pipeline) -> None:
    """Requests that are under way when it ends; when each one's error came."""
    futures = [pipe.submit_items(some_items(100_000)) for _ in range(8)]
    _say(sent=len(futures))
    errors = [repr(future.exception(30)) for future in futures]
    _say(errors=errors, at=time.monotonic())
    try:
        pipe.submit_items(None)
    except MMLabError as error:
        _say(late=type(error).__name__)
    pipe.close()
    _say(closed=True)


def main(address: str, command: str, *arguments: str) -> None:
    with Pipeline.attach(address, max_inflight_nbytes=BUDGET, start_timeout=20) as pipe:
        _say(number=next(pipe._link._ids) >> 40, pid=pipe.engine_pid, model=pipe.model)
        assert sys.stdin.readline() == "go\n"
        if command == "fifty":
            _say(**send_fifty(pipe, int(arguments[0])))
        elif command == "until":
            _until_the_engine_ends(pipe)
        elif command == "send":
            count, nbytes = map(int, arguments)
            futures = [pipe.submit_items(some_items(nbytes)) for _ in range(count)]
            _say(sent=len(futures))
            signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
