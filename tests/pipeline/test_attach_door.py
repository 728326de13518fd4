"""The engine's door: visitors that stall, lie or come in numbers, and the bound of those let in."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from attach_parts import MIB, attach, descriptors, some_items, visitor
from pipeline_parts import engine_config, wait_for

from mmlab import TransportError
from mmlab.arena import Arena
from mmlab.pipeline import Pipeline, peer
from mmlab.pipeline.control import ControlSocket
from mmlab.pipeline.guests import MAX_FRONTENDS, Guests
from mmlab.pipeline.joining import MAX_VISITORS, Door
from mmlab.pipeline.messages import (
    COUNTER_BITS,
    Control,
    Failed,
    Join,
    Joined,
    Kind,
    Ready,
    Stop,
    Welcome,
)
from mmlab.wire import Encoder


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Pipeline, int]]:
    """With the number of descriptors that its engine has for its owner alone."""
    with Pipeline(
        model="echo", strategy="arena", max_inflight_nbytes=4 * MIB, engine_threads=1
    ) as pipeline:
        assert pipeline.submit_items(some_items(100_000)).result(5)
        yield pipeline, descriptors(pipeline.engine_pid)


@pytest.fixture
def pipe(shared: tuple[Pipeline, int]) -> Iterator[Pipeline]:
    """Afterwards its engine lets others in, and has the descriptors that it had before."""
    pipeline, before = shared
    yield pipeline
    with attach(pipeline, MIB) as other:
        assert other.submit_items(some_items(100_000)).result(5)
    assert wait_for(lambda: descriptors(pipeline.engine_pid) == before)


WRONG: dict[str, tuple[Callable[[], Control | bytes], int, str]] = {
    "rubbish": (lambda: b"\xc1", 1, "unreadable"),
    "another message": (Stop, 0, "no Join of protocol"),
    "another protocol": (lambda: Join(protocol=99, max_nbytes=MIB), 1, "no Join of protocol"),
    "no arena": (lambda: Join(max_nbytes=MIB), 0, "0 descriptors came .* wanted 1"),
    "two arenas": (lambda: Join(max_nbytes=MIB), 2, "2 descriptors came .* wanted 1"),
    "what is no arena": (lambda: Join(max_nbytes=MIB), 1, "no memfd|seals"),
    "no budget": (lambda: Join(max_nbytes=0), 1, "budget is 0 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_refused_with_its_reason(pipe: Pipeline, name: str) -> None:
    make, count, words = WRONG[name]
    message = make()
    fds = [os.memfd_create("no-arena", os.MFD_CLOEXEC) for _ in range(count)]
    with visitor(pipe.address) as (sock, control):
        if isinstance(message, bytes):
            socket.send_fds(sock, [message], fds)
        else:
            control.send(message, fds)
        said = control.receive()
        assert isinstance(said, Failed)
        assert re.search(words, said.message), said.message
        assert control.receive() is None
    for fd in fds:
        os.close(fd)


def joined(control: ControlSocket, arena: Arena) -> Joined:
    control.send(Join(max_nbytes=MIB), [arena.fileno()])
    answer = control.receive()
    assert isinstance(answer, Joined), answer
    return answer


def test_as_many_as_the_bound_says_come_in_and_the_next_is_told(pipe: Pipeline) -> None:
    with ExitStack() as undo, Arena(MIB) as arena:
        connections, numbers = [], []
        for _ in range(MAX_FRONTENDS):
            sock, control = undo.enter_context(visitor(pipe.address))
            numbers.append(joined(control, arena).number)
            connections.append(sock)
        assert numbers == list(range(numbers[0], numbers[0] + MAX_FRONTENDS))
        with pytest.raises(TransportError, match="64 frontends are attached and 64 may be") as got:
            attach(pipe, MIB)
        assert pipe.address in str(got.value)
        connections[5].close()
        assert wait_for(lambda: f"frontend {numbers[5]} has left" in pipe.engine_output)
        with attach(pipe, MIB) as other:
            assert other.submit_items(some_items(100_000)).result(5)


def test_who_speaks_out_of_turn_is_let_go(pipe: Pipeline) -> None:
    with Arena(MIB) as arena, visitor(pipe.address) as (_, control):
        number = joined(control, arena).number
        hello = Encoder().encode(None, kind=Kind.HELLO, request_id=number << COUNTER_BITS)
        sender = pipe._link._sender
        assert sender is not None
        sender.send(hello)
        assert pipe.submit_items(None).result(5)  # by the same way: the greeting has been heard
        control.send(Stop())
        assert control.receive() is None
        assert wait_for(lambda: f"frontend {number} has left" in pipe.engine_output)
        assert f"frontend {number} is not attached" not in pipe.engine_output
        sender.send(hello)
        assert wait_for(lambda: f"frontend {number} is not attached" in pipe.engine_output)


def test_a_crowd_that_says_nothing_keeps_nobody_out(pipe: Pipeline) -> None:
    with ExitStack() as undo:
        crowd = [undo.enter_context(visitor(pipe.address)) for _ in range(MAX_VISITORS + 3)]
        begun = time.monotonic()
        with attach(pipe, MIB) as other:
            assert other.submit_items(some_items(100_000)).result(5)
        assert time.monotonic() - begun < 2
        said = crowd[0][1].receive()  # the first of them has made room
        assert isinstance(said, Failed) and "others came" in said.message


def test_without_a_free_descriptor_the_engine_serves_on_and_lets_in_later(pipe: Pipeline) -> None:
    limits = resource.prlimit(pipe.engine_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pipe.engine_pid, resource.RLIMIT_NOFILE, (10, limits[1]))  # it has more
    try:
        with pytest.raises(TransportError, match=r"did not answer in time; raise start_timeout"):
            Pipeline.attach(pipe.address, max_inflight_nbytes=MIB, start_timeout=1)
        assert pipe.submit_items(some_items(100_000)).result(5)
        assert psutil.Process(pipe.engine_pid).cpu_percent(0.5) < 50  # it does not spin
    finally:
        resource.prlimit(pipe.engine_pid, resource.RLIMIT_NOFILE, limits)


class Watching:
    """A watchdog that is looked after by the test."""

    def __init__(self) -> None:
        self.acts: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self.acts[fd] = act

    def unwatch(self, fd: int) -> None:
        self.acts.pop(fd, None)

    def look(self) -> None:
        for act in list(self.acts.values()):
            act()


class Hall:
    """A door in this process, and who has come through it."""

    def __init__(self, path: Path, answer_s: float) -> None:
        self.events: list[Sequence[object]] = []
        self.watchdog = Watching()

        def admit(number: int, max_nbytes: int, descriptor: int | None) -> int:
            self.events.append(("in", number, max_nbytes, descriptor))
            if max_nbytes == 13:
                raise ValueError("unlucky")
            return 0

        self.guests = Guests(
            self.watchdog,  # type: ignore[arg-type]
            admit,
            lambda number: self.events.append(("out", number)),
        )
        self.door = Door(path, self.guests, answer_s)
        ready = Ready(
            pid=os.getpid(),
            device="cpu",
            pinned=False,
            torch_threads=1,
            malloc_tuned=False,
            requests_endpoint="",
            replies_endpoint="",
            start_s={},
        )
        self.door.open(Welcome(config=engine_config(), ready=ready))


@pytest.fixture
def hall(tmp_path: Path, leftovers: Callable[..., list[str]]) -> Iterator[Hall]:
    hall = Hall(tmp_path / "d", 0.4)
    yield hall
    hall.door.close()
    hall.guests.close()
    hall.door.join()
    assert not hall.watchdog.acts
    assert not leftovers("fds", "threads")


def test_who_does_not_answer_in_time_is_sent_away_and_others_come_in_meanwhile(hall: Hall) -> None:
    path = str(hall.door.path)
    with visitor(path) as (_, silent), visitor(path) as (_, quick):
        quick.send(Join(max_nbytes=5))
        assert quick.receive() == Joined(number=2, arena_nbytes=0)
        said = silent.receive()
        assert isinstance(said, Failed) and "nothing came within 0.4 s" in said.message
        assert silent.receive() is None
        assert hall.events == [("in", 2, 5, None)]
        hall.watchdog.look()
        assert len(hall.events) == 1  # who stays is not let go, whatever the poller says
    hall.watchdog.look()
    assert hall.events[1:] == [("out", 2)]


def test_what_admission_fails_of_refuses_one_and_numbers_are_not_used_again(hall: Hall) -> None:
    path = str(hall.door.path)
    with visitor(path) as (_, unlucky), visitor(path) as (_, lucky):
        unlucky.send(Join(max_nbytes=13))
        said = unlucky.receive()
        assert isinstance(said, Failed) and said.message == "unlucky"
        lucky.send(Join(max_nbytes=14))
        assert lucky.receive() == Joined(number=3, arena_nbytes=0)
    assert hall.events == [("in", 2, 13, None), ("in", 3, 14, None)]


def test_when_the_engine_ends_all_are_told(hall: Hall) -> None:
    path = str(hall.door.path)
    with visitor(path) as (_, guest), visitor(path) as (_, waiting):
        guest.send(Join(max_nbytes=5))
        assert isinstance(guest.receive(), Joined)
        hall.door.close()
        hall.guests.close()
        assert guest.receive() == Stop() and guest.receive() is None
        said = waiting.receive()
        assert isinstance(said, Failed) and "the engine ends" in said.message
        hall.door.join()
        with pytest.raises(ConnectionError), visitor(path):
            pass
    assert hall.events == [("in", 2, 5, None), ("out", 2)]


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_the_pidfd_of_a_connection_is_that_of_its_process(
    kernel: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leftovers: Callable[..., list[str]],
) -> None:
    if kernel == "old":
        monkeypatch.setattr(peer, "SO_PEERPIDFD", 9999)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        child = os.fork()
        if child == 0:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(str(tmp_path / "s"))
            sock.recv(1)
            os._exit(0)
        sock, _ = listener.accept()
        with sock:
            assert peer.credentials(sock) == (child, os.getuid())
            pidfd = peer.open_pidfd(sock)
            assert pidfd is not None and not os.get_inheritable(pidfd)
            pid = [
                line.split()[1]
                for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
                if line.startswith("Pid:")
            ]
            assert pid == [str(child)]
            sock.send(b"x")
            os.waitpid(child, 0)
            if kernel == "old":
                assert peer.open_pidfd(sock) is None
            os.close(pidfd)
    assert not leftovers("fds")
