"""`python -m mmlab.bench.transfer.sender`: the sending process of a pair."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import torch

from mmlab.bench.transfer import packets, process
from mmlab.bench.transfer.packets import Case, Line, Timed, Turn, Usage
from mmlab.bench.transfer.payload import proof, stamp
from mmlab.bench.transfer.ways import WAYS
from mmlab.bench.transfer.ways.base import Outlet, Sender, make_sender, make_sources
from mmlab.errors import MMLabError, TransportError
from mmlab.transports import open_transport


def main(arguments: Sequence[str]) -> int:
    """PARENT CONTROL LINE THREADS TUNED WAY...; two descriptors: to the controller and receiver."""
    parent, fd, line_fd, threads, tuned, *names = arguments
    is_tuned = process.begin(int(parent), int(threads), tuned == "1")
    control = Line.inherited(int(fd), "controller")
    line = Line.inherited(int(line_fd), "receiver")
    try:
        with open_transport("ipc") as transport:
            ready = line.hear(packets.Ready)
            outlet = Outlet(transport.connect_requests(ready.endpoint), line)
            ways = {name: make_sender(WAYS[name], outlet) for name in names}
            process.settle()
            found = [getattr(way, "version", "") for way in ways.values()]
            control.tell(
                packets.Ready(
                    pids=[os.getpid(), *ready.pids],
                    threads=[torch.get_num_threads(), *ready.threads],
                    tuned=is_tuned and ready.tuned,
                    peer=next((f"vllm {version}" for version in found if version), ""),
                )
            )
            _Loop(control, line, ways).run()
            for way in ways.values():
                way.drop()
    except Exception as error:
        with suppress(TransportError):  # nobody listens any more: that is the end, and no error
            control.tell(packets.Failed(f"transfer by {', '.join(names)}: {error}"))
        return 1
    return 0


class _Loop:
    """Carries out what the controller says, one after another."""

    def __init__(self, control: Line, line: Line, ways: dict[str, Sender]) -> None:
        self._control = control
        self._line = line
        self._ways = ways
        self._number = 0  # of the message: its content

    def run(self) -> None:
        while True:
            command = self._control.next()
            if command is None:
                return
            self._line.tell(command)
            if isinstance(command, Turn):
                self._control.tell(self._turn(self._ways[command.way], command))
                continue
            if isinstance(command, Case):
                self._prepare(command)
            else:
                process.trim()
            self._line.hear(packets.Done)
            self._control.tell(packets.Done())

    def _prepare(self, case: Case) -> None:
        for way in self._ways.values():
            way.drop()
        process.trim()
        sources = make_sources(case)
        for way in self._ways.values():
            way.prepare(case, sources)

    def _turn(self, way: Sender, turn: Turn) -> Timed:
        self._one(way, turn, check=True)
        before = process.usage()
        seconds = [self._one(way, turn) for _ in range(turn.messages)]
        mine = process.used(before)
        theirs = Usage(0.0, 0) if way.local else self._hear(way, packets.Used).usage
        return Timed(seconds, mine, theirs)

    def _one(self, way: Sender, turn: Turn, check: bool = False) -> float:
        """Send one message; seconds until the batch exists on the other side."""
        self._number += 1
        batch = way.batches[self._number % len(way.batches)]
        stamp(batch, self._number)
        message = way.build(batch)
        begun = time.perf_counter()
        way.send(message)
        if way.local:
            return time.perf_counter() - begun
        self._line.hear(packets.Ack)
        seconds = time.perf_counter() - begun
        del message
        if check:
            got, sent = self._hear(way, packets.Proof), proof(batch)
            if got != sent:
                raise MMLabError(f"{turn.way}: the receiver's batch is {got}, sent was {sent}")
        self._hear(way, packets.Idle)
        return seconds

    def _hear(self, way: Sender, kind: type[packets.P]) -> packets.P:
        """The next packet of that kind; returns before it are passed on."""
        while True:
            packet = self._line.any()
            if isinstance(packet, kind):
                return packet
            if not isinstance(packet, packets.Return):
                raise MMLabError(f"the receiver said {packet}, wanted {kind.__name__}")
            way.returned(packet)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # all is closed
