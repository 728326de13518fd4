"""`python -m mmlab.bench.transfer.sender`: the sending process of a pair."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from mmlab.bench.transfer import packets, process
from mmlab.bench.transfer.packets import Case, Line, Stream, Timed, Turn, Usage, WayFailed
from mmlab.bench.transfer.payload import proof, stamp
from mmlab.bench.transfer.ways import WAYS
from mmlab.bench.transfer.ways.base import Outlet, Sender, make_sender, make_sources
from mmlab.errors import MMLabError, TransportError
from mmlab.transports import open_transport


def main(arguments: Sequence[str]) -> int:
    """PARENT CONTROL LINE DIRECTORY SEGMENTS THREADS TUNED WAY...; two are descriptors, to the
    controller and receiver; both directories are private, one in /dev/shm (empty: none)."""
    parent, fd, line_fd, directory, segments, threads, tuned, *names = arguments
    is_tuned = process.begin(int(parent), int(threads), tuned == "1")
    control = Line.inherited(int(fd), "controller")
    line = Line.inherited(int(line_fd), "receiver")
    try:
        with open_transport("ipc") as transport:
            line.patient(packets.START_S)
            ready = line.hear(packets.Ready)
            line.patient(packets.PATIENCE_S)
            frames = transport.connect_requests(ready.endpoint)
            outlet = Outlet(frames, line, Path(directory), Path(segments))
            ways: dict[str, Sender] = {}
            for name in names:
                with packets.naming(name):
                    ways[name] = make_sender(WAYS[name], outlet)
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
            named = error.way if isinstance(error, WayFailed) else ""
            text = f"transfer by {named or ', '.join(names)}: {error}"
            control.tell(packets.Failed(text, named))
        return 1
    return 0


class _Loop:
    """Carries out what the controller says, one after another."""

    def __init__(self, control: Line, line: Line, ways: dict[str, Sender]) -> None:
        self._control = control
        self._line = line
        self._ways = ways
        self._number = 0  # of the message: its content
        self._sources: tuple[Case, list[torch.Tensor]] | None = None

    def run(self) -> None:
        while True:
            command = self._control.command()
            if command is None:
                return
            self._line.tell(command)
            if isinstance(command, Turn | Stream):
                with packets.naming(command.way):
                    way = self._ways[command.way]
                    turn = self._turn if isinstance(command, Turn) else self._stream
                    self._control.tell(turn(way, command))  # type: ignore[arg-type]
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
        key = msgspec.structs.replace(case, only="")
        if self._sources is None or self._sources[0] != key:
            self._sources = None
            process.trim()
            self._sources = key, make_sources(case)
        for name, way in self._ways.items():
            if WAYS[name].takes(case):
                with packets.naming(name):
                    way.prepare(case, self._sources[1])
        process.trim()

    def _turn(self, way: Sender, turn: Turn) -> Timed:
        self._one(way, turn.way, check=True)
        before = process.usage()
        seconds = [self._one(way, turn.way) for _ in range(turn.messages)]
        mine = process.used(before)
        theirs = Usage(0.0, 0) if way.local else self._hear(way, packets.Used).usage
        return Timed(seconds, mine, theirs)

    def _stream(self, way: Sender, stream: Stream) -> Timed:
        """The receiver has a batch until the next message has come: two are in flight."""
        self._one(way, stream.way, check=True)
        before, begun = process.usage(), time.perf_counter()
        for n in range(stream.messages):
            if n > 1 and not way.local:
                self._hear(way, packets.Idle)
            batch = self._next(way)
            way.send(way.build(batch))
        if way.local:
            return Timed([time.perf_counter() - begun], process.used(before), Usage(0.0, 0))
        if stream.messages > 1:
            self._hear(way, packets.Idle)
        self._hear(way, packets.Ack)
        seconds, mine = time.perf_counter() - begun, process.used(before)
        self._check(way, stream.way, batch)
        self._hear(way, packets.Idle)
        return Timed([seconds], mine, self._hear(way, packets.Used).usage)

    def _next(self, way: Sender) -> torch.Tensor:
        """The batch of the next message, unlike any other."""
        self._number += 1
        batch = way.batches[self._number % len(way.batches)]
        stamp(batch, self._number)
        return batch

    def _check(self, way: Sender, name: str, batch: torch.Tensor) -> None:
        got, sent = self._hear(way, packets.Proof), proof(way.expected(batch))
        if got != sent:
            raise MMLabError(f"{name}: the receiver's batch is {got}, sent was {sent}")

    def _one(self, way: Sender, name: str, check: bool = False) -> float:
        """Send one message; seconds until the batch exists on the other side."""
        batch = self._next(way)
        message = way.build(batch)
        begun = time.perf_counter()
        way.send(message)
        if way.local:
            return time.perf_counter() - begun
        self._line.hear(packets.Ack)
        seconds = time.perf_counter() - begun
        del message
        if check:
            self._check(way, name, batch)
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
