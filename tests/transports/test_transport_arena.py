"""The receiving end of the arena: views for a descriptor, and leases given back by the receiver."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mmlab.arena import Arena, Descriptor, Returned, pack
from mmlab.transports import Message, open_transport
from mmlab.transports.arena import MOST, RETRY_S, ArenaReceiver
from mmlab.transports.links import Push
from mmlab.transports.zmq import inproc

MIB = 1 << 20
ME = 1  # the frontend of every message that does not begin with another's name


def number_of(head: memoryview) -> int | None:
    return {b"head": ME, b"two": 2, b"nobody": 3}.get(bytes(head))


@dataclass
class Ends:
    """An arena, a socket to its reader, and what that gave back, by thread."""

    arena: Arena
    sender: Push
    receiver: ArenaReceiver
    returned: list[Returned] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    refusals: int = 0

    def give_back(self, ended: Sequence[Returned]) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        self.threads.append(threading.current_thread())
        self.calls.append(len(ended))
        self.returned += ended
        return all(self.arena.give_back(one) for one in ended)

    def send(self, nbytes: int = 1000, fill: int = 7) -> Returned:
        """A message of one extent; how its return will look."""
        with self.arena.reserve(nbytes, timeout=1) as lease:
            lease.array()[:] = fill
            lease.expect(1)
            at = lease.extents[0].offset
            extents = [(at, nbytes)]
            self.sender.send(
                [b"head", pack(Descriptor(self.arena.id, lease.number, lease.generation, extents))]
            )
            return Returned(self.arena.id, lease.generation, lease.number)

    def receive(self, timeout: float = 5) -> Message:
        """The next message, whatever else wakes the receiver first."""
        end = time.monotonic() + timeout
        while (message := self.receiver.receive(max(0, end - time.monotonic()))) is None:
            assert time.monotonic() < end, "no message"
        return message


@contextmanager
def ends_of(size: int = MIB) -> Iterator[Ends]:
    with Arena(size) as arena, inproc() as transport:
        pull = transport.bind_requests(None)
        ends: Ends | None = None

        def give_back(ended: Sequence[Returned]) -> bool:
            assert ends is not None
            return ends.give_back(ended)

        receiver = ArenaReceiver(pull, number_of)
        assert receiver.join(ME, arena.fileno(), give_back) == arena.size
        ends = Ends(arena, transport.connect_requests(pull.endpoint), receiver)
        assert receiver.endpoint == pull.endpoint
        yield ends
        receiver.close()


def test_the_views_of_a_message_stand_where_its_descriptor_stood() -> None:
    with ends_of() as ends:
        ends.send(1000, 7)
        message = ends.receive()
        head, payload = message.frames
        assert bytes(head) == b"head" and set(payload) == {7} and payload.readonly
        assert message.nbytes == 1004 and message.error is None
        ends.sender.send([b"alone"])
        assert [bytes(frame) for frame in ends.receive().frames] == [b"alone"]


@pytest.mark.parametrize("rest", [[b""], [b"\xc1"], [b"x" * 100_000], [b"", b""]])
def test_what_is_no_descriptor_is_the_error_of_its_message(rest: list[bytes]) -> None:
    with ends_of() as ends:
        ends.sender.send([b"head", *rest])
        message = ends.receive()
        assert [bytes(frame) for frame in message.frames] == [b"head"]
        assert message.error is not None and "arena" in str(message.error)
        assert message.error.__traceback__ is None and message.nbytes == 4
        ends.send()
        assert ends.receive().error is None


def test_the_end_of_the_last_view_wakes_the_receiver_which_gives_the_lease_back() -> None:
    with ends_of() as ends:
        wanted = ends.send()
        message = ends.receive()
        woken: list[Message | None] = []
        waiting = threading.Thread(target=lambda: woken.append(ends.receiver.receive(30)))
        waiting.start()
        part = message.frames.pop()[500:]
        assert ends.returned == []
        del part  # in this thread, while the other one waits
        waiting.join(10)
        assert woken == [None]
        assert ends.returned == [wanted] and ends.threads == [waiting]
        assert ends.arena.stats().leases == 0


def test_settle_gives_back_at_once_in_the_callers_thread() -> None:
    with ends_of() as ends:
        wanted = [ends.send() for _ in range(3)]
        messages = [ends.receive() for _ in range(3)]
        ends.receiver.settle()
        assert ends.calls == []  # nothing has ended: nobody is told anything
        messages.clear()
        ends.receiver.settle()
        assert sorted(ends.returned) == wanted and ends.calls == [3]
        ends.receiver.settle()
        assert ends.calls == [3] and ends.threads == [threading.current_thread()]


def test_what_could_not_be_given_back_is_tried_again_without_being_asked() -> None:
    with ends_of() as ends:
        wanted = ends.send()
        ends.refusals = 2
        ends.receive().frames.clear()
        begun = time.monotonic()
        while not ends.returned and time.monotonic() - begun < 5:
            assert ends.receiver.receive(0.5) is None
        assert ends.returned == [wanted] and ends.refusals == 0


def test_many_leases_are_given_back_in_few_messages() -> None:
    with ends_of(MIB) as ends:
        count = MOST + 10
        wanted, messages = [], []
        for _ in range(count):
            wanted.append(ends.send(64))
            messages.append(ends.receive())
        messages.clear()
        ends.receiver.settle()
        assert ends.calls == [MOST, 10] and sorted(ends.returned) == wanted


def test_views_that_outlive_the_receiver_end_in_peace(leftovers: Callable[..., list[str]]) -> None:
    with ends_of() as ends:
        ends.send()
        kept = ends.receive().frames[1]
    del ends
    gc.collect()
    assert set(kept) == {7}
    assert leftovers("fds", timeout=0)  # its alarm, which the end of the view will set
    del kept
    assert not leftovers("fds", "threads")


def test_the_transport_is_private_and_listens_in_its_directory(tmp_path: Path) -> None:
    with open_transport("arena") as transport:
        assert (transport.name, transport.private) == ("arena", True)
        assert transport.bind_requests(tmp_path).endpoint == f"ipc://{tmp_path}/req"


def lent(arena: Arena, nbytes: int = 1000, fill: int = 7) -> tuple[Descriptor, Returned]:
    """A lease that a reader holds: what is sent of it, and how its return will look."""
    with arena.reserve(nbytes, timeout=1) as lease:
        lease.array()[:] = fill
        lease.expect(1)
        extents = [(lease.extents[0].offset, nbytes)]
        return (
            Descriptor(arena.id, lease.number, lease.generation, extents),
            Returned(arena.id, lease.generation, lease.number),
        )


def test_every_frontend_reads_from_its_own_arena_and_gets_its_own_leases_back() -> None:
    with ends_of() as ends, Arena(MIB) as other:
        returned: list[Returned] = []
        ends.receiver.join(2, other.fileno(), lambda ended: not returned.extend(ended))
        descriptor, wanted = lent(other, fill=9)
        mine = ends.send(fill=7)
        ends.sender.send([b"two", pack(descriptor)])
        messages = [ends.receive(), ends.receive()]
        assert [message.frames[1][0] for message in messages] == [7, 9]
        messages.clear()
        ends.receiver.settle()
        assert (ends.returned, returned) == ([mine], [wanted])


@pytest.mark.parametrize(
    ("head", "words"),
    [(b"two", "of arena"), (b"nobody", "frontend 3 has lent none")],
    ids=["another's arena", "no arena"],
)
def test_nobody_reads_from_an_arena_that_is_not_his(head: bytes, words: str) -> None:
    with ends_of() as ends, Arena(MIB) as other:
        ends.receiver.join(2, other.fileno(), lambda ended: True)
        descriptor, _ = lent(ends.arena)
        ends.sender.send([head, pack(descriptor)])
        message = ends.receive()
        assert message.error is not None and words in str(message.error)
        assert len(message.frames) == 1


def test_without_a_readable_head_the_lease_still_comes_back() -> None:
    with ends_of() as ends:
        descriptor, wanted = lent(ends.arena)
        ends.sender.send([b"????", pack(descriptor)])
        ends.receive().frames.clear()
        ends.receiver.settle()
        assert ends.returned == [wanted]


def test_after_a_frontend_has_left_nothing_of_it_is_read_or_given_back() -> None:
    with ends_of() as ends, Arena(MIB) as other:
        told: list[Returned] = []
        ends.receiver.join(2, other.fileno(), lambda ended: not told.extend(ended))
        first, second = lent(other)[0], lent(other)[0]
        ends.sender.send([b"two", pack(first)])
        message = ends.receive()
        ends.receiver.leave(2)
        ends.receiver.leave(2)
        assert set(message.frames[1]) == {7}  # a view that is kept stays valid
        ends.sender.send([b"two", pack(second)])
        assert "has lent none" in str(ends.receive().error)
        message.frames.clear()
        ends.receiver.settle()
        mine = ends.send()
        ends.receive().frames.clear()
        ends.receiver.settle()
        assert ends.returned == [mine] and told == []


def test_who_takes_nothing_back_delays_nobody_and_is_not_asked_all_the_time() -> None:
    with ends_of() as ends, Arena(MIB) as other:
        asked: list[int] = []
        ends.receiver.join(2, other.fileno(), lambda ended: bool(asked.append(len(ended))))
        ends.sender.send([b"two", pack(lent(other)[0])])
        ends.receive().frames.clear()
        begun = time.monotonic()
        for _ in range(200):
            mine = ends.send()
            ends.receive().frames.clear()
            ends.receiver.settle()
            assert ends.returned.pop() == mine
        seconds = time.monotonic() - begun
        assert 1 <= len(asked) <= 1 + seconds / RETRY_S
