"""`python -m mmlab.bench.transfer.receiver`: the process in which the batch comes to be."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from mmlab.bench.transfer import packets, process
from mmlab.bench.transfer.packets import PATIENCE_S, Case, Line, Turn
from mmlab.bench.transfer.payload import proof
from mmlab.bench.transfer.ways import LIMIT, WAYS
from mmlab.bench.transfer.ways.base import Receiver, make_receiver
from mmlab.errors import TransportError
from mmlab.transports import open_transport
from mmlab.transports.base import RequestReceiver


def main(arguments: Sequence[str]) -> int:
    """PARENT LINE DIRECTORY THREADS TUNED WAY...; DIRECTORY is private, for the pair's socket."""
    parent, fd, directory, threads, tuned, *names = arguments
    is_tuned = process.begin(int(parent), int(threads), tuned == "1")
    line = Line.inherited(int(fd), "sender")
    try:
        with open_transport("ipc") as transport:
            inlet = transport.bind_requests(Path(directory))
            ways = {name: make_receiver(WAYS[name]) for name in names}
            process.settle()
            line.tell(
                packets.Ready(
                    [os.getpid()], [torch.get_num_threads()], is_tuned, endpoint=inlet.endpoint
                )
            )
            _serve(line, inlet, ways)
    except Exception as error:
        with suppress(TransportError):
            line.tell(packets.Failed(f"receiver: {type(error).__name__}: {error}"))
        return 1
    return 0


def _serve(line: Line, inlet: RequestReceiver, ways: Mapping[str, Receiver]) -> None:
    while True:
        command = line.next()
        if command is None:
            return
        if isinstance(command, Turn):
            if command.way != LIMIT:
                _turn(line, inlet, ways[command.way], command)
            continue
        if isinstance(command, Case):
            for way in ways.values():
                way.drop()
        process.trim()
        if isinstance(command, Case):
            for way in ways.values():
                way.prepare(command, line)
        line.tell(packets.Done())


def _turn(line: Line, inlet: RequestReceiver, way: Receiver, turn: Turn) -> None:
    _one(line, inlet, way, turn, check=True)
    before = process.usage()
    for _ in range(turn.messages):
        _one(line, inlet, way, turn)
    line.tell(packets.Used(process.used(before)))


def _one(
    line: Line, inlet: RequestReceiver, way: Receiver, turn: Turn, check: bool = False
) -> None:
    message = inlet.receive(PATIENCE_S)
    if message is None:
        raise TransportError(f"no message came within {PATIENCE_S:.0f} s")
    batch = way.batch(message.frames)
    line.tell(packets.Ack())
    if check:
        line.tell(proof(batch))
    if turn.hold_s:
        time.sleep(turn.hold_s)
    del batch, message
    for end in way.returns():
        line.tell(end)
    line.tell(packets.Idle())


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # all is closed
