"""The descriptor reaches spawned and unrelated processes; nobody's death leaves anything."""

from __future__ import annotations

import array
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

import pytest
import torch
from arena_parts import HEAD, MIB, script, write_at_spawn

from mmlab.arena import Arena, receive_descriptor, send_descriptor
from mmlab.errors import TransportError

if TYPE_CHECKING:
    from tests.conftest import Leftovers


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_a_spawned_process_writes_and_this_one_reads(leftovers: Leftovers) -> None:
    resource_tracker.ensure_running()  # type: ignore[attr-defined]
    leftovers.reset()
    with Arena(MIB) as arena:
        lease = arena.reserve(2 * 4096)
        lease.array()[:] = 1
        process = multiprocessing.get_context("spawn").Process(
            target=write_at_spawn, args=(arena.handle(), 4096, 7)
        )
        process.start()
        process.join(40)
        assert process.exitcode == 0
        process.close()
        assert lease.array()[:4096].max() == 1 and lease.array()[4096:].min() == 7
    del lease
    assert not leftovers("fds", "shm")


def test_a_handle_is_pickled_for_a_spawn_alone() -> None:
    with Arena(MIB) as arena, pytest.raises(TransportError, match="being spawned"):
        pickle.dumps(arena.handle())


def test_an_unrelated_interpreter_reads_and_exits_and_the_memory_is_still_there(
    leftovers: Leftovers,
) -> None:
    ours, theirs = pair()
    with Arena(MIB) as arena, ours, theirs:
        lease = arena.reserve(MIB)
        lease.array()[:] = 5
        send_descriptor(ours, arena.fileno())
        done = script(
            """
sock = socket.socket(fileno=int(sys.argv[1]))
fd = receive_descriptor(sock)
assert not os.get_inheritable(fd)
reader = ArenaReader(fd, print)
os.close(fd)
(view,) = reader.view(Descriptor(reader.id, 0, 1, [(0, reader.size)]))
print(reader.size, sum(view), view.readonly)
""",
            theirs.fileno(),
            fds=[theirs.fileno()],
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert done.stdout.splitlines()[0] == f"{MIB} {5 * MIB} True"
        assert lease.array().min() == 5  # for its creator, and for a third process
        send_descriptor(ours, arena.fileno())
        third = script(
            """
fd = receive_descriptor(socket.socket(fileno=int(sys.argv[1])))
memory = np.frombuffer(memfd.attach(fd, writable=True), np.uint8)
print(memory.sum())
memory[:] = 6
""",
            theirs.fileno(),
            fds=[theirs.fileno()],
        )
        assert third.stdout == f"{5 * MIB}\n" and not third.stderr
        assert lease.array().min() == 6
        del lease
    assert not leftovers("fds", "shm")


def test_a_sigkill_of_either_process_leaves_nothing(leftovers: Leftovers) -> None:
    """First a reader that has it mapped, then a creator with live views in a third process."""
    ours, theirs = pair()
    body = """
sock = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == "read":
    reader = ArenaReader(receive_descriptor(sock), print)
else:
    arena = Arena(MIB)
    lease = arena.reserve(MIB)
    lease.array()[:] = 3
    send_descriptor(sock, arena.fileno())
print("ready", flush=True)
time.sleep(50)
"""

    def child(what: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + body, str(theirs.fileno()), what],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    def kill(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert process.stdout is not None
        process.stdout.close()

    with ours, theirs:
        with Arena(MIB) as arena:
            send_descriptor(ours, arena.fileno())
            kill(child("read"))
            assert arena.empty((MIB,), torch.uint8, timeout=0).sum() == 0
        creator = child("create")
        fd = receive_descriptor(ours)
        kill(creator)
        assert os.pread(fd, 4, 0) == b"\3\3\3\3"
        os.close(fd)
    assert not leftovers("fds", "shm", "processes")


@pytest.mark.parametrize("count", [0, 2, 8, 20])
def test_anything_but_one_descriptor_is_refused_and_closed(
    count: int, leftovers: Leftovers
) -> None:
    ours, theirs = pair()
    with ours, theirs, Arena(4096) as arena:
        rights = array.array("i", [arena.fileno()] * count)
        ours.sendmsg([b"\xa7"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if count else [])
        with pytest.raises(TransportError, match=f"{min(count, 8)} descriptors, wanted"):
            receive_descriptor(theirs)
    assert not leftovers("fds")


def test_a_closed_socket_and_a_silent_one_are_errors() -> None:
    ours, theirs = pair()
    with theirs, Arena(4096) as arena:
        theirs.settimeout(0.05)
        with pytest.raises(TransportError, match="timed out"):
            receive_descriptor(theirs)
        ours.close()
        with pytest.raises(TransportError, match="closed the socket"):
            receive_descriptor(theirs)
        with pytest.raises(TransportError, match="could not be sent"):
            send_descriptor(theirs, arena.fileno())
    with pytest.raises(TransportError, match="closed"):
        arena.fileno()
