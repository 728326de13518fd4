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
from mmlab.bench.transfer.packets import PATIENCE_S, Case, Line, Stream, Turn, Usage, WayFailed
from mmlab.bench.transfer.payload import proof
from mmlab.bench.transfer.ways import LIMIT, WAYS
from mmlab.bench.transfer.ways.base import Receiver, make_receiver
from mmlab.errors import TransportError
from mmlab.transports import open_transport
from mmlab.transports.base import Message, RequestReceiver


def main(arguments: Sequence[str]) -> int:
    """PARENT LINE DIRECTORY THREADS TUNED WAY...; DIRECTORY is private, for the pair's socket."""
    parent, fd, directory, threads, tuned, *names = arguments
    is_tuned = process.begin(int(parent), int(threads), tuned == "1")
    line = Line.inherited(int(fd), "sender")
    try:
        with open_transport("ipc") as transport:
            inlet = transport.bind_requests(Path(directory))
            ways: dict[str, Receiver] = {}
            for name in names:
                with packets.naming(name):
                    ways[name] = make_receiver(WAYS[name])
            process.settle()
            line.tell(
                packets.Ready(
                    [os.getpid()], [torch.get_num_threads()], is_tuned, endpoint=inlet.endpoint
                )
            )
            _serve(line, inlet, ways)
    except Exception as error:
        with suppress(TransportError):
            way = error.way if isinstance(error, WayFailed) else ""
            text = str(error) if way else f"{type(error).__name__}: {error}"
            line.tell(packets.Failed(f"receiver: {text}", way))
        return 1
    return 0


def _serve(line: Line, inlet: RequestReceiver, ways: Mapping[str, Receiver]) -> None:
    while True:
        command = line.command()
        if command is None:
            return
        if isinstance(command, Turn | Stream):
            if command.way != LIMIT:
                with packets.naming(command.way):
                    _carry_out(line, inlet, ways[command.way], command)
            continue
        if isinstance(command, Case):
            for way in ways.values():
                way.drop()
        process.trim()
        if isinstance(command, Case):
            for name, way in ways.items():
                if WAYS[name].takes(command):
                    with packets.naming(name):
                        way.prepare(command, line)
        line.tell(packets.Done())


def _carry_out(line: Line, inlet: RequestReceiver, way: Receiver, command: Turn | Stream) -> None:
    hold_s = command.hold_s if isinstance(command, Turn) else 0.0
    _one(line, inlet, way, hold_s, check=True)
    before = process.usage()
    if isinstance(command, Stream):
        line.tell(packets.Used(_stream(line, inlet, way, command.messages, before)))
        return
    for _ in range(command.messages):
        _one(line, inlet, way, hold_s)
    line.tell(packets.Used(process.used(before)))


def _stream(
    line: Line, inlet: RequestReceiver, way: Receiver, messages: int, before: tuple[float, int]
) -> Usage:
    """A batch is in use until the next message has come."""
    batch: object = None
    for n in range(messages):
        message = _received(inlet)
        batch = None
        if n:
            _idle(line, way)
        batch = way.batch(message.frames)
        del message
    line.tell(packets.Ack())
    used = process.used(before)
    line.tell(proof(batch))
    del batch
    _idle(line, way)
    return used


def _one(
    line: Line, inlet: RequestReceiver, way: Receiver, hold_s: float, check: bool = False
) -> None:
    message = _received(inlet)
    batch = way.batch(message.frames)
    line.tell(packets.Ack())
    if check:
        line.tell(proof(batch))
    if hold_s:
        time.sleep(hold_s)
    del batch, message
    _idle(line, way)


def _received(inlet: RequestReceiver) -> Message:
    message = inlet.receive(PATIENCE_S)
    if message is None:
        raise TransportError(f"no message came within {PATIENCE_S:.0f} s")
    return message


def _idle(line: Line, way: Receiver) -> None:
    for end in way.returns():
        line.tell(end)
    line.tell(packets.Idle())


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # all is closed
